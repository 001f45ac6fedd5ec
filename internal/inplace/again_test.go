package inplace

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
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
			m.look = func(old, now disk.Disk) error {
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

// TestNothingToUndo fails calls of the undo of a move that had not begun.
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
	err = f.again("resume", func(a *Again) { a.Forward = true })
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
