//go:build !windows

package store

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// TestDiskOfAnyOffsets writes and clears ranges that are not whole sectors, on devices of both sizes of sectors: what
// lies beside them stays.
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

// stand returns a plain file in place of a device, by descriptors that can write, only read, and are closed. It takes
// reads, writes and holes, and refuses the ioctls of a block device.
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

// TestErrorsOfADevice has each call on a device fail in turn: the error names the call and the place, and no byte
// changes.
func TestErrorsOfADevice(t *testing.T) {
	t.Parallel()
	want := bytes.Repeat([]byte{0xa5}, 64<<10)
	file, whole, readOnly, closed := stand(t, want)
	write := func(d *Disk, n int, off int64) error {
		_, err := d.WriteAt(make([]byte, n+1)[1:], off) // not aligned as direct I/O needs it
		return err
	}
	read := func(off int64) error {
		_, err := on(whole, whole, false).ReadAt(make([]byte, 100), off)
		return err
	}
	neither, err := os.OpenFile("/proc/self/comm", os.O_RDWR, 0) // a file without holes, and no device
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

// TestHoleIsZeros gives space back where the system can punch holes.
func TestHoleIsZeros(t *testing.T) {
	t.Parallel()
	want := bytes.Repeat([]byte{0xa5}, 64<<10)
	file, whole, _, _ := stand(t, want)
	require.NoError(t, on(whole, whole, true).Zero(4096, 8192))
	clear(want[4096 : 4096+8192])
	now := disktest.ReadFile(t, file)
	require.True(t, bytes.Equal(want, now))
}

// A buffer of a read or a write serves the next one.
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
