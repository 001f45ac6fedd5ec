package cli

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
)

type planFlags struct {
	*Base
	Move
	bench string // file
}

// newPlan returns the command plan.
func newPlan(c *Base) *cobra.Command {
	f := planFlags{Base: c}
	cmd := &cobra.Command{
		Use:   "plan IMAGE",
		Short: "Show what align would do, and write nothing",
		Args:  Arguments("IMAGE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runPlan(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), f, args[0])
		},
	}
	f.Add(cmd)
	addFlags(cmd, "offset", realign.Offset(&f.Offset), "to-sector-size", realign.SectorSize(&f.Sectors))
	addFlags(cmd, "require-sandbox", &f.RequireSandbox, "spool", &f.unpacking.Spool, "bench", &f.bench)
	return cmd
}

func runPlan(ctx context.Context, out, errOut io.Writer, f planFlags, path string) error {
	if err := f.Check(); err != nil {
		return err
	}
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
