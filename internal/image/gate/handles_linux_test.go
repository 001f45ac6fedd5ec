package gate

import (
	"errors"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/ondisk"
)

// What fails about an open file is not taken for a change of it, and says what it was. It runs alone: the number of a
// descriptor that is closed twice may be another test's by then.
func TestCallsThatFailOnAnOpenFile(t *testing.T) {
	_, files := manyFiles(t, maxHandles+1)
	require.Nil(t, files[1].open, "it has given its place to the last one")
	require.NoError(t, files[2].open.Close())
	_, err := files[1].ReadAt(make([]byte, 8), 0)
	require.ErrorIs(t, err, unix.EBADF, "the one that gives its place cannot be closed")
	files[6].used.Store(0)
	require.NoError(t, files[6].open.Close())
	_, err = files[6].dir.Open(files[0].name)
	require.ErrorIs(t, err, unix.EBADF, "nor can it for one that is opened first")

	require.NoError(t, files[3].open.Close())
	err = files[3].Unchanged()
	require.ErrorIs(t, err, unix.EBADF)
	require.NotErrorIs(t, err, ondisk.ErrChanged)
	_, err = files[3].ReadAt(make([]byte, 8), 0)
	require.ErrorIs(t, err, unix.EBADF)
	require.NotErrorIs(t, err, ondisk.ErrChanged)
	all := &Opened{Handles: files[3:4]}
	require.ErrorIs(t, all.CloseFiles(), unix.EBADF)

	require.NoError(t, files[4].shut())
	files[4].Info.Mode |= fs.ModeNamedPipe
	_, err = files[4].ReadAt(make([]byte, 8), 0)
	require.ErrorIs(t, err, ondisk.ErrChanged, "a number of an inode that is used again")

	d, err := OpenFolder(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, d.Close())
	_, err = d.Again()
	require.ErrorIs(t, err, unix.EBADF)
	_, err = d.Names(func(string) bool { return true })
	require.ErrorIs(t, err, unix.EBADF)
	require.ErrorIs(t, (&Opened{Further: []*Folder{d}}).CloseFiles(), unix.EBADF)
}

// A device that no driver serves cannot be opened, and keeps no place among the open files.
func TestDeviceWithoutDriver(t *testing.T) {
	t.Parallel()
	d, path := openedFolder(t)
	// Spec: Linux, Documentation/admin-guide/devices.txt: 240 to 254 are for local use.
	if err := unix.Mknod(filepath.Join(path, "device"), unix.S_IFBLK|0o600, int(unix.Mkdev(240, 4095))); err != nil {
		t.Skipf("no device can be made here: %v", err)
	}
	_, err := d.OpenNamed("device")
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		t.Skipf("devices are not opened here: %v", err)
	}
	require.ErrorIs(t, err, unix.ENXIO)
	require.Empty(t, d.handles.open)
}
