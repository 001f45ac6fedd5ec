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

// room returns the number of bytes that a copy needs. If the copy cannot fit, it returns an error before the first byte
// is written. The allocated size of the source is a quick estimate. Only if it is too large, room reads the data to
// find zeros.
func (j *Job) room(ctx context.Context, s *Source, view disk.Disk, o target) (need int64, err error) {
	free := o.Room()
	if need, err = disk.Stored(view); err != nil || withTables(need) <= free {
		return withTables(need), err
	}
	if o.Pack() != nil { // the compressed size is unknown before compression
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
		return 0, ondisk.In(ondisk.ErrOutput, "the copy needs %s (%d bytes) and %s (%d bytes) are free in the folder "+
			"of DEST; make room or choose another folder", units.Format(need), need, units.Format(free), free)
	}
	return need, nil
}

// Cost is the number of bytes that a copy reads and writes.
type Cost struct {
	Read  int64 `json:"read_bytes"`  // from SOURCE, for the copy, and for the comparison if it is a device
	Write int64 `json:"write_bytes"` // to DEST, and read back; less if the data contain zeros
	Need  int64 `json:"space_bytes"` // at DEST
}

// Cost returns the bytes that a copy by plan p reads and writes, and the space that it needs.
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

// counter is a target that only counts the bytes it would allocate.
type counter struct{ unit, bytes int64 }

func (c *counter) Unit() int64                            { return c.unit }
func (c *counter) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }

func (c *counter) Reserve(_, n int64) error {
	c.bytes += units.AlignUp(n, c.unit)
	return nil
}

// full adds the required and the free space to an error of a full file system, which other programs may have filled
// during the copy.
func full(err error, need int64, room func() (free int64, err error)) error {
	if !sys.Full(err) {
		return err
	}
	free, freeErr := room()
	if freeErr != nil || free == store.UnknownRoom {
		return err
	}
	return fmt.Errorf("%w; the copy needs %s (%d bytes) and %s (%d bytes) are free, without the part already written",
		err, units.Format(need), need, units.Format(free), free)
}

// only returns a disk with the bytes of d in ranges, and zeros elsewhere.
func only(d disk.Disk, ranges []disk.Range) disk.Disk {
	own := make([]disk.Piece, 0, len(ranges))
	for _, r := range ranges {
		own = append(own, disk.Piece{Range: r, Src: d, At: r.Off})
	}
	return disk.New(d.Size(), d.SectorSize(), disk.Pieces(d.Size(), own, nil))
}

// Since returns the elapsed time in seconds, rounded to tenths.
func Since(start time.Time) float64 { return math.Round(10*time.Since(start).Seconds()) / 10 }

// Progress receives the progress of each phase.
type Progress = diskcopy.Progress

// watched returns a progress that is never nil.
func watched(p Progress) Progress { return cmp.Or(p, Progress(diskcopy.Unwatched{})) }

// watch returns the progress of the job.
func (j *Job) watch() Progress { return watched(j.Progress) }

// finish completes the files and flushes copied bytes. No system reports the progress of a flush.
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
	Files             []string // file names; the file named DEST is first
	Sums              []store.Sum
	Copied            int64   // bytes of data
	Took              float64 // seconds
	Notes             []ondisk.Issue
	Replaced          *exchange.Result // set if the copy got the names of SOURCE
}

// Difference is a location at which a copy differs from the expected result.
type Difference = verify.Difference

// Verify derives the plan from s and d, and checks d against it: every byte, its structures, and its container. m has
// the other disks of the machine, if known. Without such a plan p is nil, and a difference reports that.
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

// again rereads one sector of each difference if a disk cannot show changes. It returns an error if a difference is
// gone.
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
	now, of, err := s.inSectors(p)
	if err != nil {
		return err
	}
	view := of.View(now.Image.Disk)
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

// verify is Verify for disks that do not change.
func (j *Job) verify(
	ctx context.Context, s, d *Source, m *layout.Machine,
) (p *plan.Plan, diffs []Difference, err error) {
	if p, err = j.planOf(s, d, m); errors.Is(err, verify.ErrDifferent) || errors.Is(err, plan.ErrNoPlan) {
		text := err.Error()
		if want, got := s.sectorSize(), d.sectorSize(); got != want {
			text += fmt.Sprintf(" (the disk has sectors of %d bytes, not %d: for a raw SOURCE, give --sector-size)",
				got, want)
		}
		return nil, []Difference{{Text: text}}, nil
	}
	if err != nil {
		return nil, nil, err
	}
	now, of, err := s.inSectors(p)
	if errors.Is(err, ondisk.ErrUnsupported) || errors.Is(err, ondisk.ErrLimit) {
		return p, []Difference{{Text: err.Error()}}, nil
	} else if err != nil {
		return p, nil, err
	}
	view := of.View(now.Image.Disk)
	if diffs, err = j.same(ctx, view, d.Image.Disk); err != nil || len(diffs) > 0 {
		return p, diffs, err
	}
	if j.Guest != nil { // the layout is the guest's now, but not the container
		if err := intact(d.Image); errors.Is(err, verify.ErrDifferent) {
			return p, []Difference{{Text: err.Error()}}, nil
		} else if err != nil {
			return p, nil, err
		}
		return p, nil, nil
	}
	if err := verify.Promise(of, now.Layout, d.Layout); err != nil {
		return p, []Difference{{Text: err.Error()}}, nil //nolint:nilerr // the error is the result
	}
	if diffs, err = now.unexplained(of, view, d.Layout); err != nil || len(diffs) > 0 {
		return p, diffs, err
	}
	for _, i := range slices.Concat(d.Damage, d.sectors(Goal{})) {
		// A copy has no such issue when it is written. Its name was the user's choice, and all its bytes have been
		// compared.
		if i.Effect >= ondisk.Refuse && i.Code != image.CodeMisnamed {
			diffs = append(diffs, Difference{Text: i.Text})
		}
	}
	return p, diffs, nil
}

// planOf derives the plan of s whose result d can be, with the size and sectors of d.
func (j *Job) planOf(s, d *Source, m *layout.Machine) (p *plan.Plan, err error) {
	if j.Guest != nil { // the table of DEST is the guest's now
		p = j.Guest.Plan
	} else if p, err = s.repeat(d.Layout, m); err != nil {
		return nil, err
	}
	if j.SkipFree {
		if p.Unused, err = s.unused(); err != nil {
			return nil, err
		}
	}
	size := d.Image.Disk.Size()
	if d.Image.OnDevice() { // the disk fills it, so the table in other sectors has that room
		p.Grow(s.Layout, size)
	}
	if n := d.sectorSize(); n != s.sectorSize() && j.Guest == nil {
		s.count(p, n)
	}
	if rounded(size, p.Size) { // by --to …,align=SIZE
		p.Grow(s.Layout, size)
	}
	return p, nil
}

// Elsewhere returns the new partition offsets of s, as found in d, and of the other disks, or nil without other disks.
func (o Others) Elsewhere(s, d *Source, g Goal) (*layout.Machine, error) {
	if len(o) == 0 {
		return nil, nil //nolint:nilnil // no machine is known
	}
	starts, _ := verify.Starts(s.Layout, d.Layout) // Verify reports their errors
	m, _, err := o.machine(s, starts, g)
	return m, err
}

// repeat derives the plan from the present partition offsets.
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

// at returns the plan that moves the partitions of a layout to starts.
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

// rounded reports whether rounding up want bytes to some unit can give got bytes.
func rounded(got, want int64) bool {
	unit := min(units.Alignment(got), maxRound)
	return unit >= units.SectorSize && got == units.AlignUp(want, unit)
}

// intact checks the tables of a written image.
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

// readAgain reports whether verifying a copy reads the source a second time. Otherwise digests computed during the copy
// suffice, because the files of a source show writes of others. A device or an NBD export does not show them.
func (s *Source) readAgain() bool { return s.Image.Unseen() }

// otherBytes returns the error of a source with other bytes at a second reading. found describes the difference.
func (s *Source) otherBytes(found string) error {
	remedy := "stop the program that writes to the device"
	if IsRemote(s.Path()) {
		remedy = "stop the program that writes to the export, or export a snapshot"
	}
	return fmt.Errorf("%s: the disk %w: a second reading returned other bytes (%s); %s, and run again", s.Path(),
		ondisk.ErrChanged, found, remedy)
}

// pass makes a large copy drop its data from memory, because they would displace everything else. A copy reads need
// bytes and writes as many; it is large if both together exceed half of the memory. The verification then reads DEST
// from the storage.
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

// reread opens the written image again, checks its tables, and calls prove.
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

// prove verifies the result: its structures always, and every byte with Full. want is the digest of the written bytes;
// without it, prove reads the view again. It always rereads a source that cannot show changes, and then uses the digest
// to find out whether the source or the copy changed.
func (j *Job) prove(ctx context.Context, x planned, got *image.Image, want *diskcopy.Sum) error {
	after, err := layout.Read(got.Disk, x.geometry())
	if err != nil {
		return readBack(err)
	}
	if err := verify.Promise(x.plan, x.Layout, after); err != nil || !j.Full {
		return err
	}
	copied := got.Disk
	if want != nil && copied.Size() == x.view.Size() && !x.readAgain() {
		sum, err := j.digest(ctx, copied)
		if err != nil {
			return err
		}
		if sum == *want {
			return nil
		}
	}
	diffs, err := j.same(ctx, x.view, copied) // finds the byte
	if err == nil && want != nil && x.readAgain() {
		return j.blame(ctx, x.Source, copied, *want, diffs)
	}
	switch {
	case err != nil:
		return err
	case len(diffs) > 0:
		return fmt.Errorf("%w from the plan at byte %d (%s): %w", verify.ErrDifferent, diffs[0].Off,
			diffs[0].Text, errFaulty)
	case want != nil:
		return fmt.Errorf("%w: SOURCE or the copy returned other bytes at a second reading: %w", verify.ErrDifferent,
			errFaulty)
	}
	return nil
}

// blame returns nil without differences. Otherwise it returns the error of the disk that changed: the copy if its
// digest differs from the written bytes, else the source.
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
	return fmt.Errorf("%w from the bytes written, at byte %d (%s): %w", verify.ErrDifferent, diffs[0].Off,
		diffs[0].Text, errFaulty)
}

// errFaulty is the cause of a copy that differs from the written bytes.
var errFaulty = errors.New("storage or memory of this machine is faulty; nothing was published")

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
	o := verify.Options{Jobs: j.Jobs, Progress: j.watch().Add}
	if g := j.Guest; g != nil {
		o.Except, o.Excepted = g.written, func(n int64) { g.Differ += n }
	}
	return verify.Same(ctx, want, got, o)
}

// Guest is a guest that wrote to the copy while a persistent bitmap of the image recorded its writes.
type Guest struct {
	Plan       *Plan // of the copy: the table of DEST is the guest's
	Bitmap     string
	Consistent bool  // otherwise the bitmap is unknown, and any byte may be the guest's
	Written    int64 // bytes in the bitmap
	Differ     int64 // bytes of the sectors that differ from the planned disk and may be the guest's

	written []disk.Range
}

// Proved reports whether each difference from the planned disk is known to be a write of the guest.
func (g *Guest) Proved() bool { return g == nil || g.Consistent || g.Differ == 0 }

// ReadGuest reads the bitmap with a name from a copy.
func (s *Source) ReadGuest(bitmap string) (*Guest, error) {
	if s.Image.Bitmap == nil {
		return nil, ondisk.In(ondisk.ErrUnsupported, "%s: %s images have no bitmaps; only qcow2 has", s.Path(),
			s.Image.Format)
	}
	b, err := s.Image.Bitmap(bitmap)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path(), err)
	}
	g := &Guest{Bitmap: bitmap, Consistent: b.Consistent, written: b.Written}
	if !b.Consistent {
		g.written = []disk.Range{{Len: s.Image.Disk.Size()}}
		return g, nil
	}
	for _, r := range b.Written {
		g.Written += r.Len
	}
	return g, nil
}
