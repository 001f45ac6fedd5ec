package sys

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// OpenDirect opens a folder by a path without links. Since it was found, another program may have put a link in the
// place of it or of one above it: that is not followed. Kernels before 5.6, and sandboxes around us that know no
// openat2, guard the last name only.
func OpenDirect(path string) (*os.File, error) {
	const flags = aFolder | quietly | unix.O_CLOEXEC
	how := &unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_NO_SYMLINKS}
	for {
		fd, err := value(func() (int, error) { return unix.Openat2(unix.AT_FDCWD, path, how) })
		if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
			fd, err = openat(unix.AT_FDCWD, path, flags, 0)
		}
		switch {
		case errors.Is(err, unix.EAGAIN): // something was renamed during the look-up
			continue
		case err != nil:
			return nil, err
		}
		return os.NewFile(uintptr(fd), path), nil
	}
}

// Claimed reports whether the kernel keeps a block device for itself: a file system is mounted on it, or it is a part
// of another device. Spec: open(2), O_EXCL without O_CREAT.
func (d *Folder) Claimed(name string) bool {
	fd, err := openat(d.fd, name, unix.O_RDONLY|unix.O_EXCL|unix.O_NONBLOCK, 0)
	if err == nil {
		_ = shut(&fd) // nothing was written
	}
	return errors.Is(err, unix.EBUSY)
}

func renameNew(dir int, from, to string) error {
	return unix.Renameat2(dir, from, dir, to, unix.RENAME_NOREPLACE)
}

// Forget has the kernel read a file from the storage again. What was not flushed it keeps. Spec: posix_fadvise(2).
func (f *File) Forget() error {
	return again(func() error { return unix.Fadvise(f.fd, 0, 0, unix.FADV_DONTNEED) })
}

// WriteBack has the storage begin to write a range, so that a flush behind it waits less. It is no flush itself: errors
// are left to that. Small ranges are not worth a call. Spec: sync_file_range(2), SYNC_FILE_RANGE_WRITE.
func (f *File) WriteBack(off, n int64) {
	if n >= 256<<10 {
		_ = unix.SyncFileRange(f.fd, off, n, unix.SYNC_FILE_RANGE_WRITE) // see above
	}
}

func flush(dir int) error { return unix.Fsync(dir) }

// Free returns the space in bytes that an ordinary user can still take in the folder; known is false where the file
// system does not say it.
func (d *Folder) Free() (n int64, known bool, err error) {
	var st unix.Statfs_t
	err = again(func() error { return unix.Fstatfs(d.fd, &st) })
	if Unsupported(err) || err == nil && st.Blocks == 0 {
		return 0, false, nil
	}
	return int64(min(st.Bavail, math.MaxInt64)) * int64(cmp.Or(st.Frsize, st.Bsize)), true, err
}

// InMemory reports whether the files of the folder lie in memory, and are lost with the power.
func (d *Folder) InMemory() (bool, error) {
	var st unix.Statfs_t
	err := again(func() error { return unix.Fstatfs(d.fd, &st) })
	kind := int64(uint32(st.Type)) //nolint:gosec // a magic
	return kind == unix.TMPFS_MAGIC || kind == unix.RAMFS_MAGIC, err
}

// Uncache has the kernel drop the pages of a file that it keeps in memory, and reports whether at most a hundredth of
// the file is left there. Pages that are not yet on the storage stay. Linux before 6.5 does not say what is left.
func (f *File) Uncache() bool {
	_ = unix.Fadvise(f.fd, 0, 0, unix.FADV_DONTNEED) // cachestat counts the rest
	return f.Uncached()
}

// Uncached reports whether at most a hundredth of a file is in memory. Linux before 6.5 does not say it: false.
func (f *File) Uncached() bool {
	var all unix.CachestatRange
	var left unix.Cachestat_t
	st, err := f.Stat()
	if err == nil {
		err = unix.Cachestat(uint(f.fd), &all, &left, 0)
	}
	return err == nil && float64(left.Cache)*float64(os.Getpagesize()) <= 0.01*float64(st.Size)
}

// Memory returns the memory of the machine in bytes; 0: it is not known.
func Memory() int64 {
	var s unix.Sysinfo_t
	if err := unix.Sysinfo(&s); err != nil {
		return 0
	}
	return int64(s.Totalram) * int64(s.Unit) //nolint:gosec // below 2^63
}

// DeviceSize returns the size of a block device in bytes.
func (f *File) DeviceSize() (int64, error) { return f.seek(0, io.SeekEnd) }

// SectorSize returns the sector size of a block device in bytes.
func (f *File) SectorSize() (int, error) {
	return value(func() (int, error) { return unix.IoctlGetInt(f.fd, unix.BLKSSZGET) })
}

// Lock sets the lock by which runs of this program know each other's files. It belongs to the open file, not to the
// process. Spec: fcntl(2), "Open file description locks".
func (f *File) Lock(kind LockKind) error { return f.LockByte(kind, lockByte) }

// LockWaiting is Lock that waits for others.
func (f *File) LockWaiting(kind LockKind) error {
	_, err := f.fcntl(unix.F_OFD_SETLKW, kind, lockByte)
	return err
}

// LockByte sets a lock of one byte, which other programs give a meaning.
func (f *File) LockByte(kind LockKind, at int64) error {
	_, err := f.fcntl(unix.F_OFD_SETLK, kind, at)
	return err
}

// LockedByte reports whether another has a lock of a byte.
func (f *File) LockedByte(at int64) (bool, error) {
	l, err := f.fcntl(unix.F_OFD_GETLK, Exclusive, at)
	return err == nil && l.Type != unix.F_UNLCK, err
}

// ownSums are attributes with a checksum of their own file. Spec: Linux, include/uapi/linux/xattr.h.
var ownSums = []string{"security.ima", "security.evm"}

// Adopt gives f the owner, the permissions and the extended attributes of another file, with them access lists and the
// SELinux label. lost are attributes that the file system does not keep.
func (f *File) Adopt(from *File) (lost []string, err error) {
	var is, was unix.Stat_t
	err = again(func() error { return errors.Join(unix.Fstat(f.fd, &is), unix.Fstat(from.fd, &was)) })
	if err == nil && (is.Uid != was.Uid || is.Gid != was.Gid) {
		err = again(func() error { return unix.Fchown(f.fd, int(was.Uid), int(was.Gid)) })
	}
	if err != nil {
		return nil, err
	}
	names, err := attributes(from.fd)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		switch err := copyAttribute(f.fd, from.fd, name); {
		case errors.Is(err, unix.ENOTSUP):
			lost = append(lost, name)
		case err != nil:
			return nil, err
		}
	}
	return lost, f.Chmod(info(&was).Mode)
}

// attributes lists the names of the attributes of a file; none where the file system knows none.
func attributes(fd int) ([]string, error) {
	list := make([]byte, 64<<10) // XATTR_LIST_MAX
	n, err := value(func() (int, error) { return unix.Flistxattr(fd, list) })
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	return slices.DeleteFunc(strings.Split(string(list[:max(n, 0)]), "\x00"), func(name string) bool {
		return name == "" || slices.Contains(ownSums, name)
	}), err
}

// copyAttribute copies an attribute, unless the file has it already.
func copyAttribute(to, from int, name string) error {
	var had, wanted [64 << 10]byte // XATTR_SIZE_MAX
	n, err := value(func() (int, error) { return unix.Fgetxattr(from, name, wanted[:]) })
	if err != nil {
		return err
	}
	m, err := value(func() (int, error) { return unix.Fgetxattr(to, name, had[:]) })
	if err == nil && bytes.Equal(had[:m], wanted[:n]) {
		return nil
	}
	return again(func() error { return unix.Fsetxattr(to, name, wanted[:n], 0) })
}

// Exchange gives two files each other's name, at once.
func (d *Folder) Exchange(a, b string) error {
	return again(func() error { return unix.Renameat2(d.fd, a, d.fd, b, unix.RENAME_EXCHANGE) })
}

// Immovable reports whether a file can neither be renamed nor get a second name, nor a folder lose one: it is immutable
// or takes data at its end only (chattr +i, +a).
func (f *File) Immovable() bool {
	var st unix.Statx_t
	err := again(func() error { return unix.Statx(f.fd, "", unix.AT_EMPTY_PATH, 0, &st) })
	return err == nil && st.Attributes&(unix.STATX_ATTR_IMMUTABLE|unix.STATX_ATTR_APPEND) != 0
}

// Self returns this very program, even when its file was replaced or removed since it was started.
func Self() (string, error) { return "/proc/self/exe", nil }

// Tie puts a program that the calling goroutine starts into a process group of its own, and has the kernel kill it when
// this one dies. The kernel goes by the thread that started it: release gives that up.
func Tie(cmd *exec.Cmd) (release func()) {
	runtime.LockOSThread()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
	return runtime.UnlockOSThread
}

// Apart puts a program into a process group of its own: Ctrl-C at a terminal goes to this one alone.
func Apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// TerminateGroup asks a program that was put apart to end, and all that it started. It must not have been waited for.
func TerminateGroup(cmd *exec.Cmd) error { return unix.Kill(-cmd.Process.Pid, unix.SIGTERM) }

// KillGroup ends a program that was put apart, and all that it started. It must not have been waited for.
func KillGroup(cmd *exec.Cmd) error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }

// EndGroup waits for the end of a process and then kills what it may have started.
func EndGroup(pid int) {
	_ = again(func() error { return unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) })
	_ = unix.Kill(-pid, unix.SIGKILL)
}

// nobody is the user, and the group, that have no files. Spec: Linux, include/linux/highuid.h, DEFAULT_OVERFLOWUID.
const nobody = 65534

// Unprivileged has root start a program as the user nobody, with the right to use KVM. dir becomes that user's.
func Unprivileged(cmd *exec.Cmd, dir string) error {
	if os.Getuid() != 0 {
		return nil
	}
	c := &syscall.Credential{Uid: nobody, Gid: nobody}
	if st, err := os.Stat("/dev/kvm"); err == nil {
		c.Groups = []uint32{st.Sys().(*syscall.Stat_t).Gid}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c}
	return os.Chown(dir, nobody, nobody)
}

// Work returns the time that a thread of a process had on a processor, or all of its threads where thread is 0; false
// if that is not known. Spec: Linux, Documentation/scheduler/sched-stats.rst, schedstat.
func Work(pid, thread int) (ran time.Duration, known bool) {
	which := "*"
	if thread != 0 {
		which = strconv.Itoa(thread)
	}
	names, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/" + which + "/schedstat")
	if err != nil {
		return 0, false
	}
	for _, name := range names {
		b, err := os.ReadFile(name) //nolint:gosec // of the kernel
		if err != nil {
			continue // the thread has ended
		}
		first, _, _ := strings.Cut(string(b), " ")
		if n, err := strconv.ParseInt(first, 10, 64); err == nil {
			ran, known = ran+time.Duration(n), true
		}
	}
	return ran, known
}

// OpenDevice opens a block device for reading and writing past the page cache, and claims it: until it is closed the
// kernel neither mounts it nor takes it for swap or an array. Spec: open(2), O_EXCL without O_CREAT.
func OpenDevice(path string) (*os.File, error) {
	const flags = unix.O_RDWR | unix.O_EXCL | unix.O_DIRECT | unix.O_NOFOLLOW
	fd, err := openat(unix.AT_FDCWD, path, flags, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// ReadOnly reports whether a block device takes no writes.
func (f *File) ReadOnly() (bool, error) {
	n, err := value(func() (int, error) { return unix.IoctlGetInt(f.fd, unix.BLKROGET) })
	return n != 0, err
}

// ZeroOut has a block device read as zeros from off on, n bytes, whose space it keeps.
func (f *File) ZeroOut(off, n int64) error { return f.onRange(unix.BLKZEROOUT, off, n) }

// Discard lets a block device forget n bytes from off on. What it reads as then, the kernel does not promise.
func (f *File) Discard(off, n int64) error { return f.onRange(unix.BLKDISCARD, off, n) }

// Punch makes a range of a file a hole, which reads as zeros and takes no space. On a block device it is ZeroOut that
// gives the space back. A file system or device that cannot do so has an error that Unsupported knows.
// Spec: fallocate(2); block/fops.c of Linux, blkdev_fallocate.
func (f *File) Punch(off, n int64) error {
	const mode = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	return again(func() error { return unix.Fallocate(f.fd, mode, off, n) })
}

// RereadTable has the kernel read the partition table of a block device again.
func (f *File) RereadTable() error {
	return again(func() error { return unix.IoctlSetInt(f.fd, unix.BLKRRPART, 0) })
}

// LoopFile returns the file that a loop device shows, whatever its name is now and wherever that is; false: none.
func (f *File) LoopFile() (ID, bool) {
	st, err := value(func() (*unix.LoopInfo64, error) { return unix.IoctlLoopGetStatus64(f.fd) })
	if err != nil {
		return ID{}, false
	}
	return ID{st.Device, st.Inode}, true
}

// onRange makes a call that takes a start and a length in bytes.
func (f *File) onRange(call uintptr, off, n int64) error {
	area := [2]uint64{uint64(off), uint64(n)} //nolint:gosec // positive
	return f.ioctl(call, unsafe.Pointer(&area))
}

// ioctl makes a call that takes a struct.
func (f *File) ioctl(call uintptr, about unsafe.Pointer) error {
	return again(func() error {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(f.fd), call, uintptr(about)); errno != 0 {
			return errno
		}
		return nil
	})
}

// NodeName returns the number of a device node as the kernel's files have it: "8:1".
func NodeName(node uint64) string { return fmt.Sprintf("%d:%d", unix.Major(node), unix.Minor(node)) }

// fsIocGetUUID is FS_IOC_GETFSUUID, _IOR(0x15, 0, struct fsuuid2), where reading has the bit 31. It has another one on
// MIPS, PowerPC and SPARC, where the call is refused. Spec: include/uapi/linux/fs.h of Linux 6.9.
const fsIocGetUUID = 0x80111500

// FileSystem returns the UUID of the file system of a folder, empty where that is not known: before Linux 6.9, and for
// most network file systems. A UUID of zeros counts as unknown.
func FileSystem(folder string) string {
	fd, err := value(func() (int, error) {
		return unix.Open(folder, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	})
	if err != nil {
		return ""
	}
	f := &File{fd: fd}
	defer unix.Close(fd)
	var answer struct {
		Len  uint8
		UUID [16]byte
	}
	err = f.ioctl(fsIocGetUUID, unsafe.Pointer(&answer))
	u := answer.UUID
	if err != nil || int(answer.Len) != len(u) || u == [16]byte{} {
		return ""
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// Scratch returns a new file in a folder, to read and write it. The file has no name: the kernel frees it with the last
// process that has it open, however that ends. Where a file system makes no such files it has a name for a moment.
func Scratch(folder, name string) (*os.File, error) {
	fd, err := openat(unix.AT_FDCWD, folder, unix.O_RDWR|unix.O_TMPFILE, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), folder), nil
	}
	if !Unsupported(err) && !errors.Is(err, unix.EISDIR) { // EISDIR: Linux before 3.11
		return nil, &fs.PathError{Op: "open", Path: folder, Err: err}
	}
	return brief(folder, name)
}

// Allocate reserves the first n bytes of a file. A file system that reserves nothing is no error.
func Allocate(f *os.File, n int64) error {
	err := again(func() error { return unix.Fallocate(int(f.Fd()), 0, 0, n) })
	if err == nil || Unsupported(err) {
		return nil
	}
	return &fs.PathError{Op: "fallocate", Path: f.Name(), Err: err}
}

// Direct opens an open file once more, to read it past the page cache.
func Direct(f *os.File) (*os.File, error) {
	path := Inherited(int(f.Fd()))
	fd, err := openat(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Inherited returns the path by which a process opens a file again that it has open already, also one without a name.
// Spec: proc(5), /proc/[pid]/fd.
func Inherited(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// Bounds of a look at all processes: what a busy machine has, several times.
const (
	maxProcesses   = 1 << 17
	maxDescriptors = 1 << 21
)

// accessMode masks the access mode of open files; 0 is read only. Spec: O_ACCMODE of Linux, asm-generic/fcntl.h.
const accessMode = 3

// Writers passes what other processes have open for writing, until each returns false. proc is where the kernel shows
// them, /proc. An ordinary user sees no processes of others. Spec: proc(5), /proc/[pid]/fd and fdinfo.
func Writers(proc string, each func(w Writer) bool) {
	descriptors := 0
	for _, p := range list(proc, maxProcesses) {
		pid, err := strconv.Atoi(p)
		if err != nil || pid == os.Getpid() {
			continue
		}
		at := filepath.Join(proc, p)
		for _, fd := range list(filepath.Join(at, "fd"), maxDescriptors-descriptors) {
			descriptors++
			if !writes(filepath.Join(at, "fdinfo", fd)) {
				continue // before Stat, which a file system whose server hangs may not answer
			}
			st, err := Stat(filepath.Join(at, "fd", fd))
			if err != nil {
				continue
			}
			name, _ := os.ReadFile(filepath.Join(at, "comm")) //nolint:gosec // of the kernel
			if !each(Writer{PID: pid, Program: strings.TrimSuffix(string(name), "\n"), File: st}) {
				return
			}
		}
	}
}

// list returns the names in a folder, at most some; none of one that cannot be read.
func list(folder string, most int) []string {
	f, err := os.Open(folder) //nolint:gosec // of the kernel
	if err != nil || most <= 0 {
		return nil
	}
	defer f.Close()
	names, _ := f.Readdirnames(most)
	return names
}

// writes reports whether a descriptor is open for writing, by the text that the kernel has about it.
func writes(info string) bool {
	b, err := os.ReadFile(info) //nolint:gosec // of the kernel
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), "flags:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return false
	}
	flags, err := strconv.ParseUint(fields[0], 8, 64)
	return err == nil && flags&accessMode != 0
}

// leasing lists the file systems whose leases are those of the kernel itself. Others refuse a lease also where nobody
// has the file open: NFS without a delegation, SMB without an oplock. Spec: include/uapi/linux/magic.h of Linux; ZFS:
// ZFS_SUPER_MAGIC of OpenZFS.
var leasing = []int64{
	unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.F2FS_SUPER_MAGIC,
	0x2fc12fc1,
}

// A lease that is refused is asked for again: a process that this one starts has its files open until its program runs.
const (
	leaseLooks = 10
	leasePause = 10 * time.Millisecond
)

// Written reports whether any process, or the kernel, has the file open for writing; this process counts, too. It asks
// for a lease of readers, which is given back at once. known is false where the system does not tell: to users who do
// not own the file, and on file systems of networks. Spec: fcntl(2), F_SETLEASE.
func (f *File) Written() (yes, known bool) { return f.refused(unix.F_RDLCK) }

// Shared is Written for a file that is open or mapped elsewhere, also to read. It asks for a lease of a writer: f must
// be the only open descriptor of this process, to read.
func (f *File) Shared() (yes, known bool) { return f.refused(unix.F_WRLCK) }

// refused reports whether the kernel refuses a lease because of others.
func (f *File) refused(kind int) (yes, known bool) {
	var st unix.Statfs_t
	if again(func() error { return unix.Fstatfs(f.fd, &st) }) != nil ||
		!slices.Contains(leasing, int64(uint32(st.Type))) { //nolint:gosec // it is signed on some processors
		return false, false
	}
	lease := func(kind int) error {
		return again(func() error {
			_, err := unix.FcntlInt(uintptr(f.fd), unix.F_SETLEASE, kind)
			return err
		})
	}
	for looks := 1; ; looks++ {
		err := lease(kind)
		switch {
		case err == nil:
			_ = lease(unix.F_UNLCK) // the next close does the same
			return false, true
		case !errors.Is(err, unix.EAGAIN):
			return false, false
		case looks == leaseLooks:
			return true, true
		}
		time.Sleep(leasePause)
	}
}
