package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
)

type inspectFlags struct {
	*common
	reading
	boundary boundary
	data     bool
	storage  storage
	impact   bool
	list     bool
	unknown  bool // accepted
	with     []string
}

// storage is a flag value: a profile or a size. The zero value is the storage that is assumed when none is named.
type storage struct{ named *align.Storage }

func (s *storage) String() string { return s.profile().Name }

// Set parses a flag argument.
func (s *storage) Set(name string) error {
	p, err := align.ParseStorage(name)
	s.named = &p
	return err
}

// Type is the word that help texts show for the argument.
func (s *storage) Type() string { return "STORAGE" }

func (s *storage) profile() align.Storage {
	if s.named == nil {
		return align.Generic()
	}
	return *s.named
}

func newInspect(c *common) *cobra.Command {
	f := inspectFlags{common: c, boundary: boundary(align.DefaultBoundary)}
	cmd := &cobra.Command{
		Use:   "inspect IMAGE",
		Short: "Show what is on a disk image and what is misaligned",
		Long: `Shows the container, partition table and volumes of one image, and how it boots. Compares the start of
every partition with boundaries of 4 KiB, 64 KiB and 1 MiB, and reports what a misalignment costs and how to fix it.
Also reports how the container stores the disk, and how many bytes are not zero if the image stores at most 128 MiB of
data, or with --data. Writes nothing. The image format is detected from the content.

--boundary is the criterion for verdict and exit code: a partition is aligned if it starts on a multiple of it.
--storage describes the storage below the image and changes only the reported costs and the advice.

--impact computes these costs for each partition. A random I/O starts at any block of the volume, one smaller than a
block at any multiple of its own size; sequential I/O starts at the first block and is not cached. The alignment of
the data in the container is not included.

--with names the other disks of the machine, as for align. References between these disks are then resolved instead of
warned about.

IMAGE can be a package: an OVA, or an OVF with its files. vm.ova!disk1.vmdk is one disk of a package.`,
		Example: `  trueup inspect winxp.vmdk
  trueup inspect --boundary 1M --json winxp.vmdk
  trueup inspect --impact --storage netapp winxp.vmdk
  trueup inspect --list winxp.vmdk
  trueup inspect --data winxp.vmdk`,
		Args: arguments("IMAGE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runInspect(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), f, args[0])
		},
	}
	boundaryFlag(cmd, &f.boundary, "required alignment of partition starts, 4K to 1G")
	f.addReading(cmd)
	f.addSandbox(cmd)
	withFlag(cmd, &f.with)
	names := strings.Join(align.StorageNames(), ", ")
	cmd.Flags().Var(&f.storage, "storage", "storage below the image, for the costs: "+names)
	complete(cmd, "storage", align.StorageNames()...)
	cmd.Flags().BoolVar(&f.impact, "impact", false, "compute the storage blocks that an I/O touches")
	cmd.Flags().BoolVarP(&f.list, "list", "l", false, "print only the partitions, as fdisk -lu lists them")
	unknownFlag(cmd, &f.unknown)
	cmd.Flags().BoolVar(&f.data, "data", false, "read all data to count the bytes that are not zero")
	return cmd
}

func runInspect(ctx context.Context, out, errOut io.Writer, f inspectFlags, path string) error {
	if err := f.check(); err != nil {
		return err
	}
	if err := f.confine(errOut, append([]string{path}, f.with...), nil); err != nil {
		return err
	}
	if p, err := ova.Open(path, nil); !errors.Is(err, ondisk.ErrNoMatch) {
		return f.inspectPackage(ctx, out, errOut, p, path, err)
	}
	s, err := f.open(path, f.said())
	if err != nil {
		return err
	}
	defer s.Close()
	if err := f.joinOthers(s); err != nil {
		return err
	}
	r, bad, err := f.inspect(ctx, errOut, s)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	s.Layout = nil // the report has it all, and the text of a large table needs the memory
	if err := f.emit(out, r, f.show(func(t *report.Text) { t.Inspect(r) })); err != nil {
		return err
	}
	if bad != nil {
		return bad
	}
	return exitWith(r.ExitCode)
}

// move is what align would be told.
func (f *inspectFlags) move() *moveFlags {
	return &moveFlags{reading: f.reading, choice: choice{boundary: f.boundary.target()}, with: f.with}
}

// joinOthers holds the disk against the others of its machine, where they are at hand.
func (f *inspectFlags) joinOthers(s *realign.Source) error {
	o, err := f.move().openOthers(f.common, s, "")
	if err != nil {
		return err
	}
	defer o.Close()
	return o.Join(s, f.move().goal())
}

// show prints by a function, as a list where that is wanted.
func (f *inspectFlags) show(text func(t *report.Text)) func(t *report.Text) {
	return func(t *report.Text) {
		t.List = f.list
		text(t)
	}
}

// inspect reports on an opened image. bad is what is malformed in it, which the report has too.
func (f *inspectFlags) inspect(ctx context.Context, errOut io.Writer, s *realign.Source) (r *report.Inspect, bad, err error) {
	watch, end := f.watched(errOut, "auto", "inspect")
	u, err := s.Use(ctx, f.data, func() realign.Progress {
		f.ending.hold("")
		if !f.data {
			return nil
		}
		return watch()
	})
	end()
	if err != nil {
		return nil, nil, err
	}
	// The plan that this takes is gone before the report needs memory.
	refusals, err := s.Refusals(f.move().goal())
	if err != nil {
		return nil, nil, err
	}
	b := f.boundary.criterion()
	findings := slices.Concat(align.Relevant(u.Issues, nil), align.Relevant(s.Issues(), nil), align.Check(s.Layout, align.Goal{Must: b, Want: b}))
	r = &report.Inspect{Head: head("inspect"), Image: report.NewImage(s.Image), Disk: report.NewDisk(s.Layout, b, findings)}
	r.Stored(u.Map, u.NonZero)
	r.Refusals, r.Flags = refusals, append(f.flags(), f.move().withArguments()...)
	r.ExitCode = r.Verdict.ExitCode()
	if bad = realign.Broken(findings); bad == nil && s.Misnamed() != nil && r.Unknown() {
		bad = s.Misnamed()
	}
	f.diagnose(r, s.Layout, bad != nil)
	switch {
	case bad != nil:
		bad = malformed{fmt.Errorf("%s: %w", s.Path(), bad), true}
		code, exit := classify(bad)
		r.Error, r.ExitCode = &report.Error{Code: code, Message: report.Message(bad)}, exit
		r.Verdict, r.Content = "", ""
	case r.Content == align.UnknownContent && !f.unknown:
		r.ExitCode = exitError
		bad = malformed{error: ondisk.In(realign.ErrUnknown, "%s: nothing that is known was found on the disk; if that is right, give --allow-unknown", s.Path())}
	}
	return r, bad, nil
}

// inspectPackage shows each disk of a package. p is opened, unless openErr says why not.
func (f *inspectFlags) inspectPackage(ctx context.Context, out, errOut io.Writer, p *ova.Package, path string, openErr error) (err error) {
	if openErr != nil {
		return fmt.Errorf("%s: %w", path, openErr)
	}
	defer p.Close()
	if _, err = f.said().Options(); err == nil {
		err = errors.Join(f.spare(p), f.move().noPackage())
	}
	if err != nil {
		return err
	}
	r := &report.PackageInspect{Head: head("inspect"), Package: report.NewPackage(p), Disks: []report.PackageDisk{}, Findings: report.PackageFindings(p.Issues()), Flags: f.flags()}
	var bad error
	if len(p.Images()) == 0 {
		r.Verdict, r.Content = align.NothingToJudge, align.NoDisks
	}
	m := realign.MachinesOf(p, f.move().goal(), func(d ova.Disk) (*realign.Source, error) { return realign.OpenMember(p, d, f.said()) })
	for _, d := range p.Images() {
		x := report.NewPackageDisk(d)
		var err error
		x.Inspect, err = f.inspectDisk(ctx, errOut, p, d, m[p.Machine(d)])
		if x.Inspect == nil {
			code, _ := classify(err)
			x.Error = &report.Error{Code: code, Message: report.Message(err)}
		} else {
			r.ExitCode, r.Verdict = max(r.ExitCode, x.Inspect.Verdict.ExitCode()), r.Verdict.Worse(x.Inspect.Verdict)
			r.Content = r.Content.Vaguer(x.Inspect.Content)
			r.Findings = append(r.Findings, report.PackageFindings(realign.CapacityIssues(d, x.Inspect.Image.Size))...)
		}
		if bad == nil || (err != nil && errors.Is(bad, realign.ErrUnknown)) {
			bad = err
		}
		r.Disks = append(r.Disks, x)
	}
	switch {
	case errors.Is(bad, realign.ErrUnknown):
		r.ExitCode = exitError
	case bad != nil:
		code, exit := classify(bad)
		r.Error, r.ExitCode = &report.Error{Code: code, Message: report.Message(bad)}, exit
		r.Verdict = ""
	}
	if r.Verdict != align.NothingToJudge {
		r.Content = ""
	}
	if err := f.emit(out, r, f.show(func(t *report.Text) { t.PackageInspect(r) })); err != nil {
		return err
	}
	if bad != nil {
		return malformed{bad, !errors.Is(bad, realign.ErrUnknown)}
	}
	return exitWith(r.ExitCode)
}

// inspectDisk reports on one disk. A malformed one has a report and an error.
func (f *inspectFlags) inspectDisk(ctx context.Context, errOut io.Writer, p *ova.Package, d ova.Disk, m *realign.Machine) (*report.Inspect, error) {
	s, err := realign.OpenMember(p, d, f.said())
	if err != nil {
		return nil, err
	}
	defer s.Close()
	s.Join(m)
	r, bad, err := f.inspect(ctx, errOut, s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path(), err)
	}
	return r, bad
}

// unknownFlag adds --allow-unknown.
func unknownFlag(cmd *cobra.Command, to *bool) {
	cmd.Flags().BoolVar(to, "allow-unknown", false, "exit with 0 if the content of a disk is unknown")
}

// diagnose adds what the starts of the partitions cost and whether an aligned copy is worth the trouble.
func (f *inspectFlags) diagnose(r *report.Inspect, l *realign.Layout, malformed bool) {
	below := f.storage.profile()
	if f.storage.named != nil {
		r.Costs = report.NewCosts(l, below)
	}
	if f.impact {
		r.AddImpacts(l, below)
	}
	r.Advice = align.Advise(l, align.Case{Boundary: r.Boundary, Storage: below, Refusals: r.Refusals, Broken: malformed})
}

// exitWith makes an exit code the error of a command.
func exitWith(code int) error {
	if code == 0 {
		return nil
	}
	return verdict(code)
}
