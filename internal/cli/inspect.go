package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/bench/measured"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
)

type inspectFlags struct {
	*Base
	realign.Reading
	boundary align.Boundary
	data     bool
	storage  align.Storage
	bench    string           // file name
	measured *measured.Result // of --bench
	impact   bool
	list     bool
	pieces   bool // count file fragments
	unknown  bool // accept unknown content
	with     []string
}

// newInspect returns the command inspect.
func newInspect(c *Base) *cobra.Command {
	f := &inspectFlags{Base: c, boundary: align.DefaultBoundary, storage: align.Generic()}
	cmd := newCommand("inspect IMAGE...", "Show what is on a disk image and what is misaligned", f.run)
	addReading(cmd, &f.Reading)
	addFlags(cmd,
		"boundary", &f.boundary, "offset", realign.Offset(&f.Offset), "require-sandbox", &f.RequireSandbox,
		"spool", &f.unpacking.Spool, "with", &f.with, "storage", &f.storage, "bench", &f.bench, "impact", &f.impact,
		"list", &f.list, "fragmentation", &f.pieces, "allow-unknown", &f.unknown, "data", &f.data,
	)
	return cmd
}

func (f *inspectFlags) run(ctx context.Context, out, errOut io.Writer, paths []string) error {
	if err := f.Apart("IMAGE", paths); err != nil {
		return err
	}
	var err error
	if f.measured, err = f.readBench(f.bench); err != nil {
		return err
	}
	if err := f.Confine(ctx, errOut, f.move().Reads(paths...), nil); err != nil {
		return err
	}
	if len(paths) == 1 {
		return f.one(ctx, out, errOut, paths[0])
	}
	return f.Each(ctx, "inspect", paths, out, errOut, func(out io.Writer, path string) error {
		return f.one(ctx, out, errOut, path)
	})
}

// one inspects one image.
func (f *inspectFlags) one(ctx context.Context, out, errOut io.Writer, path string) error {
	if isPackage, err := f.inspectPackage(ctx, out, errOut, path); isPackage {
		return err
	}
	s, err := f.Open(path, f.Reading)
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
	s.Layout = nil // the report is complete, and the text of a large table needs the memory
	if err := f.Emit(out, r, f.show(func(t *report.Text) { t.Inspect(r) })); err != nil {
		return err
	}
	if bad != nil {
		return bad
	}
	return ExitWith(r.ExitCode)
}

// move returns the equivalent flags of align.
func (f *inspectFlags) move() *Move {
	return &Move{Reading: f.Reading, Goal: realign.Goal{Boundary: f.boundary.Target()}, With: f.with}
}

// joinOthers resolves references to the other disks of --with.
func (f *inspectFlags) joinOthers(s *realign.Source) error {
	o, err := f.move().OpenOthers(f.Base, s, "")
	if err != nil {
		return err
	}
	defer o.Close()
	return o.Join(s, f.move().Goal)
}

// show returns a print function that calls text, with the list format if requested.
func (f *inspectFlags) show(text func(t *report.Text)) func(t *report.Text) {
	return func(t *report.Text) {
		t.List = f.list
		text(t)
	}
}

// inspect reports on an opened image. bad is the error of a malformed image; the report contains it too.
func (f *inspectFlags) inspect(
	ctx context.Context, errOut io.Writer, s *realign.Source,
) (r *report.Inspect, bad, err error) {
	read, end := realign.Progress(nil), func() {}
	if f.data {
		f.Ending.Hold("")
		read, end = f.Watched(errOut, "inspect", false)
	}
	u, err := s.Use(ctx, f.data, read)
	end()
	if err != nil {
		return nil, nil, err
	}
	// Refusals releases its plan before the report needs memory.
	refusals, err := s.Refusals(f.move().Goal)
	if err != nil {
		return nil, nil, err
	}
	c := report.Criteria{
		Boundary: f.boundary.Criterion(), Storage: f.storage, Costs: f.line.Flags().Changed("storage"),
		Impact: f.impact,
	}
	if f.pieces {
		if c.Fragments, err = s.Fragments(); err != nil {
			return nil, nil, err
		}
	}
	r, bad = report.NewInspect(Head("inspect"), s, u, refusals, c)
	r.Flags = f.repeated("align", append(asRead, "with", "spool")...)
	r.Benchmark(f.measured)
	switch {
	case bad != nil:
		bad = AfterReport(bad, true)
		_, r.ExitCode = Classify(bad)
	case r.Content == align.UnknownContent && s.Lacks() != nil:
		r.ExitCode = ExitError
		bad = AfterReport(fmt.Errorf("%s: %w", s.Path(), s.Lacks()), false)
	case r.Content == align.UnknownContent && !f.unknown:
		r.ExitCode = ExitError
		bad = AfterReport(ondisk.In(realign.ErrUnknown,
			"%s: no known content on the disk; if that is right, add --allow-unknown",
			s.Path()), false)
	}
	return r, bad, nil
}

// inspectPackage shows each disk of a package. It reports whether path is a package.
func (f *inspectFlags) inspectPackage(
	ctx context.Context, out, errOut io.Writer, path string,
) (isPackage bool, err error) {
	p, err := realign.OpenPackage(path)
	if err != nil {
		return !errors.Is(err, ondisk.ErrNoMatch), err
	}
	defer p.Close()
	if _, err = f.Options(); err == nil {
		err = errors.Join(f.Spare(p), f.move().NoPackage())
	}
	if err != nil {
		return true, err
	}
	r := report.NewPackageInspect(Head("inspect"), p)
	r.Flags = f.repeated("align", asRead...)
	open := realign.Members(p, f.Reading)
	machines := realign.MachinesOf(p, f.move().Goal, open)
	var bad error
	for _, d := range p.Images() {
		s, err := open(d)
		var x *report.Inspect
		if err == nil {
			s.Join(machines[p.Machine(d)])
			x, err = f.inspectMember(ctx, errOut, s)
		}
		r.Add(d, x, err)
		if bad == nil || (err != nil && errors.Is(bad, realign.ErrUnknown)) {
			bad = err
		}
	}
	return true, f.concludePackage(out, r, bad)
}

// concludePackage sets the conclusion of a package and prints its report. bad is the error of one of its disks.
func (f *inspectFlags) concludePackage(out io.Writer, r *report.PackageInspect, bad error) error {
	switch {
	case errors.Is(bad, realign.ErrUnknown):
		r.ExitCode = ExitError
	case bad != nil:
		_, r.ExitCode = Classify(bad)
		r.Error, r.Verdict = report.NewError(bad), ""
	}
	if r.Verdict != align.NothingToJudge {
		r.Content = ""
	}
	if err := f.Emit(out, r, f.show(func(t *report.Text) { t.PackageInspect(r) })); err != nil {
		return err
	}
	if bad != nil {
		return AfterReport(bad, !errors.Is(bad, realign.ErrUnknown))
	}
	return ExitWith(r.ExitCode)
}

// inspectMember reports on a disk of a package and closes it. A malformed disk has a report and an error.
func (f *inspectFlags) inspectMember(
	ctx context.Context, errOut io.Writer, s *realign.Source,
) (*report.Inspect, error) {
	defer s.Close()
	r, bad, err := f.inspect(ctx, errOut, s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path(), err)
	}
	return r, bad
}

type planFlags struct {
	*Base
	Move
	bench string // file
}

// newPlan returns the command plan.
func newPlan(c *Base) *cobra.Command {
	f := &planFlags{Base: c}
	cmd := newCommand("plan IMAGE", "Show what align would do, and write nothing", f.run)
	f.Add(cmd)
	addFlags(cmd, "offset", realign.Offset(&f.Offset), "to-sector-size", realign.SectorSize(&f.Sectors))
	addFlags(cmd, "require-sandbox", &f.RequireSandbox, "spool", &f.unpacking.Spool, "bench", &f.bench)
	return cmd
}

func (f *planFlags) run(ctx context.Context, out, errOut io.Writer, args []string) error {
	path := args[0]
	measured, err := f.readBench(f.bench)
	if err != nil {
		return err
	}
	if err := f.Confine(ctx, errOut, f.Reads(path), nil); err != nil {
		return err
	}
	s, err := f.Open(path, f.Reading)
	if err != nil {
		return err
	}
	defer s.Close()
	p, err := f.planned(f.Base, s, "", making{})
	if err != nil {
		return err
	}
	refusals := p.Refusals(f.AllowUnbootable)
	r := report.NewPlan(Head("plan"), s, p, refusals)
	r.Flags = f.repeated("align", slices.Concat(asRead, asMoved, []string{"spool"})...)
	refused := realign.Refusal(refusals)
	if refused == nil {
		after, err := s.Result(p)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		s.Layout = nil // the report is complete, and the layout of the copy needs the memory
		r.Inspected(after, p)
		cost, err := s.Cost(p)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		r.Cost = &cost
	} else {
		refused = AfterReport(fmt.Errorf("%s: %w", path, refused), true)
		_, r.ExitCode = Classify(refused)
		r.Error = report.NewError(refused)
	}
	r.Changes = report.NewChanges(p) // not earlier: the layouts of both disks need the memory
	r.Benchmark(measured)
	if err := f.Emit(out, r, func(t *report.Text) { t.Plan(r) }); err != nil {
		return err
	}
	return refused
}
