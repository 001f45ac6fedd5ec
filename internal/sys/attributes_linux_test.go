package sys

import (
	"encoding/binary"
	"io/fs"
	"math"
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

// A file gets the SELinux label and the access list of another, and not the checksum that a kernel keeps of its bytes.
func TestAdoptLabelsAndLists(t *testing.T) {
	folder := t.TempDir()
	from, to := openAs(t, folder, "from", os.O_RDWR|os.O_CREATE), openAs(t, folder, "to", os.O_RDWR|os.O_CREATE)
	// Spec: Linux, include/uapi/linux/posix_acl_xattr.h: version 2, then tag, permission and user of each entry.
	const none = math.MaxUint32
	list, err := binary.Append([]byte{2, 0, 0, 0}, binary.LittleEndian, []struct {
		Tag, Perm uint16
		ID        uint32
	}{{1, 6, none}, {2, 4, 1234}, {4, 4, none}, {0x10, 4, none}, {0x20, 0, none}})
	require.NoError(t, err)
	for name, value := range map[string][]byte{
		"security.selinux": []byte("system_u:object_r:virt_image_t:s0\x00"), "system.posix_acl_access": list,
		"security.ima": []byte("\x01 the checksum"),
	} {
		if err := unix.Fsetxattr(from.fd, name, value, 0); err != nil {
			t.Skipf("%s cannot be given here: %v", name, err)
		}
	}
	lost, err := to.Adopt(from)
	require.NoError(t, err)
	require.Empty(t, lost)
	for _, name := range []string{"security.selinux", "system.posix_acl_access"} {
		var want, got [256]byte
		n, err := unix.Fgetxattr(from.fd, name, want[:])
		require.NoError(t, err)
		m, err := unix.Fgetxattr(to.fd, name, got[:])
		require.NoError(t, err)
		require.Equal(t, want[:n], got[:m], name)
	}
	_, err = unix.Fgetxattr(to.fd, "security.ima", nil)
	require.ErrorIs(t, err, unix.ENODATA)
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
