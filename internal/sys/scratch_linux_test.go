package sys

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest/oddfs"
)

// A scratch file has no name, also where a file system makes no file without one. A name that stays is an error.
func TestScratch(t *testing.T) {
	behind := t.TempDir()
	names := func() int {
		entries, err := os.ReadDir(behind)
		require.NoError(t, err)
		return len(entries)
	}
	for _, folder := range []string{behind, oddfs.Mount(t, behind, oddfs.Manners{})} {
		f, err := Scratch(folder, "scratch")
		require.NoError(t, err)
		require.Zero(t, names())
		_, err = f.WriteAt([]byte("kept"), 512)
		require.NoError(t, err)
		require.NoError(t, Allocate(f, 4096))
		b := make([]byte, 4)
		_, err = f.ReadAt(b, 512)
		require.NoError(t, err)
		require.Equal(t, "kept", string(b))
		require.NoError(t, f.Close())
		_, err = Direct(f)
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.ErrorIs(t, Allocate(f, 4096), unix.EBADF)
		_, err = Scratch(filepath.Join(folder, "none"), "scratch")
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
	closed := oddfs.Mount(t, behind, oddfs.Manners{Fail: map[string]syscall.Errno{"opendir": syscall.EIO}})
	readOnly := t.TempDir()
	if err := unix.Mount("none", readOnly, "tmpfs", unix.MS_RDONLY, ""); err != nil {
		t.Skipf("a file system to read only cannot be mounted: %v", err)
	}
	defer func() { require.NoError(t, unix.Unmount(readOnly, unix.MNT_DETACH)) }()
	for folder, errno := range map[string]syscall.Errno{closed: syscall.EIO, readOnly: syscall.EROFS} {
		_, err := Scratch(folder, "scratch")
		require.Equal(t, &fs.PathError{Op: "open", Path: folder, Err: errno}, err, "the folder is named, not the file")
	}
	folder := oddfs.Mount(t, behind, oddfs.Manners{Fail: map[string]syscall.Errno{"unlink": syscall.EPERM}})
	_, err := Scratch(folder, "scratch")
	require.ErrorIs(t, err, fs.ErrPermission)
	require.Equal(t, 1, names())
	_, err = Scratch(folder, "scratch")
	require.ErrorIs(t, err, fs.ErrExist)
}
