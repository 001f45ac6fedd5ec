package inplace

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
)

// killed returns a move that was killed at a call, and the numbers of calls and reads of the next run.
func killed(t *testing.T, c simCase, at int, undo bool) (start func() *trial, calls, reads int) {
	t.Helper()
	start = func() *trial {
		x := newTrial(c, faulty{})
		x.on.Power = at
		_, _ = x.life(true, false)
		x.crash(true, nil)
		x.on.Calls, x.on.Reads = 0, 0
		return x
	}
	x := start()
	_, err := x.life(false, undo)
	require.NoError(t, err)
	return start, x.on.Calls, x.on.Reads
}

// pending returns calls of a move at which a kill leaves a stretch saved but not written.
func pending(t *testing.T, c simCase) (out []int) {
	t.Helper()
	whole := newTrial(c, faulty{})
	_, err := whole.life(true, false)
	require.NoError(t, err)
	last := int64(-1)
	for at := range whole.on.Calls {
		x := newTrial(c, faulty{})
		x.on.Power = at
		_, _ = x.life(true, false)
		x.crash(true, nil)
		j, err := journal.Open(x.on.File("journal"))
		if err != nil || len(j.Record()) == 0 {
			continue
		}
		var r record
		require.NoError(t, json.Unmarshal(j.Record()[1:], &r))
		if r.Pending > 0 && r.Step > last {
			out, last = append(out, at), r.Step
		}
	}
	require.NotEmpty(t, out)
	return out
}

// TestEachErrorIsReturned fails each call and each read of a run after a kill: the run returns that error, and is not
// considered complete.
func TestEachErrorIsReturned(t *testing.T) {
	t.Parallel()
	for _, i := range []int{0, 5} { // one grows, and one has data outside all pieces
		c := simCases(t)[i]
		whole := newTrial(c, faulty{})
		_, err := whole.life(true, false)
		require.NoError(t, err)
		for n := 1; n <= whole.on.Reads; n++ {
			x := newTrial(c, faulty{})
			x.on.FailRead = n + x.on.Reads
			_, err := x.life(true, false)
			require.ErrorIs(t, err, disktest.ErrFault, "%s, read %d", c.name, n)
		}
		at := pending(t, c)
		for _, undo := range []bool{false, true} {
			start, calls, reads := killed(t, c, at[len(at)-1], undo)
			for n := 1; n <= calls; n++ {
				x := start()
				x.on.Fail = n
				_, err := x.life(false, undo)
				require.ErrorIs(t, err, disktest.ErrFault, "%s, undo %v, call %d of %d", c.name, undo, n, calls)
			}
			for n := 1; n <= reads; n++ {
				x := start()
				x.on.FailRead = n
				if _, err := x.life(false, undo); x.on.Reads >= n {
					require.ErrorIs(t, err, disktest.ErrFault, "%s, undo %v, read %d of %d", c.name, undo, n, reads)
				}
			}
		}
	}
}

// TestPowerAfterAKill kills a move while a stretch is saved but not written, and cuts the power at each call of the
// next run. Nothing unflushed stays.
func TestPowerAfterAKill(t *testing.T) {
	t.Parallel()
	c := simCases(t)[0]
	all := pending(t, c)
	var s simulation
	for i, at := range []int{all[0], all[len(all)/2]} {
		start, calls, _ := killed(t, c, at, i > 0)
		for power := range min(calls, 24) {
			x := start()
			x.on.Power = power
			_, _ = x.life(false, i > 0)
			next := &trial{c: c, on: x.on.AfterCrash(nothing)}
			s.add(next.end(power%2 == 0), "killed at call %d, power at call %d of %d", at, power, calls)
		}
	}
	require.NoError(t, s.first)
}

// TestInterruptedSteps requires that a move with a cancelled context ends before the next stretch.
func TestInterruptedSteps(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	m, err := newTrial(simCases(t)[0], faulty{}).open(true)
	require.NoError(t, err)
	m.Progress = &interrupting{left: 1, cancel: cancel}
	require.ErrorIs(t, m.finish(ctx), context.Canceled)
	require.Equal(t, between, m.state())
	require.Equal(t, int64(1), m.step)
}

// TestRecordsThatAreRefused requires an error for records that no move writes.
func TestRecordsThatAreRefused(t *testing.T) {
	t.Parallel()
	x := newTrial(simCases(t)[0], faulty{})
	m, err := x.open(true)
	require.NoError(t, err)
	units, saved := make([]byte, m.plan.bitmap(m.at(0, 1).Len)), m.runs[1].first
	require.Equal(t, int64(3), m.most(saved, false))
	for why, r := range map[string]record{
		"":                         {Phase: moving, Pending: 1, Units: units},
		"another phase":            {Phase: 'x'},
		"a stretch in front":       {Phase: moving, Step: -1},
		"a stretch behind":         {Phase: moving, Step: m.steps + 1},
		"the last one, and saved":  {Phase: moving, Step: m.steps, Pending: 1, Units: units},
		"a half in front":          {Phase: moving, Half: -1},
		"a third half":             {Phase: moving, Half: 2},
		"too few units":            {Phase: moving, Pending: 1, Units: units[1:]},
		"more units than it has":   {Phase: moving, Pending: 1, Units: append([]byte{0}, units...)},
		"no units, but is pending": {Phase: undoing, Pending: 1},
		"fewer than none saved":    {Phase: moving, Pending: -1},
		"more than its piece has":  {Phase: moving, Step: saved, Pending: 4, Units: make([]byte, 4)},
		"more than a half holds":   {Phase: moving, Step: saved, Pending: 2, Units: []byte{0xff, 0xff}},
	} {
		err := r.check(m)
		if why == "" {
			require.NoError(t, err)
			continue
		}
		require.Error(t, err, why)
		b, err := json.Marshal(r)
		require.NoError(t, err)
		_, err = open(m.plan, m.disk, fixed(append([]byte{byte(r.Phase)}, b...)), quiet)
		require.Error(t, err, why)
	}
	for _, b := range []string{"", "m", "m{"} {
		_, err := open(m.plan, m.disk, fixed(b), quiet)
		require.ErrorIs(t, err, ondisk.ErrFormat, "%q", b)
	}
}

// lossy is a storage that loses the write at an offset, or fails one request for its holes.
type lossy struct {
	simDisk
	lost    int64
	extents int // number of answered requests before a failure; negative: all
}

func (d *lossy) WriteAt(b []byte, off int64) (int, error) {
	if off == d.lost {
		return len(b), nil
	}
	return d.simDisk.WriteAt(b, off)
}

func (d *lossy) Extent(off, limit int64) (disk.Extent, error) {
	if d.extents--; d.extents == -1 {
		return disk.Extent{}, disktest.ErrFault
	}
	return d.simDisk.Extent(off, limit)
}

// TestWritesThatAreLost loses the write of each patch in turn, and requires that the disk keeps its mark.
func TestWritesThatAreLost(t *testing.T) {
	t.Parallel()
	c := simCases(t)[0]
	for _, x := range c.plan.Patches {
		if x.Off < markSize {
			continue
		}
		m, err := newTrial(c, faulty{}).open(true)
		require.NoError(t, err)
		m.disk = &lossy{m.disk.(simDisk), x.Off, -1}
		require.ErrorIs(t, m.finish(t.Context()), errDiffers, "patch at byte %d", x.Off)
		require.NotEqual(t, after, m.state())
	}
	count := &lossy{lost: -1, extents: 1 << 20}
	m, err := newTrial(c, faulty{}).open(true)
	require.NoError(t, err)
	count.simDisk = m.disk.(simDisk)
	m.disk = count
	require.NoError(t, m.finish(t.Context()))
	for n := range 1<<20 - count.extents {
		m, err = newTrial(c, faulty{}).open(true)
		require.NoError(t, err)
		m.disk = &lossy{m.disk.(simDisk), -1, n}
		require.ErrorIs(t, m.finish(t.Context()), disktest.ErrFault, "question %d for holes", n)
	}
}

// solid is a storage without holes.
type solid struct{ simDisk }

func (solid) Extent(off, limit int64) (disk.Extent, error) {
	return disk.Extent{Range: disk.Range{Off: off, Len: limit}}, nil
}

// TestZerosAreRead fails each read of a move on a storage without holes, so that zeros are read, too.
func TestZerosAreRead(t *testing.T) {
	t.Parallel()
	c, reads := simCases(t)[0], 0
	for n := 0; n <= reads; n++ {
		x := newTrial(c, faulty{})
		m, err := x.open(true)
		require.NoError(t, err)
		m.disk = solid{m.disk.(simDisk)}
		if x.on.Reads = 0; n > 0 {
			x.on.FailRead = n
			require.ErrorIs(t, m.finish(t.Context()), disktest.ErrFault, "read %d of %d", n, reads)
			continue
		}
		require.NoError(t, m.finish(t.Context()))
		require.True(t, bytes.Equal(c.want, x.on.File("disk").Bytes()))
		reads = x.on.Reads
	}
	require.Greater(t, reads, 10)
}

// TestPiecesThatChangePlaces requires that a plan is refused if no order can move its pieces.
func TestPiecesThatChangePlaces(t *testing.T) {
	t.Parallel()
	c := simCase{plan: &plan.Plan{
		OldSize: 48 * sector, Size: 48 * sector,
		Pieces: []disk.Shift{shift(0, 0, 1), shift(20, 2, 10), shift(2, 20, 10)},
	}, old: make([]byte, 48*sector), chunk: 8, direct: 1}
	_, err := newTrial(c, faulty{}).open(true)
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
}

// TestPlansThatAreRefused requires that a journal is refused if its plan would read or write outside the disk.
func TestPlansThatAreRefused(t *testing.T) {
	t.Parallel()
	for why, change := range map[string]func(p *Plan){
		"":                   func(*Plan) {},
		"an earlier version": func(p *Plan) { p.Version = 3 },
		"a version to come":  func(p *Plan) { p.Version = planVersion + 1 },
		"a disk of no sector": func(p *Plan) {
			p.OldSize, p.OldEnd, p.End, p.Pieces, p.Sums = 511, 512, p.Size+1, nil, nil
		},
		"a disk that shrinks":    func(p *Plan) { p.OldSize, p.OldEnd = p.Size+1, p.Size+1 },
		"a disk beyond bounds":   func(p *Plan) { p.Size, p.End = 1<<62+1, 1<<62+1 },
		"an end in the disk":     func(p *Plan) { p.OldEnd, p.End = p.OldSize-1, p.Size-1 },
		"a long footer":          func(p *Plan) { p.OldEnd, p.End = p.OldSize+513, p.Size+513 },
		"two footers":            func(p *Plan) { p.OldEnd = p.OldSize + 512 },
		"short stretches":        func(p *Plan) { p.Chunk = 0 },
		"long stretches":         func(p *Plan) { p.Chunk = maxChunk + markSize },
		"odd stretches":          func(p *Plan) { p.Chunk++ },
		"direct at once":         func(p *Plan) { p.Direct = markSize - 1 },
		"quick at once":          func(p *Plan) { p.Quick = markSize - 1 },
		"nothing saved":          func(p *Plan) { p.Saved = nil },
		"another sector saved":   func(p *Plan) { p.Saved[0].Off = markSize },
		"half a sector saved":    func(p *Plan) { p.Saved[0].Bytes = p.Saved[0].Bytes[:256] },
		"a device with a file":   func(p *Plan) { p.Device = "/dev/sda" },
		"a digest too few":       func(p *Plan) { p.Sums = p.Sums[1:] },
		"an empty piece":         func(p *Plan) { p.Pieces[2].Len = 0 },
		"from in front":          func(p *Plan) { p.Pieces[0].From = -1 },
		"from behind the disk":   func(p *Plan) { p.Pieces[2].From = 55 * sector },
		"to an earlier piece":    func(p *Plan) { p.Pieces[2].To = 23 * sector },
		"to behind the disk":     func(p *Plan) { p.Pieces[2].To = 63 * sector },
		"to the first sector":    func(p *Plan) { p.Pieces[0] = shift(1, 0, 1) },
		"a patch of other bytes": func(p *Plan) { p.Patches[0].Old = nil },
		"an empty patch":         func(p *Plan) { p.Patches[0].Old, p.Patches[0].New = nil, nil },
		"patches in no order":    func(p *Plan) { p.Patches[1].Off = 440 },
		"a patch behind":         func(p *Plan) { p.Patches[1].Off = 72 * sector },
		"a patch across":         func(p *Plan) { p.Patches[0] = patch(511, "xy") },
		"saved behind the disk":  func(p *Plan) { p.Saved = append(p.Saved, Saved{64 * sector, []byte{1}}) },
		"pieces change places": func(p *Plan) {
			p.Pieces = []disk.Shift{shift(0, 0, 2), shift(20, 2, 10), shift(2, 20, 10)}
		},
	} {
		p := &Plan{
			Version: planVersion, OldSize: 64 * sector, Size: 72 * sector, OldEnd: 64 * sector, End: 72 * sector,
			Chunk: 4 * sector, Direct: 1 << 20, Files: []Part{{}},
			Pieces:  []disk.Shift{shift(0, 0, 2), shift(2, 4, 20), shift(24, 32, 10)},
			Patches: []disk.Patch{patch(440, "x"), patch(2*sector, "y")}, Saved: []Saved{{0, make([]byte, markSize)}},
			Sums: make([]diskcopy.Sum, 3),
		}
		change(p)
		b, err := p.encode()
		require.NoError(t, err)
		_, err = decodePlan(b)
		require.Equal(t, why == "", err == nil, "%q: %v", why, err)
	}
	_, err := decodePlan([]byte("{"))
	require.ErrorIs(t, err, ondisk.ErrFormat)
	_, err = ordered(make([]disk.Shift, maxRuns))
	require.NoError(t, err, "none of them moves")
	var many []disk.Shift
	for i := range int64(maxRuns + 1) {
		many = append(many, shift(2*i, 2*i+1, 1))
	}
	_, err = ordered(many)
	require.ErrorIs(t, err, ondisk.ErrLimit)
}

// TestDataBetweenPieces saves data outside all pieces: in runs, and up to a limit.
func TestDataBetweenPieces(t *testing.T) {
	t.Parallel()
	on := disktest.NewMedium()
	d := simDisk{on.File("disk")}
	_, err := d.WriteAt([]byte("first"), 0)
	require.NoError(t, err)
	_, err = d.WriteAt(bytes.Repeat([]byte("data"), 2*sector/4), 3*sector)
	require.NoError(t, err)
	_, err = d.WriteAt([]byte("more"), 8*sector)
	require.NoError(t, err)
	require.NoError(t, d.Truncate(12*sector))
	out, left, err := saveData(d, disk.Range{Len: 12 * sector}, []Saved{{}}, 4*sector)
	require.NoError(t, err)
	require.Zero(t, left)
	require.Len(t, out, 4)
	require.Equal(t, []int64{0, 3 * sector, 8 * sector}, []int64{out[1].Off, out[2].Off, out[3].Off})
	require.Len(t, out[2].Bytes, 2*sector)
	_, _, err = saveData(d, disk.Range{Len: 12 * sector}, []Saved{{}}, 4*sector-1)
	require.ErrorIs(t, err, ondisk.ErrLimit)
	_, _, err = saveData(d, disk.Range{Len: 13 * sector}, []Saved{{}}, maxSaved)
	require.Error(t, err, "the disk ends before")

	p := &Plan{OldEnd: 12 * sector}
	saved, err := p.save(d)
	require.NoError(t, err)
	require.Len(t, saved, 3)
	_, err = p.save(&lossy{d, -1, 0})
	require.ErrorIs(t, err, disktest.ErrFault, "where its holes are")
	on.FailRead = on.Reads + 1
	require.ErrorIs(t, p.notOld(d), disktest.ErrFault)
	on.FailRead = on.Reads + 2
	_, err = p.save(d)
	require.ErrorIs(t, err, disktest.ErrFault, "the second read")
}
