//go:build !windows

package store

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// simulated is a device on a medium that loses its power.
type simulated struct{ *disktest.MediumFile }

func (s simulated) Zero(off, n int64) error {
	_, err := s.WriteAt(make([]byte, n), off)
	return err
}

// The edges of simulated devices are small, with little between them.
const (
	headBytes = 48 * units.KiB
	tailBytes = 16 * units.KiB
	simSize   = headBytes + 32*units.KiB + tailBytes
)

var simEdges = edges{headBytes, tailBytes}

// noise fills a disk with nonzero bytes from a seed.
func noise(seed byte) []byte {
	b := make([]byte, simSize)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	for i := range b {
		b[i] |= 1
	}
	return b
}

// wanted is the disk to write: data at the start, in between, across both borders, and at the end; zeros elsewhere.
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

// copyTo writes to a target like a job.
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

// start puts old content on a medium.
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

// crash writes the copy until the power is cut at a call, and returns the content of the device, and whether the call
// was reached. lie omits all flushes.
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

// state classifies the content of a device: the old one, an unfinished copy, a complete one, or none of these.
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

// At every loss of power, the device is unchanged, marked, or complete.
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

// The harness detects a copy that flushes nothing.
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

// altering changes a byte when read back.
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

// Each part of the edges is read back, and a device with a wrong one keeps the mark.
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

// A job that ends before its first byte leaves the device unchanged, without an error.
func TestNothingBegun(t *testing.T) {
	t.Parallel()
	_, f, old := start(t)
	o := newOutput("device", f, simSize, 512, simEdges)
	require.NoError(t, o.Discard())
	require.Equal(t, "old", state(f.Bytes(), old))
}

// Devices smaller than their edges, and zero disks, are written like any other.
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
		got, err := o.Reopen()
		require.NoError(t, err)
		zeros, err := ondisk.AllZero(got.Disk, disk.Range{Len: size})
		require.NoError(t, err)
		require.True(t, zeros, "%d", size)
		require.NoError(t, o.Publish())
		require.True(t, bytes.Equal(make([]byte, size), f.Bytes()), "%d", size)
		require.NoError(t, o.Discard())
	}
}

// Each failing write, flush and read of a copy ends it: the device is unchanged or marked, also after a loss of power.
// The next run completes it.
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

// Each failing call of a copy without data ends it, too.
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

// Old data at the edges are durably erased before the first byte of data, and all data are durable before the edges.
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

// If the kernel does not read the new table, the copy continues with a note.
func TestTableIsNotRead(t *testing.T) {
	t.Parallel()
	_, f, _ := start(t)
	o := newOutput("device", f, simSize, 512, simEdges)
	o.reread = func() error { return disktest.ErrFault }
	require.NoError(t, copyTo(o, wanted()))
	require.Len(t, o.Notes(), 1)
	require.Equal(t, "dest-table-not-read", o.Notes()[0].Code)
}

// A disk fits on a device that is at least as large, with sectors of the same size.
func TestFits(t *testing.T) {
	t.Parallel()
	d := &Device{Path: "/dev/x", Size: 8192, Sector: 512}
	require.NoError(t, d.Fits(8192, 512))
	require.ErrorContains(t, d.Fits(8193, 512), "too small")
	require.ErrorContains(t, d.Fits(4096, 4096), "sectors of 4096")
}

// TestDiskOfAnyOffsets writes and clears ranges that are not whole sectors, on devices with both sector sizes: adjacent
// bytes stay.
func TestDiskOfAnyOffsets(t *testing.T) {
	for _, sector := range []string{"512", "4096"} {
		t.Run(sector, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "device")
			want := make([]byte, 3<<20)
			r := rand.NewChaCha8([32]byte{1})
			_, _ = r.Read(want)
			require.NoError(t, os.WriteFile(file, want, 0o600))
			d, err := OpenDisk(disktest.LoopDevice(t, file, "--sector-size", sector))
			require.NoError(t, err)
			defer d.Close()
			require.Equal(t, file, d.ID)
			x, err := d.Disk()
			require.NoError(t, err)
			defer x.Close()
			require.Equal(t, int64(len(want)), x.End())
			require.NoError(t, x.Truncate(x.End()))
			require.Error(t, x.Truncate(x.End()+512))
			rnd := rand.New(r)
			for range 60 {
				n := 1 + rnd.Int64N([]int64{40, 5000, 1 << 20}[rnd.IntN(3)])
				off := rnd.Int64N(x.End() - n)
				if rnd.IntN(2) == 0 {
					require.NoError(t, x.Zero(off, n))
					clear(want[off : off+n])
				} else {
					b := make([]byte, n)
					_, _ = r.Read(b)
					_, err := x.WriteAt(b, off)
					require.NoError(t, err)
					copy(want[off:], b)
				}
				got := make([]byte, n)
				_, err := x.ReadAt(got, off)
				require.NoError(t, err)
				require.Equal(t, want[off:off+n], got)
			}
			require.NoError(t, x.Sync())
			now := disktest.ReadFile(t, file)
			require.Equal(t, want, now)
		})
	}
}

// stand returns a plain file in place of a device, with descriptors that can write, only read, and are closed. It
// supports reads, writes and holes, but no ioctls of a block device.
func stand(t *testing.T, content []byte) (name string, whole, readOnly, closed *os.File) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "device")
	require.NoError(t, os.WriteFile(name, content, 0o600))
	open := func(flag int) *os.File {
		f, err := os.OpenFile(name, flag, 0)
		require.NoError(t, err)
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	whole, readOnly, closed = open(os.O_RDWR), open(os.O_RDONLY), open(os.O_RDWR)
	require.NoError(t, closed.Close())
	return name, whole, readOnly, closed
}

// on returns a disk of 64 KiB on the descriptors of a device.
func on(write, read *os.File, discard bool) *Disk {
	b := &blockdev{path: "device", file: write, read: read, discard: discard, stop: func() error { return nil }}
	return &Disk{b, &Device{Path: "device", Sector: 512, Size: 64 << 10}, "device"}
}

// TestErrorsOfADevice fails each call on a device in turn: the error names the call and the place, and no byte changes.
func TestErrorsOfADevice(t *testing.T) {
	t.Parallel()
	want := bytes.Repeat([]byte{0xa5}, 64<<10)
	file, whole, readOnly, closed := stand(t, want)
	write := func(d *Disk, n int, off int64) error {
		_, err := d.WriteAt(make([]byte, n+1)[1:], off) // not aligned for direct I/O
		return err
	}
	read := func(off int64) error {
		_, err := on(whole, whole, false).ReadAt(make([]byte, 100), off)
		return err
	}
	neither, err := os.OpenFile("/proc/self/comm", os.O_RDWR, 0) // a file without holes, not a device
	require.NoError(t, err)
	defer neither.Close()
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"neither hole nor discard", on(neither, closed, true).Zero(512, 1024), "inappropriate ioctl for device"},
		{"read around bytes", write(on(whole, closed, false), 100, 700), "read back device at byte 512"},
		{"write around bytes", write(on(readOnly, whole, false), 100, 700), "write device at byte 512"},
		{"write", write(on(readOnly, closed, false), 1024, 1024), "write device at byte 1024"},
		{"zeros", on(whole, whole, false).Zero(512, 1024), "write zeros to device at byte 512"},
		{"zeros in a sector", on(readOnly, whole, false).Zero(520, 8), "write device at byte 512"},
		{"hole", on(readOnly, whole, true).Zero(512, 1024), "write zeros to device at byte 512"},
		{"read past the end", read(64 << 10), "read back device at byte 65536"},
		{"flush", on(closed, whole, false).Sync(), "flush device"},
		{"open for the proof", on(closed, nil, false).open(), "read back device at byte 0: no such file"},
		{"open after a discard", on(closed, nil, true).rezero(0, 512), "read back device at byte 0: no such file"},
		{"read after a discard", on(whole, closed, true).rezero(512, 512), "read back device at byte 512"},
		{"zeros after a discard", on(whole, whole, true).rezero(512, 512), "inappropriate ioctl for device"},
	} {
		require.ErrorContains(t, c.err, c.want, c.name)
	}
	now := disktest.ReadFile(t, file)
	require.True(t, bytes.Equal(want, now), "a call that failed has changed bytes")
}

// TestHoleIsZeros frees space if the system can punch holes.
func TestHoleIsZeros(t *testing.T) {
	t.Parallel()
	want := bytes.Repeat([]byte{0xa5}, 64<<10)
	file, whole, _, _ := stand(t, want)
	require.NoError(t, on(whole, whole, true).Zero(4096, 8192))
	clear(want[4096 : 4096+8192])
	now := disktest.ReadFile(t, file)
	require.True(t, bytes.Equal(want, now))
}

// A buffer of a read or a write is reused by the next one.
func TestBuffersAreUsedAgain(t *testing.T) {
	if disktest.Raced {
		t.Skip("the race detector has pools forget some of their buffers")
	}
	_, whole, _, _ := stand(t, make([]byte, 64<<10))
	d, p := on(whole, whole, false), make([]byte, 513)[1:]
	require.Less(t, disktest.Allocated(func() {
		for range 20 {
			_, err := d.ReadAt(p, 0)
			require.NoError(t, err)
			_, err = d.blockdev.WriteAt(p, 0)
			require.NoError(t, err)
		}
	}), int64(8<<20), "one has 1 MiB")
}
