// Package sys has the system calls on files that os does not offer, and repeats those that a signal interrupted, as os does. The
// signals are Go's own: it stops threads with them, and file systems in user space and on a network let them interrupt calls that a
// local disk would finish.
package sys

import (
	"errors"

	"golang.org/x/sys/unix"
)

// again repeats a call until no signal has interrupted it. A call that failed with EINTR can have had its effect all the same, where
// a server carried it out: who gives and takes names looks at them after an error.
func again(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// value is again for calls that return one.
func value[T any](call func() (T, error)) (out T, err error) {
	err = again(func() error {
		out, err = call()
		return err
	})
	return out, err
}

// Open is open(2).
func Open(path string, flags int) (fd int, err error) {
	return value(func() (int, error) { return unix.Open(path, flags, 0) })
}

// Openat is openat(2).
func Openat(dir int, path string, flags int, mode uint32) (fd int, err error) {
	return value(func() (int, error) { return unix.Openat(dir, path, flags, mode) })
}

// Openat2 is openat2(2).
func Openat2(dir int, path string, how *unix.OpenHow) (fd int, err error) {
	return value(func() (int, error) { return unix.Openat2(dir, path, how) })
}

// Dup is a second descriptor that programs started from here do not get.
func Dup(fd int) (int, error) {
	return value(func() (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) })
}

// Close is close(2), which is never repeated: Linux has let the descriptor go whatever it says. Spec: close(2), "Dealing with error
// returns from close()".
func Close(fd int) error {
	if err := unix.Close(fd); !errors.Is(err, unix.EINTR) {
		return err
	}
	return nil
}

// Fstat is fstat(2).
func Fstat(fd int, st *unix.Stat_t) error {
	return again(func() error { return unix.Fstat(fd, st) })
}

// Fstatat is fstatat(2).
func Fstatat(dir int, path string, st *unix.Stat_t, flags int) error {
	return again(func() error { return unix.Fstatat(dir, path, st, flags) })
}

// Statfs is statfs(2).
func Statfs(path string, st *unix.Statfs_t) error {
	return again(func() error { return unix.Statfs(path, st) })
}

// Fstatfs is fstatfs(2).
func Fstatfs(fd int, st *unix.Statfs_t) error {
	return again(func() error { return unix.Fstatfs(fd, st) })
}

// Access is access(2).
func Access(path string, mode uint32) error {
	return again(func() error { return unix.Access(path, mode) })
}

// Fchmod is fchmod(2).
func Fchmod(fd int, mode uint32) error {
	return again(func() error { return unix.Fchmod(fd, mode) })
}

// Linkat is linkat(2) within a folder.
func Linkat(dir int, from, to string) error {
	return again(func() error { return unix.Linkat(dir, from, dir, to, 0) })
}

// Renameat is renameat(2) within a folder.
func Renameat(dir int, from, to string) error {
	return again(func() error { return unix.Renameat(dir, from, dir, to) })
}

// Renameat2 is renameat2(2) within a folder.
func Renameat2(dir int, from, to string, flags uint) error {
	return again(func() error { return unix.Renameat2(dir, from, dir, to, flags) })
}

// Unlinkat removes a name of a file.
func Unlinkat(dir int, path string) error {
	return again(func() error { return unix.Unlinkat(dir, path, 0) })
}

// Fsync is fsync(2).
func Fsync(fd int) error {
	return again(func() error { return unix.Fsync(fd) })
}

// Pread is pread(2).
func Pread(fd int, p []byte, off int64) (int, error) {
	return value(func() (int, error) { return unix.Pread(fd, p, off) })
}

// Seek is lseek(2).
func Seek(fd int, off int64, whence int) (int64, error) {
	return value(func() (int64, error) { return unix.Seek(fd, off, whence) })
}

// Lock sets or asks for a lock that belongs to the open file, not to the process. Spec: fcntl(2), "Open file description locks".
func Lock(fd, command int, l *unix.Flock_t) error {
	return again(func() error { return unix.FcntlFlock(uintptr(fd), command, l) })
}

// SectorSize is that of a block device, in bytes.
func SectorSize(fd int) (int, error) {
	return value(func() (int, error) { return unix.IoctlGetInt(fd, unix.BLKSSZGET) })
}
