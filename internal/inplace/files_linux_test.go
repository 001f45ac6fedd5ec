package inplace

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// TestErrorsOfFiles has each call on a file fail: the error says which it was, and of which file.
func TestErrorsOfFiles(t *testing.T) {
	t.Parallel()
	fs, _, _ := twoFiles(t)
	for _, f := range fs.open {
		require.NoError(t, f.Close())
	}
	_, err := fs.WriteAt([]byte("x"), 0)
	require.ErrorContains(t, err, "write a: ")
	_, err = fs.ReadAt(make([]byte, 1), 0)
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorContains(t, fs.Zero(0, 1), "make a hole in a: ")
	require.ErrorContains(t, fs.Zero(2*units.MiB, 1), "write b: ")
	require.ErrorContains(t, fs.Truncate(5*units.MiB), "set size of b: ")
	require.ErrorContains(t, fs.Sync(), "sync a: ")
	require.ErrorIs(t, fs.apart(nil), unix.EBADF)
	require.ErrorIs(t, fs.Close(), os.ErrClosed)
}

// TestFilesOfOthers refuses a disk of which a program has a file open, or only mapped, to read.
func TestFilesOfOthers(t *testing.T) {
	t.Parallel()
	fs, dir, _ := twoFiles(t)
	parts := fs.parts
	require.NoError(t, fs.Close())
	d, err := gate.OpenFolder(dir)
	require.NoError(t, err)
	defer d.Close()
	for name, what := range map[string]string{"a": "open", "b": "mapped"} {
		f, err := os.Open(filepath.Join(dir, name))
		require.NoError(t, err)
		if _, known := sys.Of(f).Shared(); !known {
			t.Skip("the file system has no leases that count")
		}
		end := f.Close
		if what == "mapped" {
			b, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
			require.NoError(t, err)
			require.NoError(t, f.Close())
			end = func() error { return unix.Munmap(b) }
		}
		_, err = openFiles(d, "", parts, nil)
		require.ErrorIs(t, err, ondisk.ErrBusy, what)
		require.ErrorContains(t, err, fmt.Sprintf("%q", name))
		require.NoError(t, end())
		fs, err := openFiles(d, "", parts, nil)
		require.NoError(t, err, what)
		require.NoError(t, fs.Close())
	}
}

// TestOwnFilesAreNoOthers opens the disk of an image whose files this run reads.
func TestOwnFilesAreNoOthers(t *testing.T) {
	t.Parallel()
	fs, dir, _ := twoFiles(t)
	parts := fs.parts
	require.NoError(t, fs.Close())
	d, err := gate.OpenFolder(dir)
	require.NoError(t, err)
	defer d.Close()
	own, err := d.Open("a")
	require.NoError(t, err)
	defer own.Close()
	fs, err = openFiles(d, "", parts, nil)
	require.NoError(t, err)
	defer fs.Close()
	b := make([]byte, 4)
	_, err = own.ReadAt(b, 0)
	require.NoError(t, err)
	require.Equal(t, "data", string(b))
}
