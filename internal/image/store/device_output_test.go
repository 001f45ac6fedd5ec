//go:build !windows

package store

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/units"
)

// simulated is a device on a medium that loses its power.
type simulated struct{ *disktest.MediumFile }

func (s simulated) Zero(off, n int64) error {
	_, err := s.WriteAt(make([]byte, n), off)
	return err
}

// The edges of simulated devices are small, and little lies between them.
const (
	headBytes = 48 * units.KiB
	tailBytes = 16 * units.KiB
	simSize   = headBytes + 32*units.KiB + tailBytes
)

var simEdges = edges{headBytes, tailBytes}

// noise fills a disk from a seed, none of it zero.
func noise(seed byte) []byte {
	b := make([]byte, simSize)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	for i := range b {
		b[i] |= 1
	}
	return b
}

// wanted is the disk that is written: data in front, between, across both borders, and at the end; zeros elsewhere.
func wanted() []byte {
	out, data := make([]byte, simSize), noise(7)
	for _, r := range [][2]int64{
		{0, 8192},
		{headBytes - 4096, headBytes + 8192},
		{simSize - tailBytes - 8192, simSize - tailBytes + 4096},
		{simSize - 4096, simSize},
	} {
		copy(out[r[0]:r[1]], data[r[0]:r[1]])
	}
	return out
}

// copyTo does what a job does with a target.
func copyTo(o *DeviceOutput, want []byte) error {
	for off := 0; off < len(want); off += 4096 {
		unit := want[off : off+4096]
		if bytes.Count(unit, []byte{0}) == len(unit) {
			continue
		}
		if err := o.Reserve(int64(off), 4096); err != nil {
			return err
		}
		if _, err := o.WriteAt(unit, int64(off)); err != nil {
			return err
		}
	}
	if err := o.Finish(); err != nil {
		return err
	}
	img, err := o.Reopen()
	if err != nil {
		return err
	}
	got := make([]byte, simSize)
	if _, err := img.Disk.ReadAt(got, 0); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return errors.New("what is reopened differs")
	}
	return o.Publish()
}

// start puts old content onto a medium.
func start(t *testing.T) (*disktest.Medium, simulated, []byte) {
	t.Helper()
	m, old := disktest.NewMedium(), noise(1)
	f := m.File("device")
	_, err := f.WriteAt(old, 0)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	m.Calls = 0
	return m, simulated{f}, old
}

// crash writes the copy until the power is gone at a call, and returns what the device holds then, and whether the call
// was reached. lie leaves out all flushes.
func crash(t *testing.T, at int, lie bool, r *rand.Rand, share float64) (now, old []byte, reached bool) {
	t.Helper()
	m, f, old := start(t)
	m.Power = at
	m.Lie = func(string) bool { return lie }
	err := copyTo(newOutput("device", f, simSize, 512, simEdges), wanted())
	if err == nil {
		return f.Bytes(), old, false
	}
	require.ErrorIs(t, err, disktest.ErrPower)
	after := m.AfterCrash(disktest.Some(r, share))
	return after.File("device").Bytes(), old, true
}

// state names what a device holds: what was there, an unfinished copy, a complete one; or none of these.
func state(now, old []byte) string {
	switch {
	case bytes.Equal(now, old):
		return "old"
	case bytes.Equal(now[:512], image.Mark(512)):
		return "marked"
	case bytes.Equal(now, wanted()):
		return "complete"
	}
	return "broken"
}

// Wherever the power is lost, the device is as it was, marked, or complete.
func TestPowerCuts(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(16, 2))
	seen := map[string]int{}
	for at := 0; ; at++ {
		reached := false
		for _, share := range []float64{0, 0.5, 0.9, 1} {
			var now, old []byte
			now, old, reached = crash(t, at, false, r, share)
			s := state(now, old)
			require.NotEqual(t, "broken", s, "power lost at call %d", at)
			seen[s]++
		}
		if !reached {
			break
		}
	}
	require.Positive(t, seen["old"])
	require.Positive(t, seen["marked"])
	require.Greater(t, seen["complete"], 4, "also before the run has come to its end")
	t.Log(seen)
}

// The harness finds a copy that flushes nothing.
func TestPowerCutsWithoutFlushes(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(16, 3))
	broken := 0
	for at := 0; ; at++ {
		now, old, reached := crash(t, at, true, r, 0.9)
		if !reached {
			break
		}
		if state(now, old) == "broken" {
			broken++
		}
	}
	require.Positive(t, broken)
}

// altering changes a byte of what is read back.
type altering struct {
	simulated
	at int64
}

func (a *altering) ReadAt(p []byte, off int64) (int, error) {
	n, err := a.simulated.ReadAt(p, off)
	if i := a.at - off; i >= 0 && i < int64(n) && p[i] != 0 && !bytes.HasPrefix(p, []byte("trueup")) {
		p[i] ^= 1
	}
	return n, err
}

// Each part of the edges is read back, and a device on which one is wrong keeps the mark.
func TestEdgesAreProved(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]int64{"first sector": 100, "head": 4099, "tail": simSize - 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, f, old := start(t)
			o := newOutput("device", &altering{f, at}, simSize, 512, simEdges)
			require.ErrorContains(t, copyTo(o, wanted()), "the storage or memory of this machine is at fault")
			require.Equal(t, "marked", state(f.Bytes(), old))
			require.ErrorContains(t, o.Discard(), "holds an unfinished copy")
		})
	}
}

// A job that ends before its first byte leaves the device as it is, without an error.
func TestNothingBegun(t *testing.T) {
	t.Parallel()
	_, f, old := start(t)
	o := newOutput("device", f, simSize, 512, simEdges)
	require.NoError(t, o.Discard())
	require.Equal(t, "old", state(f.Bytes(), old))
}

// A device smaller than its edges, and one of zeros, are written as any other.
func TestSmallDevices(t *testing.T) {
	t.Parallel()
	for _, size := range []int64{
		4096, headBytes, headBytes + 8192, headBytes + tailBytes,
		headBytes + tailBytes + 4096,
	} {
		f := disktest.NewMedium().File("device")
		_, err := f.WriteAt(bytes.Repeat([]byte{0xee}, int(size)), 0)
		require.NoError(t, err)
		o := newOutput("device", simulated{f}, size, 4096, simEdges)
		require.NoError(t, o.Finish())
		require.NoError(t, o.Publish())
		require.True(t, bytes.Equal(make([]byte, size), f.Bytes()), "%d", size)
		require.NoError(t, o.Discard())
	}
}

// Each write, flush and read of a copy that fails ends it: the device is as it was, or marked, also when the power is
// lost behind that. The next run completes it.
func TestEachCallOfACopyFails(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(16, 4))
	whole, f, _ := start(t)
	require.NoError(t, copyTo(newOutput("device", f, simSize, 512, simEdges), wanted()))
	for _, reads := range []bool{false, true} {
		calls := whole.Calls
		if reads {
			calls = whole.Reads
		}
		require.Greater(t, calls, 3)
		for n := 1; n <= calls; n++ {
			m, f, old := start(t)
			if m.Reads = 0; reads {
				m.FailRead = n
			} else {
				m.Fail = n
			}
			o, at := newOutput("device", f, simSize, 512, simEdges), fmt.Sprintf("call %d, reads %v", n, reads)
			require.ErrorIs(t, copyTo(o, wanted()), disktest.ErrFault, at)
			require.ErrorContains(t, o.Discard(), "holds an unfinished copy", at)
			require.Contains(t, []string{"old", "marked"}, state(f.Bytes(), old), at)
			for _, share := range []float64{0, 0.5, 1} {
				after := m.AfterCrash(disktest.Some(r, share)).File("device")
				require.Contains(t, []string{"old", "marked"}, state(after.Bytes(), old), at)
			}
			require.NoError(t, copyTo(newOutput("device", f, simSize, 512, simEdges), wanted()), at)
			after := m.AfterCrash(disktest.Some(r, 0)).File("device")
			require.Equal(t, "complete", state(after.Bytes(), old), at)
		}
	}
}

// Each call of a copy without data that fails ends it, too.
func TestEachCallOfAnEmptyCopyFails(t *testing.T) {
	t.Parallel()
	whole, f, _ := start(t)
	require.NoError(t, newOutput("device", f, simSize, 512, simEdges).Finish())
	require.Greater(t, whole.Calls, 3)
	for n := 1; n <= whole.Calls; n++ {
		m, f, _ := start(t)
		m.Fail = n
		require.ErrorIs(t, newOutput("device", f, simSize, 512, simEdges).Finish(), disktest.ErrFault, "call %d", n)
	}
}

// What stood at the edges is gone durably before the first byte of data, and all data are durable before the edges.
func TestOrderOfFlushes(t *testing.T) {
	t.Parallel()
	nothing := func(string, int64) bool { return false }
	m, f, _ := start(t)
	o := newOutput("device", f, simSize, 512, simEdges)
	require.NoError(t, o.Reserve(headBytes, 4096))
	now := m.AfterCrash(nothing).File("device").Bytes()
	require.Equal(t, image.Mark(512), now[:512])
	require.Equal(t, make([]byte, headBytes-512), now[512:headBytes])
	require.Equal(t, make([]byte, tailBytes), now[simSize-tailBytes:])
	data := bytes.Repeat([]byte("data"), 1024)
	_, err := o.WriteAt(data, headBytes)
	require.NoError(t, err)
	require.NoError(t, o.Finish())
	now = m.AfterCrash(nothing).File("device").Bytes()
	require.Equal(t, append(data, make([]byte, simSize-tailBytes-headBytes-4096)...), now[headBytes:simSize-tailBytes])
}

// A kernel that does not read the new table is no reason to give the copy up, and is noted.
func TestTableIsNotRead(t *testing.T) {
	t.Parallel()
	_, f, _ := start(t)
	o := newOutput("device", f, simSize, 512, simEdges)
	o.reread = func() error { return disktest.ErrFault }
	require.NoError(t, copyTo(o, wanted()))
	require.Len(t, o.Notes(), 1)
	require.Equal(t, "dest-table-not-read", o.Notes()[0].Code)
}

// A disk fits on a device that is as large and has sectors of the same size.
func TestFits(t *testing.T) {
	t.Parallel()
	d := &Device{Path: "/dev/x", Size: 8192, Sector: 512}
	require.NoError(t, d.Fits(8192, 512))
	require.ErrorContains(t, d.Fits(8193, 512), "too small")
	require.ErrorContains(t, d.Fits(4096, 4096), "sectors of 4096")
}
