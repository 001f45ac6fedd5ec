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

// OpenDirect opens a folder by a path without links. It does not follow a link that replaced any part of the path
// meanwhile. On kernels before 5.6, and in sandboxes without openat2, only the last name is protected.
func OpenDirect(path string) (*os.File, error) {
	const flags = aFolder | quietly | unix.O_CLOEXEC
	how := &unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_NO_SYMLINKS}
	for {
		fd, err := retryValue(func() (int, error) { return unix.Openat2(unix.AT_FDCWD, path, how) })
		if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
			fd, err = openat(unix.AT_FDCWD, path, flags, 0)
		}
		switch {
		case errors.Is(err, unix.EAGAIN): // a rename during the lookup
			continue
		case err != nil:
			return nil, err
		}
		return os.NewFile(uintptr(fd), path), nil
	}
}

// Claimed reports whether the kernel holds a block device for itself: it is mounted, or part of another device. Spec:
// open(2), O_EXCL without O_CREAT.
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

// Forget drops a file from the page cache, except unflushed pages. Spec: posix_fadvise(2).
func (f *File) Forget() error {
	return retry(func() error { return unix.Fadvise(f.fd, 0, 0, unix.FADV_DONTNEED) })
}

// WriteBack starts writing a range to the storage, so that a later flush waits less. It is no flush itself, and leaves
// errors to the flush. Small ranges are not worth a call. Spec: sync_file_range(2), SYNC_FILE_RANGE_WRITE.
func (f *File) WriteBack(off, n int64) {
	if n >= 256<<10 {
		_ = unix.SyncFileRange(f.fd, off, n, unix.SYNC_FILE_RANGE_WRITE) // see above
	}
}

func flush(dir int) error { return unix.Fsync(dir) }

// Free returns the free space for an ordinary user in the folder, in bytes. known is false if the file system does not
// report it.
func (d *Folder) Free() (n int64, known bool, err error) {
	var st unix.Statfs_t
	err = retry(func() error { return unix.Fstatfs(d.fd, &st) })
	if Unsupported(err) || err == nil && st.Blocks == 0 {
		return 0, false, nil
	}
	return int64(min(st.Bavail, math.MaxInt64)) * int64(cmp.Or(st.Frsize, st.Bsize)), true, err
}

// InMemory reports whether the files of the folder are in memory, and so lost at power-off.
func (d *Folder) InMemory() (bool, error) {
	var st unix.Statfs_t
	err := retry(func() error { return unix.Fstatfs(d.fd, &st) })
	kind := int64(uint32(st.Type)) //nolint:gosec // a magic
	return kind == unix.TMPFS_MAGIC || kind == unix.RAMFS_MAGIC, err
}

// Uncache drops a file from the page cache, and reports whether at most a hundredth of the file remains there. Dirty
// pages remain. Linux before 6.5 does not report the rest: false.
func (f *File) Uncache() bool {
	_ = unix.Fadvise(f.fd, 0, 0, unix.FADV_DONTNEED) // cachestat counts the remaining pages
	return f.Uncached()
}

// Uncached reports whether at most a hundredth of a file is in the page cache. Linux before 6.5 does not report it:
// false.
func (f *File) Uncached() bool {
	var all unix.CachestatRange
	var left unix.Cachestat_t
	st, err := f.Stat()
	if err == nil {
		err = unix.Cachestat(uint(f.fd), &all, &left, 0)
	}
	return err == nil && float64(left.Cache)*float64(os.Getpagesize()) <= 0.01*float64(st.Size)
}

// Memory returns the memory of the machine in bytes, or 0 if unknown.
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
	return retryValue(func() (int, error) { return unix.IoctlGetInt(f.fd, unix.BLKSSZGET) })
}

// Lock sets or releases the lock of a file among runs of this program. It belongs to the open file, not to the process.
// Spec: fcntl(2), "Open file description locks".
func (f *File) Lock(kind LockKind) error { return f.LockByte(kind, lockByte) }

// LockWaiting is Lock, but waits for other holders.
func (f *File) LockWaiting(kind LockKind) error {
	_, err := f.fcntl(unix.F_OFD_SETLKW, kind, lockByte)
	return err
}

// Unlock releases all locks of the open file. Closing the file releases them later: once a child process that was just
// started has closed its copy of the descriptor, or once a file system in user space was told.
func (f *File) Unlock() error {
	return retry(func() error {
		return unix.FcntlFlock(uintptr(f.fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK})
	})
}

// LockByte locks one byte with a meaning for other programs.
func (f *File) LockByte(kind LockKind, at int64) error {
	_, err := f.fcntl(unix.F_OFD_SETLK, kind, at)
	return err
}

// LockedByte reports whether another program has locked a byte.
func (f *File) LockedByte(at int64) (bool, error) {
	l, err := f.fcntl(unix.F_OFD_GETLK, Exclusive, at)
	return err == nil && l.Type != unix.F_UNLCK, err
}

// ownSums lists attributes with a checksum of their own file. Spec: Linux, include/uapi/linux/xattr.h.
var ownSums = []string{"security.ima", "security.evm"}

// Adopt copies the owner, the permissions and the extended attributes of another file to f, including access lists and
// the SELinux label. lost lists attributes that the file system cannot store.
func (f *File) Adopt(from *File) (lost []string, err error) {
	var is, was unix.Stat_t
	err = retry(func() error { return errors.Join(unix.Fstat(f.fd, &is), unix.Fstat(from.fd, &was)) })
	if err == nil && (is.Uid != was.Uid || is.Gid != was.Gid) {
		err = retry(func() error { return unix.Fchown(f.fd, int(was.Uid), int(was.Gid)) })
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

// attributes returns the names of the extended attributes of a file. It returns nothing if the file system does not
// support them.
func attributes(fd int) ([]string, error) {
	list := make([]byte, 64<<10) // XATTR_LIST_MAX
	n, err := retryValue(func() (int, error) { return unix.Flistxattr(fd, list) })
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	return slices.DeleteFunc(strings.Split(string(list[:max(n, 0)]), "\x00"), func(name string) bool {
		return name == "" || slices.Contains(ownSums, name)
	}), err
}

// copyAttribute copies an attribute, unless both files have the same value.
func copyAttribute(to, from int, name string) error {
	var had, wanted [64 << 10]byte // XATTR_SIZE_MAX
	n, err := retryValue(func() (int, error) { return unix.Fgetxattr(from, name, wanted[:]) })
	if err != nil {
		return err
	}
	m, err := retryValue(func() (int, error) { return unix.Fgetxattr(to, name, had[:]) })
	if err == nil && bytes.Equal(had[:m], wanted[:n]) {
		return nil
	}
	return retry(func() error { return unix.Fsetxattr(to, name, wanted[:n], 0) })
}

// Exchange atomically swaps the names of two files.
func (d *Folder) Exchange(a, b string) error {
	return retry(func() error { return unix.Renameat2(d.fd, a, d.fd, b, unix.RENAME_EXCHANGE) })
}

// Immovable reports whether a file cannot be renamed or linked: it is immutable or append-only (chattr +i, +a). A name
// in such a folder cannot be removed.
func (f *File) Immovable() bool {
	var st unix.Statx_t
	err := retry(func() error { return unix.Statx(f.fd, "", unix.AT_EMPTY_PATH, 0, &st) })
	return err == nil && st.Attributes&(unix.STATX_ATTR_IMMUTABLE|unix.STATX_ATTR_APPEND) != 0
}

// Self returns the path of this very program, even after its file was replaced or removed.
func Self() (string, error) { return "/proc/self/exe", nil }

// Tie makes the kernel kill a program when this program dies, and puts it into its own process group. The calling
// goroutine must start the program, because the kernel watches the starting thread. release unlocks that thread.
func Tie(cmd *exec.Cmd) (release func()) {
	runtime.LockOSThread()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
	return runtime.UnlockOSThread
}

// Apart puts a program into its own process group, so that Ctrl-C at a terminal does not reach it.
func Apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// TerminateGroup sends SIGTERM to a program and the processes it started. The program must have been started with
// Apart, and must not have been waited for.
func TerminateGroup(cmd *exec.Cmd) error { return unix.Kill(-cmd.Process.Pid, unix.SIGTERM) }

// KillGroup kills a program and the processes it started. The program must have been started with Apart, and must not
// have been waited for.
func KillGroup(cmd *exec.Cmd) error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }

// EndGroup waits for the end of a process without reaping it, and then kills its process group.
func EndGroup(pid int) {
	_ = retry(func() error { return unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) })
	_ = unix.Kill(-pid, unix.SIGKILL)
}

// nobody is the user and group without files. Spec: Linux, include/linux/highuid.h, DEFAULT_OVERFLOWUID.
const nobody = 65534

// Unprivileged makes root start a program as user nobody with access to KVM, and gives dir to that user. Other users
// start it unchanged.
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

// Work returns the CPU time of a thread of a process, or of all threads if thread is 0. known is false if it is
// unavailable. Spec: Linux, Documentation/scheduler/sched-stats.rst, schedstat.
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

// OpenDevice opens a block device for reading and writing without the page cache, and claims it. Until it is closed,
// the kernel neither mounts it nor uses it for swap or an array. Spec: open(2), O_EXCL without O_CREAT.
func OpenDevice(path string) (*os.File, error) {
	const flags = unix.O_RDWR | unix.O_EXCL | unix.O_DIRECT | unix.O_NOFOLLOW
	fd, err := openat(unix.AT_FDCWD, path, flags, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// ReadOnly reports whether a block device is read-only.
func (f *File) ReadOnly() (bool, error) {
	n, err := retryValue(func() (int, error) { return unix.IoctlGetInt(f.fd, unix.BLKROGET) })
	return n != 0, err
}

// ZeroOut writes zeros to n bytes of a block device from off on, and keeps their space allocated.
func (f *File) ZeroOut(off, n int64) error { return f.onRange(unix.BLKZEROOUT, off, n) }

// Discard discards n bytes of a block device from off on. The kernel does not define their content afterwards.
func (f *File) Discard(off, n int64) error { return f.onRange(unix.BLKDISCARD, off, n) }

// Punch makes a range of a file a hole, which reads as zeros and uses no space. On a block device it is ZeroOut, but
// frees the space. If unsupported, it returns an error for Unsupported.
// Spec: fallocate(2); block/fops.c of Linux, blkdev_fallocate.
func (f *File) Punch(off, n int64) error {
	const mode = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	return retry(func() error { return unix.Fallocate(f.fd, mode, off, n) })
}

// RereadTable makes the kernel reread the partition table of a block device.
func (f *File) RereadTable() error {
	return retry(func() error { return unix.IoctlSetInt(f.fd, unix.BLKRRPART, 0) })
}

// LoopFile returns the backing file of a loop device, independent of its current name and place, or false.
func (f *File) LoopFile() (ID, bool) {
	st, err := retryValue(func() (*unix.LoopInfo64, error) { return unix.IoctlLoopGetStatus64(f.fd) })
	if err != nil {
		return ID{}, false
	}
	return ID{st.Device, st.Inode}, true
}

// onRange makes an ioctl on a range in bytes.
func (f *File) onRange(call uintptr, off, n int64) error {
	area := [2]uint64{uint64(off), uint64(n)} //nolint:gosec // positive
	return f.ioctl(call, unsafe.Pointer(&area))
}

// ioctl makes an ioctl on a struct.
func (f *File) ioctl(call uintptr, about unsafe.Pointer) error {
	return retry(func() error {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(f.fd), call, uintptr(about)); errno != 0 {
			return errno
		}
		return nil
	})
}

// NodeName returns a device number in the form of kernel files: "8:1".
func NodeName(node uint64) string { return fmt.Sprintf("%d:%d", unix.Major(node), unix.Minor(node)) }

// fsIocGetUUID is FS_IOC_GETFSUUID, _IOR(0x15, 0, struct fsuuid2), with bit 31 for reading. On MIPS, PowerPC and SPARC
// it has another bit, and the kernel refuses this call. Spec: include/uapi/linux/fs.h of Linux 6.9.
const fsIocGetUUID = 0x80111500

// FileSystem returns the UUID of the file system of a folder, or "" if unknown: before Linux 6.9, and for most network
// file systems. A UUID of zeros is unknown too.
func FileSystem(folder string) string {
	fd, err := retryValue(func() (int, error) {
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

// Scratch returns a new file in a folder, for reading and writing. The file has no name: the kernel frees it when the
// last process closes it or dies. If the file system does not support this, its name exists only for a moment.
func Scratch(folder, name string) (*os.File, error) {
	fd, err := openat(unix.AT_FDCWD, folder, unix.O_RDWR|unix.O_TMPFILE, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), folder), nil
	}
	if !Unsupported(err) && !errors.Is(err, unix.EISDIR) { // EISDIR: Linux before 3.11
		return nil, &fs.PathError{Op: "open", Path: folder, Err: err}
	}
	return unlinkedFile(folder, name)
}

// Allocate reserves the first n bytes of a file. It is no error if the file system cannot reserve.
func Allocate(f *os.File, n int64) error {
	err := retry(func() error { return unix.Fallocate(int(f.Fd()), 0, 0, n) })
	if err == nil || Unsupported(err) {
		return nil
	}
	return &fs.PathError{Op: "fallocate", Path: f.Name(), Err: err}
}

// Direct reopens an open file for reading without the page cache.
func Direct(f *os.File) (*os.File, error) {
	path := Inherited(int(f.Fd()))
	fd, err := openat(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Inherited returns a path that reopens a descriptor of the process, even of an unlinked file. Spec: proc(5),
// /proc/[pid]/fd.
func Inherited(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// Limits of a scan of all processes: several times a busy machine.
const (
	maxProcesses   = 1 << 17
	maxDescriptors = 1 << 21
)

// accessMode masks the access mode of open files; 0 is read only. Spec: O_ACCMODE of Linux, asm-generic/fcntl.h.
const accessMode = 3

// Writers calls each with every file that another process has open for writing, until each returns false. proc is the
// mount point of procfs, /proc. An ordinary user sees only their own processes. Spec: proc(5), /proc/[pid]/fd and
// fdinfo.
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
			link := filepath.Join(at, "fd", fd)
			target, err := os.Readlink(link) // of a pipe or a socket no path
			if errors.Is(err, fs.ErrPermission) {
				break // the kernel decides by the process
			}
			if err != nil || !filepath.IsAbs(target) || !writable(link) || !writes(filepath.Join(at, "fdinfo", fd)) {
				continue
			}
			st, err := cachedStat(link)
			if err != nil {
				continue
			}
			name := read(filepath.Join(at, "comm"))
			if !each(Writer{PID: pid, Program: strings.TrimSuffix(name, "\n"), File: st}) {
				return
			}
		}
	}
}

// cachedStat is Stat without a request to the server of a network or FUSE file system, which may be dead and would hang
// the call. Spec: statx(2), AT_STATX_DONT_SYNC; since Linux 4.11.
func cachedStat(path string) (Info, error) {
	var x unix.Statx_t
	err := retry(func() error {
		return unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS, &x)
	})
	if errors.Is(err, unix.ENOSYS) {
		return Stat(path)
	}
	i := info(&unix.Stat_t{
		Dev: unix.Mkdev(x.Dev_major, x.Dev_minor), Ino: x.Ino, Mode: uint32(x.Mode),
		Rdev: unix.Mkdev(x.Rdev_major, x.Rdev_minor),
		Size: int64(x.Size), Blocks: int64(x.Blocks), //nolint:gosec // as in stat(2)
	})
	i.Links = uint64(x.Nlink)
	i.Modified = time.Unix(x.Mtime.Sec, int64(x.Mtime.Nsec)).UnixNano()
	i.Changed = time.Unix(x.Ctime.Sec, int64(x.Ctime.Nsec)).UnixNano()
	return i, err
}

// list returns up to most names in a folder, or none if it cannot be read.
func list(folder string, most int) []string {
	if most <= 0 {
		return nil
	}
	fd, err := openat(unix.AT_FDCWD, folder, aFolder, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), folder)
	defer f.Close()
	names, _ := f.Readdirnames(most)
	return names
}

// read returns the first 4 KiB of a file of the kernel, by a third of the system calls of os.ReadFile.
func read(path string) string {
	fd, err := openat(unix.AT_FDCWD, path, unix.O_RDONLY, 0)
	if err != nil {
		return ""
	}
	defer func() { _ = shut(&fd) }() // nothing was written
	b := make([]byte, 4<<10)
	n, _ := retryValue(func() (int, error) { return unix.Read(fd, b) })
	return string(b[:max(0, n)])
}

// writable reports whether the link of a descriptor can be one that is open for writing. Spec: fs/proc/fd.c of Linux,
// tid_fd_update_inode.
func writable(link string) bool {
	st, err := os.Lstat(link)
	return err == nil && st.Mode()&0o200 != 0
}

// writes reports whether a descriptor is open for writing, from its fdinfo file.
func writes(info string) bool {
	_, rest, _ := strings.Cut(read(info), "flags:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return false
	}
	flags, err := strconv.ParseUint(fields[0], 8, 64)
	return err == nil && flags&accessMode != 0
}

// leasing lists the file systems with leases of the kernel itself. Others also refuse a lease if nobody has the file
// open: NFS without a delegation, SMB without an oplock. Spec: include/uapi/linux/magic.h of Linux; ZFS:
// ZFS_SUPER_MAGIC of OpenZFS.
var leasing = []int64{
	unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.F2FS_SUPER_MAGIC,
	0x2fc12fc1,
}

// A refused lease is requested again, because a child process keeps our files open until its exec.
const (
	leaseLooks = 10
	leasePause = 10 * time.Millisecond
)

// Written reports whether any process, including this one, or the kernel has the file open for writing. It requests a
// read lease and releases it at once. known is false if the system does not tell: for a user who does not own the file,
// and on network file systems. Spec: fcntl(2), F_SETLEASE.
func (f *File) Written() (yes, known bool) { return f.refused(unix.F_RDLCK) }

// Shared is Written, but also for files open or mapped for reading elsewhere. It requests a write lease. f must be open
// for reading and the only descriptor of the file in this process.
func (f *File) Shared() (yes, known bool) { return f.refused(unix.F_WRLCK) }

// refused reports whether the kernel refuses a lease because of other users of the file.
func (f *File) refused(kind int) (yes, known bool) {
	var st unix.Statfs_t
	if retry(func() error { return unix.Fstatfs(f.fd, &st) }) != nil ||
		!slices.Contains(leasing, int64(uint32(st.Type))) { //nolint:gosec // it is signed on some processors
		return false, false
	}
	lease := func(kind int) error {
		return retry(func() error {
			_, err := unix.FcntlInt(uintptr(f.fd), unix.F_SETLEASE, kind)
			return err
		})
	}
	for looks := 1; ; looks++ {
		err := lease(kind)
		switch {
		case err == nil:
			_ = lease(unix.F_UNLCK) // the next close would do it too
			return false, true
		case !errors.Is(err, unix.EAGAIN):
			return false, false
		case looks == leaseLooks:
			return true, true
		}
		time.Sleep(leasePause)
	}
}
