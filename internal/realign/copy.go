package realign

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/verify"
)

// room refuses a copy that cannot fit, before the first byte, and returns the number of bytes that it needs. What the
// source has allocated is a quick estimate; only if that is too much are the zeros in it looked for.
func (j *Job) room(ctx context.Context, s *Source, view disk.Disk, o target) (need int64, err error) {
	free := o.Room()
	if need, err = disk.Stored(view); err != nil || withTables(need) <= free {
		return withTables(need), err
	}
	if o.Pack() != nil { // how much smaller data become is known only when they are compressed
		var stored int64
		for _, f := range s.Image.Files() {
			stored += f.Size
		}
		return withTables(min(need, stored)), nil
	}
	n := &counter{unit: o.Unit()}
	if _, err := diskcopy.Run(ctx, view, n, diskcopy.Options{Jobs: j.Jobs}); err != nil {
		return 0, err
	}
	if need = withTables(n.bytes); need > free {
		return 0, ondisk.In(ondisk.ErrOutput, "the copy needs %s (%d bytes) and %s (%d bytes) are free where DEST "+
			"goes; make room or choose another place", units.Format(need), need, units.Format(free), free)
	}
	return need, nil
}

// Cost is what a copy will read and write, in bytes.
type Cost struct {
	Read  int64 `json:"read_bytes"`  // of SOURCE, for the copy and, where it is a device, again to compare
	Write int64 `json:"write_bytes"` // at DEST, and read back; fewer if there are zeros among the data
	Need  int64 `json:"space_bytes"` // space at DEST
}

// Cost computes what a copy by a plan will read and write.
func (s *Source) Cost(p *plan.Plan) (c Cost, err error) {
	if c.Read, err = disk.Stored(p.Unused.View(s.Image.Disk)); err != nil {
		return c, err
	}
	if c.Write, err = disk.Stored(p.View(s.Image.Disk)); err != nil {
		return c, err
	}
	c.Need = withTables(c.Write)
	if s.readAgain() {
		c.Read *= 2
	}
	return c, nil
}

// withTables adds one percent for the tables of the container and of the file system.
func withTables(n int64) int64 { return n + n/100 }

// counter is a target that only counts what it would allocate.
type counter struct{ unit, bytes int64 }

func (c *counter) Unit() int64                            { return c.unit }
func (c *counter) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }

func (c *counter) Reserve(_, n int64) error {
	c.bytes += units.AlignUp(n, c.unit)
	return nil
}

// full says how much is missing when the space ran out under way: others write to the same file system.
func full(err error, need int64, room func() (free int64, err error)) error {
	if !sys.Full(err) {
		return err
	}
	free, freeErr := room()
	if freeErr != nil || free == store.UnknownRoom {
		return err
	}
	return fmt.Errorf("%w; the copy needs %s (%d bytes) and %s (%d bytes) are free beside what it has written",
		err, units.Format(need), need, units.Format(free), free)
}

// only returns a disk that has the bytes of d in ranges, and zeros elsewhere.
func only(d disk.Disk, ranges []disk.Range) disk.Disk {
	own := make([]disk.Piece, 0, len(ranges))
	for _, r := range ranges {
		own = append(own, disk.Piece{Range: r, Src: d, At: r.Off})
	}
	return disk.New(d.Size(), d.SectorSize(), disk.Pieces(d.Size(), own, nil))
}

// Since returns how many seconds have gone by, in tenths.
func Since(start time.Time) float64 { return math.Round(10*time.Since(start).Seconds()) / 10 }

// Progress receives how far the work is, phase by phase.
type Progress = diskcopy.Progress

// watched returns a progress that is never nil.
func watched(p Progress) Progress { return cmp.Or(p, Progress(diskcopy.Unwatched{})) }

// watch returns the progress of the work.
func (j *Job) watch() Progress { return watched(j.Progress) }

// finish completes the files and flushes so many bytes. How far that is, no system says.
func (j *Job) finish(o target, copied int64) error {
	j.watch().Begin(diskcopy.PhaseFlush, copied)
	err := o.Finish()
	if err == nil {
		j.watch().Add(copied)
	}
	return err
}

// Written is the result of a Job.
type Written struct {
	Format, Subformat string
	Files             []string // names, the one named DEST first
	Sums              []store.Sum
	Copied            int64   // bytes of data
	Took              float64 // seconds
	Notes             []ondisk.Issue
	Replaced          *exchange.Result // where the copy has the names of SOURCE
}

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
