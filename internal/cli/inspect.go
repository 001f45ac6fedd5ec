package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
)

type inspectFlags struct {
	*common
	reading
	boundary boundary
	data     bool
}

func newInspect(c *common) *cobra.Command {
	f := inspectFlags{common: c, boundary: boundary(align.DefaultBoundary)}
	cmd := &cobra.Command{
		Use:   "inspect IMAGE",
		Short: "Show what is on a disk image and what is misaligned",
		Long: `Shows the container, the partition table, the volumes and the boot code of one image, holds the start of every partition
against 4 KiB, 64 KiB and 1 MiB, and says what a misalignment costs and how to fix it. It tells how the container stores the disk,
and counts what of its data is not zero where there are at most 128 MiB, or with --data. Nothing is written.

IMAGE can be a package, an OVA or an OVF with its files; vm.ova!disk1.vmdk is one disk of it, for all commands.` + "\n" + exitCodes,
		Example: `  trueup inspect winxp.vmdk
  trueup inspect --boundary 1M --json winxp.vmdk
  trueup inspect --data winxp.vmdk`,
		Args: arguments("IMAGE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runInspect(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), f, args[0])
		},
	}
	boundaryFlag(cmd, &f.boundary, "what a partition's start shall be a multiple of, 4K to 1G")
	f.addReading(cmd)
	cmd.Flags().BoolVar(&f.data, "data", false, "read all data and count what is not zero")
	return cmd
}

func runInspect(ctx context.Context, out, errOut io.Writer, f inspectFlags, path string) error {
	if err := f.check(); err != nil {
		return err
	}
	if p, err := image.OpenPackage(path); !errors.Is(err, ondisk.ErrNoMatch) {
		return f.inspectPackage(ctx, out, errOut, p, path, err)
	}
	s, err := f.open(path, f.reading)
	if err != nil {
		return err
	}
	defer s.close()
	r, bad, err := f.inspect(ctx, errOut, s)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	s.layout = nil // the report has it all, and the text of a large table needs the memory
	if err := f.emit(out, r, func(t *report.Text) { t.Inspect(r) }); err != nil {
		return err
	}
	if bad != nil {
		return bad
	}
	return exitWith(r.ExitCode)
}

// inspect reports on an opened image. bad is what is malformed in it, which the report has too.
func (f *inspectFlags) inspect(ctx context.Context, errOut io.Writer, s *source) (r *report.Inspect, bad, err error) {
	u, err := f.look(ctx, errOut, s)
	if err != nil {
		return nil, nil, err
	}
	// The plan that this takes is gone before the report needs memory.
	refusals, err := s.refusals(f.boundary)
	if err != nil {
		return nil, nil, err
	}
	b := f.boundary.criterion()
	findings := slices.Concat(align.Relevant(u.issues, nil), align.Relevant(s.issues(), nil), align.Check(s.layout, align.Goal{Must: b, Want: b}))
	r = &report.Inspect{Head: head("inspect"), Image: report.NewImage(s.img), Disk: report.NewDisk(s.layout, b, findings)}
	r.Stored(u.usage, u.nonZero)
	r.Refusals, r.Flags = refusals, f.flags()
	r.ExitCode = r.Verdict.ExitCode()
	if bad = broken(findings); bad != nil {
		bad = malformed{fmt.Errorf("%s: %w", s.img.Path, bad)}
		code, exit := classify(bad)
		r.Error, r.ExitCode = &report.Error{Code: code, Message: message(bad)}, exit
	}
	return r, bad, nil
}

// exitWith makes an exit code the error of a command.
func exitWith(code int) error {
	if code == 0 {
		return nil
	}
	return verdict(code)
}
