package gate

import (
	"errors"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
	"github.com/trueup/trueup/internal/ondisk"
)

// A file that is not regular is refused without opening it. A FIFO without a writer would wait for ever.
func TestIrregularFiles(t *testing.T) {
	d, path := openedFolder(t)
	at := func(name string) string { return filepath.Join(path, name) }
	require.NoError(t, os.WriteFile(at("real"), []byte("x"), 0o644))
	require.NoError(t, os.Symlink("/etc/hostname", at("link out")))
	require.NoError(t, os.Symlink("real", at("link inside")))
	require.NoError(t, os.Symlink("absent", at("dangling link")))
	require.NoError(t, unix.Mkfifo(at("fifo"), 0o644))
	require.NoError(t, os.Mkdir(at("folder"), 0o755))
	t.Chdir(path) // the address of a socket has at most 108 bytes
	socket, err := net.Listen("unix", "socket")
	require.NoError(t, err)
	defer socket.Close()
	for name, kind := range map[string]string{
		"link out": "a symbolic link", "link inside": "a symbolic link", "dangling link": "a symbolic link",
		"fifo":   "a FIFO",
		"folder": "a folder", "socket": "a socket",
	} {
		done := make(chan error, 1)
		go func() {
			_, err := d.Open(name)
			done <- err
		}()
		select {
		case err := <-done:
			require.ErrorIs(t, err, ondisk.ErrReference, name)
			require.ErrorContains(t, err, kind, name)
		case <-time.After(disktest.Patience):
			t.Fatalf("%s: open hangs", name)
		}
	}
}

// A failing call of a file system is reported, and mistaken neither for a change nor for the end of a folder.
func TestCallsThatFailOnAFolder(t *testing.T) {
	behind := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(behind, "file"), []byte("bytes"), 0o600))
	var j oddfs.Journal
	path := filepath.Join(oddfs.Mount(t, behind, oddfs.Manners{Journal: &j}), "file")
	look := func() error {
		d, base, err := Follow(path, nil)
		if err != nil {
			return err
		}
		defer d.Close()
		f, err := d.OpenAny(base, ondisk.ErrReference)
		if err != nil {
			return err
		}
		_, err = d.Names(func(string) bool { return true })
		return errors.Join(err, f.Close())
	}
	failed := map[string]bool{}
	for n := 1; ; n++ {
		j.Restart(n)
		err := look()
		op, _, _ := strings.Cut(j.Failed(), " ")
		if op == "" {
			require.NoError(t, err)
			break
		}
		if err == nil {
			require.Equal(t, "lookup", op, "the kernel looks once more where it knew the file")
			continue
		}
		require.ErrorIs(t, err, unix.EIO, op)
		failed[op] = true
	}
	require.Subset(t, slices.Collect(maps.Keys(failed)), []string{"getattr", "lookup", "open", "opendir", "readdir"})
}

// A folder that is missing, or something else by now, reaches nothing.
func TestReachThroughFoldersThatChange(t *testing.T) {
	t.Parallel()
	root, o := further(t)
	allowed := []string{root + "/lib"}
	require.NoError(t, os.Rename(root+"/lib", root+"/old"))
	require.NoError(t, os.Symlink("lib", root+"/lib"))
	_, err := o.Reach(o.Handles[0], "../lib/base", allowed)
	require.ErrorContains(t, err, "too many links")
	require.NoError(t, os.Remove(root+"/lib"))
	require.NoError(t, os.WriteFile(root+"/lib", nil, 0o600))
	_, err = o.Reach(o.Handles[0], "../lib/base", allowed)
	require.ErrorIs(t, err, unix.ENOTDIR)
	require.Empty(t, o.Further)
	require.NoError(t, os.Rename(root+"/own", root+"/mine"))
	_, err = o.Reach(o.Handles[0], "beside", allowed)
	require.ErrorIs(t, err, os.ErrNotExist)
}

// A failing call on an open file is not mistaken for a change of it, and is named. Not parallel: after a double close,
// the descriptor number may belong to another test.
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
