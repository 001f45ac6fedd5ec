package cli

import (
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/verify"
)

// moveFlags decide what moves where; plan and align share them.
type moveFlags struct {
	boundary        boundary
	only            []int
	allowUnbootable bool
	flatten         bool
	format          string
}

func (m *moveFlags) add(cmd *cobra.Command) {
	boundaryFlag(cmd, &m.boundary, "where partitions move to, 4K to 1G; auto is 64K where the boot code reads cylinders, heads and sectors, 1M elsewhere")
	cmd.Flags().IntSliceVar(&m.only, "partition", nil, "move only partition `N` (repeatable), and what it forces to move")
	cmd.Flags().BoolVar(&m.allowUnbootable, "allow-unbootable", false, "go on although a finding says that the copy may not boot")
	formatFlag(cmd, &m.format)
	flattenFlag(cmd, &m.flatten)
}

func flattenFlag(cmd *cobra.Command, on *bool) {
	cmd.Flags().BoolVar(on, "flatten", false, "take a snapshot together with its parents, as one complete disk")
}

// arguments are the flags that make align do the same.
func (m *moveFlags) arguments() []string {
	var out []string
	if m.boundary != 0 {
		out = append(out, "--boundary", m.boundary.String())
	}
	for _, n := range m.only {
		out = append(out, "--partition", strconv.Itoa(n))
	}
	if m.allowUnbootable {
		out = append(out, "--allow-unbootable")
	}
	if m.flatten {
		out = append(out, "--flatten")
	}
	return out
}

type planFlags struct {
	*common
	moveFlags
}

func newPlan(c *common) *cobra.Command {
	f := planFlags{common: c}
	cmd := &cobra.Command{
		Use:   "plan IMAGE",
		Short: "Show what align would do, and write nothing",
		Long: `The dry run: every partition that moves, every byte that changes with its old and new value and the reason, how the disk
grows, what would be refused, and an inspection of the result.` + "\n" + exitCodes,
		Example: `  trueup plan winxp.vmdk
  trueup plan --boundary 1M --partition 2 data.vmdk`,
		Args: arguments("IMAGE"),
		RunE: func(cmd *cobra.Command, args []string) error { return runPlan(cmd.OutOrStdout(), f, args[0]) },
	}
	f.add(cmd)
	return cmd
}

func runPlan(out io.Writer, f planFlags, path string) error {
	if err := f.check(); err != nil {
		return err
	}
	s, err := f.open(path, f.format)
	if err != nil {
		return err
	}
	defer s.close()
	s.flatten = f.flatten
	p, err := s.plan(f.boundary, f.only)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	r := &report.Plan{
		Head: head("plan"), Image: report.NewImage(s.img), Changes: report.NewChanges(p), Target: p.Goal.Want,
		Findings: notRefused(p.Notes, p.Refusals(f.allowUnbootable)), Refusals: p.Refusals(f.allowUnbootable),
	}
	r.Flags = f.arguments()
	if r.Refusals == nil {
		r.Refusals = []align.Finding{}
	}
	refused := refusal(r.Refusals)
	if refused == nil {
		_, after, err := checked(s, p)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		before, d := report.NewDisk(s.layout, p.Goal.Must, nil), report.NewDisk(after, p.Goal.Must, align.Check(after, p.Goal))
		r.Before, r.Result = &before, &d
	} else {
		refused = malformed{fmt.Errorf("%s: %w", path, refused)}
		code, exit := classify(refused)
		r.Error, r.ExitCode = &report.Error{Code: code, Message: message(refused)}, exit
	}
	if err := f.emit(out, r, func(t *report.Text) { t.Plan(r) }); err != nil {
		return err
	}
	return refused
}

// notRefused are the notes that stand beside the refusals.
func notRefused(notes, refusals []align.Finding) []align.Finding {
	out := []align.Finding{}
	for _, n := range notes {
		if !containsFinding(refusals, n) {
			out = append(out, n)
		}
	}
	return out
}

func containsFinding(fs []align.Finding, f align.Finding) bool {
	for _, g := range fs {
		if g.Code == f.Code && g.Partition == f.Partition && g.Text == f.Text {
			return true
		}
	}
	return false
}

// checked gives the planned result as a disk, and its layout as read from it: before a byte is written, the eyes that
// found the fault look at the result.
func checked(s *source, p *plan.Plan) (disk.Disk, *layout.Layout, error) {
	view := p.View(s.img.Disk)
	after, err := layout.Read(view, table.Geometry{Heads: s.img.Heads, Sectors: s.img.Sectors})
	if err != nil {
		return nil, nil, fmt.Errorf("planned result: %w", err)
	}
	if err := checkOld(s.img.Disk, p); err != nil {
		return nil, nil, err
	}
	if err := verify.Promise(p, s.layout, after); err != nil {
		return nil, nil, fmt.Errorf("planned result: %w", err)
	}
	if p.Converts {
		return view, after, nil
	}
	if err := after.ReadGaps(view); err != nil {
		return nil, nil, fmt.Errorf("planned result: %w", err)
	}
	if err := verify.Settled(after, p.Goal); err != nil {
		return nil, nil, fmt.Errorf("planned result: %w", err)
	}
	return view, after, nil
}

// checkOld reads back what each patch says it replaces.
func checkOld(src disk.Disk, p *plan.Plan) error {
	bare := disk.Compose(src, p.Size, p.Pieces)
	for _, x := range p.Patches {
		b, err := ondisk.Bytes(bare, x.Off, int64(len(x.Old)))
		if err != nil {
			return err
		}
		if string(b) != string(x.Old) {
			return fmt.Errorf("%w: patch at %#x replaces % x, but finds % x", verify.ErrDifferent, x.Off, x.Old, b)
		}
	}
	return nil
}
