package realign

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/verify"
)

// Difference is a place in which a copy is not what it must be.
type Difference = verify.Difference

// Verify finds the plan that leads from s to d and checks d against it: every byte, its structures, and its container.
// m has the other disks of the machine, nil when they are not at hand. p is nil when there is no such plan, which a
// difference says.
func (j *Job) Verify(
	ctx context.Context, s, d *Source, m *layout.Machine,
) (p *plan.Plan, diffs []Difference, err error) {
	p, diffs, err = j.verify(ctx, s, d, m)
	if err == nil && len(diffs) > 0 {
		err = again(s, d, p, diffs)
	}
	if changed := cause(err, func() error { return cmp.Or(s.unchanged(), d.unchanged()) }); changed != nil {
		return p, nil, changed
	}
	return p, diffs, nil
}

// again returns the error of a disk that hides changes, and whose differences from the other one a second reading does
// not find. One sector of each difference is read.
func again(s, d *Source, p *plan.Plan, diffs []Difference) error {
	hides := s
	if !s.readAgain() {
		hides = d
	}
	if p == nil || !hides.readAgain() {
		return nil
	}
	s.Image.Forget()
	d.Image.Forget()
	view := p.View(s.Image.Disk)
	for _, diff := range diffs {
		n := min(diff.Len, units.SectorSize)
		if n == 0 || view.Size() != d.Image.Disk.Size() {
			continue
		}
		want, err := ondisk.Bytes(view, diff.Off, n)
		if err != nil {
			return err
		}
		got, err := ondisk.Bytes(d.Image.Disk, diff.Off, n)
		if err != nil {
			return err
		}
		if bytes.Equal(got, want) {
			return hides.otherBytes("the first found that " + diff.Text)
		}
	}
	return nil
}

// verify is Verify for disks that nobody writes to.
func (j *Job) verify(
	ctx context.Context, s, d *Source, m *layout.Machine,
) (p *plan.Plan, diffs []Difference, err error) {
	if want, got := s.Image.Disk.SectorSize(), d.Image.Disk.SectorSize(); got != want {
		return nil, []Difference{{Text: fmt.Sprintf(
			"the disk has sectors of %d bytes, want %d (--sector-size says how large those of a raw SOURCE are)",
			got, want)}}, nil
	}
	p, err = s.repeat(d.Layout, m)
	if errors.Is(err, verify.ErrDifferent) || errors.Is(err, plan.ErrNoPlan) {
		return nil, []Difference{{Text: err.Error()}}, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if j.SkipFree {
		if p.Unused, err = s.unused(); err != nil {
			return nil, nil, err
		}
	}
	if got := d.Image.Disk.Size(); rounded(got, p.Size) || d.Image.OnDevice() {
		// By --to …,align=SIZE, or a device that the disk fills.
		p.Grow(s.Layout, got)
	}
	j.watch()
	if diffs, err = j.same(ctx, p.View(s.Image.Disk), d.Image.Disk); err != nil || len(diffs) > 0 {
		return p, diffs, err
	}
	if err := verify.Promise(p, s.Layout, d.Layout); err != nil {
		return p, []Difference{{Text: err.Error()}}, nil //nolint:nilerr // the error is the result
	}
	if diffs, err = s.unexplained(p, p.View(s.Image.Disk), d.Layout); err != nil || len(diffs) > 0 {
		return p, diffs, err
	}
	for _, i := range slices.Concat(d.Damage, d.sectors()) {
		// A copy is written without. Its name was the user's choice, and all its bytes have been compared.
		if i.Effect >= ondisk.Refuse && i.Code != image.CodeMisnamed {
			diffs = append(diffs, Difference{Text: i.Text})
		}
	}
	return p, diffs, nil
}

// Elsewhere returns where the partitions of s went, as d shows it, and where those of the other disks go; nil without
// other disks.
func (o Others) Elsewhere(s, d *Source, g Goal) (*layout.Machine, error) {
	if len(o) == 0 {
		return nil, nil //nolint:nilnil // no machine is known
	}
	starts, _ := verify.Starts(s.Layout, d.Layout) // Verify reports their errors
	m, _, err := o.machine(s, starts, g)
	return m, err
}

// repeat finds the plan from where the partitions are.
func (s *Source) repeat(after *layout.Layout, m *layout.Machine) (*plan.Plan, error) {
	starts, err := verify.Starts(s.Layout, after)
	if err != nil {
		return nil, err
	}
	if err := s.malformed(); err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path(), err)
	}
	return at(s.Layout, s.Image.Disk, starts, after, m)
}

// at returns the plan that leads from a layout of a disk to these starts.
func at(
	before *layout.Layout, d disk.Disk, starts map[int]int64, after *layout.Layout, m *layout.Machine,
) (*plan.Plan, error) {
	if err := before.ReadGaps(d); err != nil {
		return nil, err
	}
	// A plain copy keeps a damaged table as it is.
	p, err := plan.At(before, starts, before.Damaged() && !after.Damaged())
	if err == nil && m == nil {
		m, err = verify.Elsewhere(before, after)
	}
	if err == nil {
		p.Join(before, m)
	}
	return p, err
}

// rounded reports whether a disk of want bytes that is to be rounded up somehow can have got bytes.
func rounded(got, want int64) bool {
	unit := min(units.Alignment(got), maxRound)
	return unit >= units.SectorSize && got == units.AlignUp(want, unit)
}

// intact checks the tables of a result.
func intact(got *image.Image) error {
	if got.Check == nil {
		return nil
	}
	issues, err := got.Check()
	if err != nil {
		return err
	}
	for _, i := range issues {
		if i.Effect > ondisk.Note {
			return fmt.Errorf("%w: %s", verify.ErrDifferent, i.Text)
		}
	}
	return nil
}
