package realign

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/sys"
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
	if diffs, err = j.same(ctx, p.View(s.Image.Disk), d.Image.Disk); err != nil || len(diffs) > 0 {
		return p, diffs, err
	}
	if err := verify.Promise(p, s.Layout, d.Layout); err != nil {
		return p, []Difference{{Text: err.Error()}}, nil //nolint:nilerr // the error is the result
	}
	if diffs, err = s.unexplained(p, p.View(s.Image.Disk), d.Layout); err != nil || len(diffs) > 0 {
		return p, diffs, err
	}
	for _, i := range slices.Concat(d.Damage, d.sectors("")) {
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

// readAgain reports whether the proof of a copy reads the source a second time. Digests of what was read while it was
// copied do, where the files of a source would show that others have written to them; a device does not, nor does NBD.
func (s *Source) readAgain() bool { return s.Image.Unseen() }

// otherBytes returns the error of a source that gave other bytes at a second reading, which found names.
func (s *Source) otherBytes(found string) error {
	remedy := "end what writes to the device"
	if IsRemote(s.Path()) {
		remedy = "end what writes to the export, or have the server export a snapshot"
	}
	return fmt.Errorf("%s: the disk %w: a second reading gave other bytes (%s); %s, and run again", s.Path(),
		ondisk.ErrChanged, found, remedy)
}

// pass keeps a large copy, which reads and writes need bytes, from pushing all else out of the machine's memory: more
// than half of that it does not take. Its proof then reads DEST from the storage.
func (j *Job) pass(s *Source, o target, need int64) {
	j.passes = 2*need > cmp.Or(j.memory, sys.Memory(), math.MaxInt64)/2
	if !j.passes {
		return
	}
	s.Image.Pass()
	if out, ok := o.(*store.Output); ok {
		out.Pass()
	}
}

// reread opens what was written a second time, checks its tables, and has it proved.
func (j *Job) reread(o target, prove func(got *image.Image) error) error {
	got, err := o.Reopen()
	if err != nil {
		return readBack(err)
	}
	defer got.Close()
	if j.passes {
		got.Uncache()
		got.Pass()
	}
	if err := intact(got); err != nil {
		return err
	}
	return prove(got)
}

// prove checks the result: its structures always, every byte unless the user does without. want is the digest of the
// bytes that were written; without it, the view is read again. A source that hides changes is always read again, and
// the digest then says whether the source or the copy changed.
func (j *Job) prove(
	ctx context.Context, s *Source, p *plan.Plan, view disk.Disk, got *image.Image, want *diskcopy.Sum,
) error {
	after, err := layout.Read(got.Disk, s.geometry())
	if err != nil {
		return readBack(err)
	}
	if err := verify.Promise(p, s.Layout, after); err != nil || !j.Full {
		return err
	}
	copied := got.Disk
	if want != nil && copied.Size() == view.Size() && !s.readAgain() {
		sum, err := j.digest(ctx, copied)
		if err != nil {
			return err
		}
		if sum == *want {
			return nil
		}
	}
	diffs, err := j.same(ctx, view, copied) // finds the byte
	if err == nil && want != nil && s.readAgain() {
		return j.blame(ctx, s, copied, *want, diffs)
	}
	switch {
	case err != nil:
		return err
	case len(diffs) > 0:
		return fmt.Errorf("%w from what was planned at byte %d (%s): %w", verify.ErrDifferent, diffs[0].Off,
			diffs[0].Text, errFaulty)
	case want != nil:
		return fmt.Errorf("%w: SOURCE or the copy gave other bytes when it was read again: %w", verify.ErrDifferent,
			errFaulty)
	}
	return nil
}

// blame returns nil without differences, and otherwise the error of the disk that changed: the copy, if it has not the
// digest of the bytes that were written, or the source.
func (j *Job) blame(ctx context.Context, s *Source, copied disk.Disk, want diskcopy.Sum, diffs []Difference) error {
	if len(diffs) == 0 {
		return nil
	}
	sum, err := j.digest(ctx, copied)
	switch {
	case err != nil:
		return err
	case sum == want:
		return s.otherBytes("the copy has the first ones: " + diffs[0].Text)
	}
	return fmt.Errorf("%w from what was written, at byte %d (%s): %w", verify.ErrDifferent, diffs[0].Off,
		diffs[0].Text, errFaulty)
}

// errFaulty names the cause of bytes that are not what was written.
var errFaulty = errors.New("the storage or memory of this machine is at fault; nothing was published")

// digest reads every byte of a disk.
func (j *Job) digest(ctx context.Context, d disk.Disk) (diskcopy.Sum, error) {
	if err := diskcopy.Begin(ctx, j.watch(), diskcopy.PhaseProve, 0, d); err != nil {
		return diskcopy.Sum{}, err
	}
	return diskcopy.Digest(ctx, d, diskcopy.Options{Jobs: j.Jobs, Progress: j.watch().Add})
}

// same compares every byte of two disks.
func (j *Job) same(ctx context.Context, want, got disk.Disk) ([]verify.Difference, error) {
	if want.Size() == got.Size() {
		if err := diskcopy.Begin(ctx, j.watch(), diskcopy.PhaseProve, 0, want, got); err != nil {
			return nil, err
		}
	}
	return verify.Same(ctx, want, got, verify.Options{Jobs: j.Jobs, Progress: j.watch().Add})
}
