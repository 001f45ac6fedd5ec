package sys

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
)

// A program that has a file open for writing is named; readers, this process, and what is not a process are not. Spec:
// proc(5).
func TestWriters(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	want, err := Stat(file)
	require.NoError(t, err)
	for _, c := range []struct {
		pid, flags string
		found      bool
	}{
		{"17", "0100002", true}, // O_RDWR
		{"17", "0100001", true}, // O_WRONLY
		{"17", "0100000", false},
		{"17", "", false},
		{"17", "none", false},
		{"self", "0100002", false},
		{fmt.Sprint(os.Getpid()), "0100002", false},
	} {
		var got []Writer
		proc := t.TempDir()
		for _, d := range []string{"fd", "fdinfo"} {
			require.NoError(t, os.MkdirAll(filepath.Join(proc, c.pid, d), 0o700))
		}
		require.NoError(t, os.Symlink(file, filepath.Join(proc, c.pid, "fd", "4")))
		info := []byte("pos:\t0\nflags:\t" + c.flags + "\n")
		require.NoError(t, os.WriteFile(filepath.Join(proc, c.pid, "fdinfo", "4"), info, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(proc, c.pid, "comm"), []byte("VBoxHeadless\n"), 0o600))
		Writers(proc, func(w Writer) bool {
			got = append(got, w)
			return true
		})
		require.Equal(t, c.found, len(got) == 1, "%v", c)
		if c.found {
			require.Equal(t, Writer{17, "VBoxHeadless", want}, got[0])
		}
	}
	Writers(filepath.Join(file, "none"), func(Writer) bool { panic("there is no process") })
}

// The search for writers sends no request to the server of their file system, which may be dead.
func TestWritersOfADeadServer(t *testing.T) {
	t.Parallel()
	j := &oddfs.Journal{}
	file := filepath.Join(oddfs.Mount(t, t.TempDir(), oddfs.Manners{Journal: j}), "disk")
	cmd := exec.Command("sh", "-c", `exec 4>"$0" && echo open && read -r end`, file)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = out.Read(make([]byte, len("open\n")))
	require.NoError(t, err)
	j.Restart(0)
	found := false
	Writers("/proc", func(w Writer) bool {
		found = found || w.PID == cmd.Process.Pid && w.File.Mode.IsRegular()
		return !found
	})
	require.True(t, found)
	require.Empty(t, j.Done())
	require.NoError(t, in.Close())
	_ = cmd.Wait() // the end of its input is an error for read
}

// The kernel knows of a writer in another process, and of none when that is missing. Readers count where the file must
// be that of one program.
func TestFileIsWritten(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.WriteFile(file, []byte("disk"), 0o600))
	open, err := os.Open(file)
	require.NoError(t, err)
	defer open.Close()
	yes, known := FromOS(open).Written()
	if !known {
		t.Skip("the file system has no leases that count")
	}
	require.False(t, yes)
	for redirection, want := range map[string]bool{"<": false, "<>": true} {
		cmd := exec.Command(disktest.Tool(t, "sh"), "-c", `exec 3`+redirection+`"$0"; echo open; read end`, file)
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		_, err = out.Read(make([]byte, 5))
		require.NoError(t, err)
		yes, known = FromOS(open).Written()
		require.True(t, known)
		require.Equal(t, want, yes, redirection)
		yes, known = FromOS(open).Shared()
		require.True(t, known)
		require.True(t, yes, redirection)
		named := false
		Writers("/proc", func(w Writer) bool {
			named = named || w.PID == cmd.Process.Pid && w.File.Size == 4 && w.Program == "sh"
			return true
		})
		require.Equal(t, want, named, redirection)
		require.NoError(t, in.Close())
		_ = cmd.Wait() // read fails at the end
		yes, _ = FromOS(open).Written()
		require.False(t, yes)
		yes, known = FromOS(open).Shared()
		require.True(t, known)
		require.False(t, yes)
	}
	kind, err := unix.FcntlInt(open.Fd(), unix.F_GETLEASE, 0)
	require.NoError(t, err)
	require.Equal(t, unix.F_UNLCK, kind, "it is given back")
}

// openAs opens a file in a folder, which it makes where it can.
func openAs(t *testing.T, folder, name string, flags int) *File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(folder, name), flags, 0o600)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return FromOS(f)
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

// Pages that are mapped stay in memory, and others go: fincore counts them.
func TestUncached(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	const size = 8 << 20
	require.NoError(t, os.WriteFile(path, make([]byte, size), 0o600))
	in, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer in.Close()
	require.NoError(t, in.Sync())
	var left unix.Cachestat_t
	if err := unix.Cachestat(uint(in.Fd()), &unix.CachestatRange{}, &left, 0); err != nil {
		t.Skipf("the kernel does not say what it keeps: %v", err)
	}
	kept := func() (n int) {
		_, err := fmt.Sscan(disktest.Run(t, "fincore", "-b", "-n", "-r", "-o", "RES", path), &n)
		require.NoError(t, err)
		return n
	}
	require.Equal(t, size, kept())
	mapped, err := unix.Mmap(int(in.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	require.NoError(t, err)
	require.False(t, FromOS(in).Uncache())
	require.Equal(t, size, kept())
	require.NoError(t, unix.Munmap(mapped))
	if !FromOS(in).Uncache() {
		require.Greater(t, kept(), size/100, "memory is the storage here")
		return
	}
	require.LessOrEqual(t, kept(), size/100)
}

// What is not a device is refused by each call for one.
func TestDeviceCallsOnAFile(t *testing.T) {
	_, err := OpenDevice(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	defer f.Close()
	require.ErrorIs(t, FromOS(f).ZeroOut(0, 512), unix.ENOTTY)
	require.ErrorIs(t, FromOS(f).Discard(0, 512), unix.ENOTTY)
	require.ErrorIs(t, FromOS(f).RereadTable(), unix.ENOTTY)
	_, err = FromOS(f).ReadOnly()
	require.ErrorIs(t, err, unix.ENOTTY)
	_, shows := FromOS(f).LoopFile()
	require.False(t, shows)
}

// TestFileSystemOfAFolder compares the UUID with that of findmnt, which asks udev or the device.
func TestFileSystemOfAFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	got := FileSystem(dir)
	require.NotContains(t, got, "00000000-0000", "zeros are no UUID")
	require.Empty(t, FileSystem(dir+"/nothing"))
	out, err := exec.Command("findmnt", "-n", "-o", "UUID", "-T", dir).Output()
	if want := strings.TrimSpace(string(out)); err == nil && want != "" && got != "" {
		require.Equal(t, want, got)
	}
}
