package inplace

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
)

// committed returns a mover after a run that was killed after the commit, at its n-th call from the end.
func committed(t *testing.T, c simCase, n int) *mover {
	t.Helper()
	whole := newTrial(c, faulty{})
	_, err := whole.life(true, false)
	require.NoError(t, err)
	x := newTrial(c, faulty{})
	x.on.Power = whole.on.Calls - n
	_, _ = x.life(true, false)
	x.crash(true, nil)
	m, err := x.open(false)
	require.NoError(t, err)
	return m
}

// TestCommittedMoveIsCompared resumes moves whose tables are being written. Every byte is compared with the journal: if
// one was changed in between, in a piece or between pieces, the run fails, and the disk keeps its mark. Look gets the
// old and the new disk.
func TestCommittedMoveIsCompared(t *testing.T) {
	t.Parallel()
	for _, c := range simCases(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := 0
			for k := 1; k < 24; k++ {
				if m := committed(t, c, k); m.state() == behind {
					n = k
				}
			}
			require.Positive(t, n, "no call behind the commit")
			m := committed(t, c, n)
			m.Look = func(old, now disk.Disk) error {
				for d, want := range map[disk.Disk][]byte{old: c.old[:c.plan.OldSize], now: c.want[:c.plan.Size]} {
					got, err := ondisk.Bytes(d, 0, d.Size())
					require.NoError(t, err)
					require.Equal(t, want, got)
				}
				return nil
			}
			require.NoError(t, m.finish(t.Context()))

			p, places := m.plan, dests(m.plan.Pieces)
			repaired := append(p.dropped(), disk.Range{Len: markSize}) // zeros are written again
			for _, x := range p.Patches {
				repaired = append(repaired, x.Range())
			}
			changed := 0
			for _, r := range append(without(p.Size, dests(p.Pieces)), places...) {
				off := r.Off + r.Len/2
				if slices.ContainsFunc(repaired, disk.Range{Off: off, Len: 1}.Overlaps) {
					continue
				}
				m := committed(t, c, n)
				b := make([]byte, 1)
				require.NoError(t, ondisk.ReadFull(m.disk, b, off))
				b[0] ^= 1
				_, err := m.disk.WriteAt(b, off)
				require.NoError(t, err)
				require.ErrorIs(t, m.finish(t.Context()), errDiffers, "byte %d", off)
				marked, err := p.marks(m.disk)
				require.NoError(t, err)
				require.True(t, marked)
				changed++
			}
			require.Greater(t, changed, 1)
		})
	}
}

// TestUndoneMoveStays resumes a move that was undone, and whose journal still exists.
func TestUndoneMoveStays(t *testing.T) {
	t.Parallel()
	c := simCases(t)[0]
	x := newTrial(c, faulty{})
	x.on.Power = 20
	_, err := x.life(true, false)
	require.ErrorIs(t, err, disktest.ErrPower)
	x.crash(true, nil)
	for _, undo := range []bool{true, false, true} {
		want, err := x.life(false, undo)
		require.NoError(t, err)
		require.Equal(t, want, c.old)
		require.True(t, bytes.Equal(c.old, x.on.File("disk").Bytes()))
	}
}

// TestNothingToUndo makes calls fail while a move that had not begun is undone.
func TestNothingToUndo(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 2; n++ {
		x := newTrial(simCases(t)[0], faulty{})
		m, err := x.open(true)
		require.NoError(t, err)
		x.on.Fail = x.on.Calls + n
		require.ErrorIs(t, m.undo(t.Context()), disktest.ErrFault, "call %d", n)
	}
}

// A resume of a move that had moved nothing is no success: it is refused and changes nothing, and an undo removes the
// journal.
func TestResumeBeforeTheMove(t *testing.T) {
	t.Parallel()
	f := newOnFiles(t, false).middle()
	h, err := journal.Hold(f.path, "")
	require.NoError(t, err)
	blob := bytes.Clone(h.Plan())
	require.NoError(t, errors.Join(h.Remove(), h.Close()))
	f.put("vm.img", f.old) // the same file
	p, err := decodePlan(blob)
	require.NoError(t, err)
	d, err := gate.OpenFolder(f.dir)
	require.NoError(t, err)
	defer d.Close()
	h, err = journal.Begin(d, "vm.img", f.path, journal.InPlace, blob, p.area())
	require.NoError(t, err)
	require.NoError(t, h.Close())

	was := f.disk()
	err = f.again("resume", nil)
	r, ok := errors.AsType[*ondisk.Refusal](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, "unfinished", r.Code)
	require.Contains(t, r.Remedy, "trueup undo "+f.path)
	require.True(t, bytes.Equal(was, f.disk()))
	require.FileExists(t, f.path+journal.Suffix)
	require.NoError(t, f.again("undo", nil))
	require.True(t, bytes.Equal(f.old, f.disk()))
	require.NoFileExists(t, f.path+journal.Suffix)
}

// FuzzPlan decodes any bytes as the plan of a journal: an accepted plan names only files beside the disk, and each
// moved byte is in one stretch.
func FuzzPlan(f *testing.F) {
	p := &Plan{
		Version: planVersion, OldSize: 64 * sector, Size: 72 * sector, OldEnd: 64 * sector, End: 72 * sector,
		Chunk: 4 * sector, Direct: 1 << 20, Quick: 1 << 10,
		Pieces:  []disk.Shift{shift(0, 0, 2), shift(2, 4, 20), shift(24, 32, 10)},
		Patches: []disk.Patch{patch(440, "x"), patch(2*sector, "y")}, Saved: []Saved{{0, make([]byte, markSize)}},
		Sums: make([]diskcopy.Sum, 3),
	}
	b, err := p.encode()
	require.NoError(f, err)
	f.Add(b, int64(3))
	f.Fuzz(func(t *testing.T, b []byte, i int64) {
		p, err := decodePlan(b)
		if err != nil {
			return
		}
		m := &mover{plan: p}
		m.runs, m.steps = p.runs(i%2 == 1)
		if i < 0 || i >= m.steps {
			return
		}
		for _, many := range []int64{1, m.most(i, false)} {
			s := m.at(i, many)
			require.True(t, s.Len > 0 && s.Len <= many*p.Chunk, "%+v", s)
			require.True(t, min(s.From, s.To) >= markSize && s.Source().End() <= p.OldSize && s.Dest().End() <= p.Size,
				"%+v", s)
		}
		for _, r := range append(p.dropped(), p.covered()...) {
			require.True(t, r.Off >= markSize && r.Len > 0 && r.End() <= p.End, "%+v", r)
		}
	})
}

// FuzzRecord decodes any bytes as a record.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`m{"step":1,"pending":1,"half":1,"units":"AA=="}`))
	x := newTrial(simCase{
		chunk: 8, direct: 1 << 20, old: make([]byte, 48*sector), plan: &plan.Plan{
			OldSize: 48 * sector, Size: 56 * sector, Pieces: []disk.Shift{shift(0, 0, 3), shift(3, 8, 40)},
		},
	}, faulty{})
	m, err := x.open(true)
	require.NoError(f, err)
	_, err = m.disk.WriteAt(m.plan.mark(), 0)
	require.NoError(f, err)
	require.NoError(f, m.disk.Truncate(m.plan.End))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := open(m.plan, m.disk, fixed(b), quiet)
		if err == nil {
			require.True(t, m.step >= 0 && m.step <= m.steps, "%+v", m)
		}
	})
}

// fixed is a journal with one record.
type fixed []byte

func (l fixed) Record() []byte               { return l }
func (fixed) Put([]byte) error               { return nil }
func (fixed) WriteAt([]byte, int64) error    { return nil }
func (fixed) ReadAt(b []byte, _ int64) error { clear(b); return nil }
