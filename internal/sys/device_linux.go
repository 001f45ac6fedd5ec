package sys

import (
	"fmt"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

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
