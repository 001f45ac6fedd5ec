package inplace

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// TestPartsThatAreRefused requires an error for disks with bytes where no move may write.
func TestPartsThatAreRefused(t *testing.T) {
	t.Parallel()
	f := newOnFiles(t, false)
	img := imagetest.Open(t, f.path)
	_, err := partsOf(img, sector)
	require.ErrorContains(t, err, "-512 bytes after the end of the disk")
	other := imagetest.Open(t, f.path)
	files := make([]*gate.File, maxParts+1)
	for i := range files {
		name := fmt.Sprintf("part%d", i)
		f.put(name, make([]byte, sector))
		files[i], err = img.Dir.Open(name)
		require.NoError(t, err)
		defer files[i].Close()
	}
	for says, run := range map[string]func(off int64) (disk.Run, error){
		disktest.ErrFault.Error(): func(int64) (disk.Run, error) { return disk.Run{}, disktest.ErrFault },
		"are in no file": func(int64) (disk.Run, error) {
			return disk.Run{Len: sector, Src: bytes.NewReader(f.old)}, nil
		},
		"is not in the folder of the disk": func(int64) (disk.Run, error) {
			return disk.Run{Len: sector, Src: other.Handles[0]}, nil
		},
		"holds two stretches of the disk": func(off int64) (disk.Run, error) {
			return disk.Run{Len: sector, Src: img.Handles[0], Off: off}, nil
		},
		"more than 256 stretches": func(off int64) (disk.Run, error) {
			return disk.Run{Len: sector, Src: files[off/sector]}, nil
		},
	} {
		img.Disk = disk.New((maxParts+1)*sector, sector, run)
		_, err := partsOf(img, 0)
		require.ErrorContains(t, err, says)
	}
	img.Disk = disk.New(2*sector, sector, func(off int64) (disk.Run, error) {
		return disk.Run{Len: sector, Src: files[off/sector]}, nil
	})
	parts, err := partsOf(img, 0)
	require.NoError(t, err)
	require.Len(t, parts, 2)
}

// twoFiles opens a disk in two files of 2 MiB, the first of which has holes.
func twoFiles(t *testing.T) (fs *files, dir string, want []byte) {
	t.Helper()
	dir, want = t.TempDir(), make([]byte, 4*units.MiB)
	parts := make([]Part, 2)
	for i, name := range []string{"a", "b"} {
		stored := want[int64(i)*2*units.MiB:][:int64(i+1)*units.MiB]
		copy(stored, bytes.Repeat([]byte("data"), len(stored)/4))
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, stored, 0o600))
		require.NoError(t, os.Truncate(path, 2*units.MiB))
		st, err := sys.Stat(path)
		require.NoError(t, err)
		parts[i] = Part{disk.Range{Off: int64(i) * 2 * units.MiB, Len: 2 * units.MiB}, name, 0, st.Inode}
	}
	d, err := gate.OpenFolder(dir)
	require.NoError(t, err)
	defer d.Close()
	for i, name := range []string{"a", "b"} {
		st, err := sys.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		_, err = openFiles(d, "", parts, map[sys.ID]string{st.ID: "loop7"})
		require.ErrorContains(t, err, "in use by the loop device loop7", "%d", i)
	}
	fs, err = openFiles(d, "", parts, nil)
	require.NoError(t, err)
	return fs, dir, want
}

// TestFilesOfADisk reads and writes across two files. Zeros become a hole if the file has some already.
func TestFilesOfADisk(t *testing.T) {
	disktest.OnUnix(t, "locks")
	t.Parallel()
	fs, dir, want := twoFiles(t)
	for _, name := range []string{"a", "b"} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR, 0)
		require.NoError(t, err)
		defer f.Close()
		require.True(t, sys.Locked(sys.FromOS(f).Lock(sys.Shared)), name)
		for _, b := range gate.QEMUBytes {
			locked, err := sys.FromOS(f).LockedByte(b)
			require.NoError(t, err)
			require.True(t, locked, "%s, byte %d", name, b)
		}
	}
	require.Equal(t, []bool{true, false}, fs.holes)
	write := func(off int64, b []byte) {
		_, err := fs.WriteAt(b, off)
		require.NoError(t, err)
		copy(want[off:], b)
	}
	write(2*units.MiB-100, bytes.Repeat([]byte{7}, 200))
	write(4*units.MiB-10, []byte("end"))
	hole := func(off int64) bool {
		e, err := fs.Extent(off, 4*units.KiB)
		require.NoError(t, err)
		return e.Zero
	}
	require.False(t, hole(units.MiB/2))
	require.NoError(t, fs.Zero(units.MiB/2, 2*units.MiB))
	require.True(t, hole(units.MiB/2))
	clear(want[units.MiB/2 : 5*units.MiB/2])
	got := make([]byte, len(want))
	require.NoError(t, ondisk.ReadFull(fs, got, 0))
	require.True(t, bytes.Equal(want, got))
	st, err := sys.FromOS(fs.open[0]).Stat()
	require.NoError(t, err)
	require.Less(t, st.Allocated, units.MiB, "what was written is a hole now")
	require.NoError(t, fs.Truncate(5*units.MiB))
	require.Equal(t, 5*units.MiB, fs.End())
	st, err = sys.Stat(filepath.Join(dir, "b"))
	require.NoError(t, err)
	require.Equal(t, 3*units.MiB, st.Size)
	require.False(t, hole(7*units.MiB/2))
	require.NoError(t, fs.Truncate(3*units.MiB))
	require.NoError(t, fs.Truncate(5*units.MiB))
	require.True(t, hole(7*units.MiB/2))
	require.NoError(t, fs.Sync())
	require.NoError(t, fs.Close())
}
