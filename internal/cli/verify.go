package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/verify"
)

type verifyFlags struct {
	*common
	reading
	jobs       int
	progress   string
	noProgress bool
}

func newVerify(c *common) *cobra.Command {
	f := verifyFlags{common: c}
	cmd := &cobra.Command{
		Use:   "verify SOURCE DEST",
		Short: "Prove that DEST is SOURCE, aligned",
		Long: `Reads from DEST's partition table where the partitions went, makes from SOURCE what DEST must be, and compares every byte.
Both images may have any format; a raw DEST has the sectors of SOURCE, of which --format and --sector-size speak. Nothing is
written.`,
		Example: `  trueup verify winxp.vmdk winxp-aligned.vmdk`,
		Args:    arguments("SOURCE", "DEST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runVerify(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), f, args[0], args[1])
		},
	}
	f.addReading(cmd)
	f.addSandbox(cmd)
	cmd.Flags().IntVarP(&f.jobs, "jobs", "j", 4, "how many chunks are read at once")
	cmd.Flags().StringVar(&f.progress, "progress", "auto", "auto (a bar on a terminal), json (one line a second on standard error) or none")
	cmd.Flags().BoolVar(&f.noProgress, "no-progress", false, "the same as --progress none")
	return cmd
}

func runVerify(ctx context.Context, out, errOut io.Writer, f verifyFlags, src, dest string) error {
	if err := f.check(); err != nil {
		return err
	}
	if err := checkWork(f.jobs, f.progress); err != nil {
		return err
	}
	if f.noProgress {
		f.progress = "none"
	}
	if err := f.confine(errOut, []string{src, dest}, nil); err != nil {
		return err
	}
	if s, d, err := openPackages(src, dest); !errors.Is(err, ondisk.ErrNoMatch) {
		return f.verifyPackage(ctx, out, errOut, s, d, err)
	}
	s, err := openSource(src, f.reading)
	if err != nil {
		return err
	}
	defer s.close()
	d, err := openSource(dest, reading{like: s.img.Disk.SectorSize()})
	if err != nil {
		return err
	}
	defer d.close()
	if err := f.spare(s.img, d.img); err != nil {
		return err
	}
	r := newVerifyReport(src, dest)
	f.ending.hold("") // a comparison ends soon
	bar := f.newProgress(errOut, f.progress, "verify", d.img.Disk.Size())
	diffs, err := f.compare(ctx, s, d, r, nil, bar)
	bar.stop()
	if err != nil {
		return err
	}
	settleVerify(r, diffs)
	if err := f.emit(out, r, func(t *report.Text) { t.Verify(r) }); err != nil {
		return err
	}
	return exitWith(r.ExitCode)
}

func newVerifyReport(src, dest string) *report.Verify {
	return &report.Verify{Head: head("verify"), Source: src, Dest: dest, Changes: report.Changes{Moves: []report.Move{}, Patches: []report.Patch{}}}
}

// settleVerify draws the conclusion from the differences.
func settleVerify(r *report.Verify, diffs []verify.Difference) {
	r.Differences = report.NewDifferences(diffs)
	r.Equal = len(diffs) == 0
	if !r.Equal {
		r.ExitCode = exitDiffers
	}
}

// compare repeats the plan that leads from s to d and holds d against it. m has the other disks of the machine, nil when they are not at hand.
func (f *verifyFlags) compare(ctx context.Context, s, d *source, r *report.Verify, m *layout.Machine, bar progress) ([]verify.Difference, error) {
	if want, got := s.img.Disk.SectorSize(), d.img.Disk.SectorSize(); got != want {
		return []verify.Difference{{Text: fmt.Sprintf(
			"the disk has sectors of %d bytes, want %d (--sector-size says how large those of a raw SOURCE are)", got, want)}}, nil
	}
	p, err := repeat(s, d.layout, m)
	if errors.Is(err, verify.ErrDifferent) || errors.Is(err, plan.ErrNoPlan) {
		return []verify.Difference{{Text: err.Error()}}, nil
	}
	if err != nil {
		return nil, err
	}
	if got := d.img.Disk.Size(); rounded(got, p.Size) { // by --to …,align=SIZE
		p.Grow(s.layout, got)
	}
	r.Changes = report.NewChanges(p)
	diffs, err := verify.Same(ctx, p.View(s.img.Disk), d.img.Disk, verify.Options{Jobs: f.jobs, Progress: bar.add})
	if err != nil || len(diffs) > 0 {
		return diffs, err
	}
	if err := verify.Promise(p, s.layout, d.layout); err != nil {
		return []verify.Difference{{Text: err.Error()}}, nil //nolint:nilerr // the error is the result
	}
	for _, i := range d.damage {
		// A copy is written without. Its name was the user's choice, and all its bytes have been compared.
		if i.Effect >= ondisk.Refuse && i.Code != image.CodeMisnamed {
			diffs = append(diffs, verify.Difference{Text: i.Text})
		}
	}
	for _, x := range []*source{s, d} {
		if err := x.img.Unchanged(); err != nil {
			return nil, fmt.Errorf("%s: %w", x.img.Path, err)
		}
	}
	return diffs, nil
}

// repeat finds the plan from where the partitions are.
func repeat(s *source, after *layout.Layout, m *layout.Machine) (*plan.Plan, error) {
	starts, err := verify.Starts(s.layout, after)
	if err != nil {
		return nil, err
	}
	if err := s.malformed(); err != nil {
		return nil, fmt.Errorf("%s: %w", s.img.Path, err)
	}
	if err := s.layout.ReadGaps(s.img.Disk); err != nil {
		return nil, err
	}
	// A plain copy keeps a damaged table as it is.
	p, err := plan.At(s.layout, starts, s.layout.Damaged() && !after.Damaged())
	if err == nil && m == nil {
		m, err = verify.Elsewhere(s.layout, after)
	}
	if err == nil {
		p.Join(s.layout, m)
	}
	return p, err
}
