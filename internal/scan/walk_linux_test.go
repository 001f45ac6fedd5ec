package scan

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestDevicesInFoldersAreLeftAlone(t *testing.T) {
	tr := newTrial(t)
	tr.put(map[string]string{"x": "disk"})
	require.NoError(t, unix.Mkfifo(tr.path("fifo.vmdk"), 0o644))
	l, err := net.Listen("unix", tr.path("socket.vmdk"))
	require.NoError(t, err)
	defer l.Close()
	if err := unix.Mknod(tr.path("null.vmdk"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		require.ErrorIs(t, err, unix.EPERM)
	}
	tr.judge.look = func(path string) { require.Equal(t, "x", filepath.Base(path)) }
	tr.scanned()
	require.Equal(t, []string{"x"}, tr.shown())
	tr.scanned(tr.path("fifo.vmdk"))
	require.Equal(t, []string{"fifo.vmdk"}, tr.shown(), "what the user names has a row")
}

// nest makes folders in folders, each with a disk in it, where no path leads that a program could write.
func nest(t *testing.T, dir, name string, n int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	for range n {
		require.NoError(t, unix.Mkdirat(fd, name, 0o755))
		next, err := unix.Openat(fd, name, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Close(fd))
		fd = next
		file, err := unix.Openat(fd, "x", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
		require.NoError(t, err)
		_, err = unix.Write(file, []byte("disk"))
		require.NoError(t, errors.Join(err, unix.Close(file)))
	}
	require.NoError(t, unix.Close(fd))
}

func TestDeepFolders(t *testing.T) {
	tr := newTrial(t)
	nest(t, tr.dir, "d", 1000)
	tr.scanned()
	require.Len(t, tr.rows, 1000)
	require.Empty(t, tr.unreadable)

	tr = newTrial(t)
	nest(t, tr.dir, strings.Repeat("d", 250), 40) // 10 KB of path, of which the kernel takes 4
	tr.put(map[string]string{"e/x": "disk"})
	tr.scanned()
	require.Len(t, tr.unreadable, 1)
	require.Equal(t, unix.ENAMETOOLONG.Error(), tr.unreadable[0].Error.Message)
	require.Contains(t, tr.shown(), "e/x")
	require.Greater(t, len(tr.rows), 14)
}
