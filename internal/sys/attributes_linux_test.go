//go:build !386

package sys

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
)

// openAs opens a file in a folder, which it makes where it can.
func openAs(t *testing.T, folder, name string, flags int) *File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(folder, name), flags, 0o600)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return Of(f)
}

// A file gets the mode and the attributes of another. What its file system does not keep is named.
func TestAdopt(t *testing.T) {
	folder := t.TempDir()
	from := openAs(t, folder, "from", os.O_RDWR|os.O_CREATE)
	require.NoError(t, from.Chmod(0o640|fs.ModeSticky))
	if err := unix.Fsetxattr(from.fd, "user.kept", []byte("value"), 0); err != nil {
		t.Skipf("no attributes on this file system: %v", err)
	}
	to := openAs(t, folder, "to", os.O_RDWR|os.O_CREATE)
	lost, err := to.Adopt(from)
	require.NoError(t, err)
	require.Empty(t, lost)
	got := make([]byte, 10)
	n, err := unix.Fgetxattr(to.fd, "user.kept", got)
	require.NoError(t, err)
	require.Equal(t, "value", string(got[:n]))
	st, err := to.Stat()
	require.NoError(t, err)
	require.Equal(t, 0o640|fs.ModeSticky, st.Mode)

	without := openAs(t, oddfs.Mount(t, t.TempDir(), oddfs.Manners{}), "to", os.O_RDWR|os.O_CREATE)
	lost, err = without.Adopt(from)
	require.NoError(t, err)
	require.Equal(t, []string{"user.kept"}, lost)
}

// An owner or an attribute that cannot be given, or read, is an error.
func TestAdoptFails(t *testing.T) {
	folder := t.TempDir()
	from := openAs(t, folder, "from", os.O_RDWR|os.O_CREATE)
	to := openAs(t, folder, "to", os.O_RDWR|os.O_CREATE)
	require.ErrorIs(t, copyAttribute(to.fd, from.fd, "user.none"), unix.ENODATA)
	_, err := to.Adopt(openAs(t, folder, "from", unix.O_PATH))
	require.ErrorIs(t, err, unix.EBADF, "a descriptor that reads no attributes")

	require.NoError(t, unix.Mkfifo(filepath.Join(folder, "pipe"), 0o600))
	if err := unix.Fsetxattr(from.fd, "user.kept", nil, 0); err == nil {
		_, err = openAs(t, folder, "pipe", os.O_RDWR).Adopt(from)
		require.ErrorIs(t, err, unix.EPERM, "a pipe has no attributes of users")
	}

	own := openAs(t, folder, "own", os.O_RDWR|os.O_CREATE)
	disktest.OrdinaryUser(t, filepath.Join(folder, "own"))
	_, err = own.Adopt(openAs(t, "/", ".", os.O_RDONLY))
	require.ErrorIs(t, err, unix.EPERM, "a file cannot be given to another user")
}

func TestExchange(t *testing.T) {
	path := t.TempDir()
	d, err := OpenFolder(path)
	require.NoError(t, err)
	defer d.Close()
	for _, name := range []string{"a", "b"} {
		require.NoError(t, os.WriteFile(filepath.Join(path, name), []byte(name), 0o600))
	}
	require.NoError(t, d.Exchange("a", "b"))
	text := disktest.ReadFile(t, filepath.Join(path, "a"))
	require.Equal(t, "b", string(text))
	require.ErrorIs(t, d.Exchange("a", "none"), fs.ErrNotExist)
}
