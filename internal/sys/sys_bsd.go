//go:build darwin || freebsd

package sys

import (
	"errors"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// OpenDirect opens a folder by a path without links. Only the last name is guarded against a link that took its place
// since.
func OpenDirect(path string) (*os.File, error) {
	fd, err := openat(unix.AT_FDCWD, path, aFolder|quietly, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Claimed reports whether the kernel keeps a block device for itself. It is asked for devices that have a size only:
// none here.
func (*Folder) Claimed(string) bool { return false }

// Forget would have the kernel read a file from the storage again.
func (*File) Forget() error { return nil }

// WriteBack would have the storage begin to write a range.
func (*File) WriteBack(int64, int64) {}

// Free returns the space in bytes that an ordinary user can still take in the folder; known is false where the file
// system does not say it.
func (d *Folder) Free() (n int64, known bool, err error) {
	var st unix.Statfs_t
	err = again(func() error { return unix.Fstatfs(d.fd, &st) })
	if Unsupported(err) || err == nil && st.Blocks == 0 {
		return 0, false, nil
	}
	return max(0, int64(min(st.Bavail, math.MaxInt64))) * int64(st.Bsize), true, err //nolint:gosec // positive
}

// InMemory reports whether the files of the folder lie in memory; it is not known on this system.
func (*Folder) InMemory() (bool, error) { return false, nil }

// Uncache returns false: this system does not report which pages are in memory.
func (*File) Uncache() bool { return false }

// Scratch returns a new file in a folder, to read and write it, which has a name for a moment only.
func Scratch(folder, name string) (*os.File, error) { return brief(folder, name) }

// Restrict is not supported.
func Restrict(int64, bool) ([]string, error) { return nil, errors.ErrUnsupported }

// Punch is not supported.
func (*File) Punch(int64, int64) error { return errors.ErrUnsupported }

// DeviceSize returns the size of a block device in bytes.
func (*File) DeviceSize() (int64, error) { return 0, needsLinux("reading a device") }

// SectorSize returns the sector size of a block device in bytes.
func (*File) SectorSize() (int, error) { return 0, needsLinux("reading a device") }

// Lock sets the lock by which runs of this program know each other's files. It belongs to the open file, not to the
// process.
func (f *File) Lock(kind LockKind) error { return f.flock(kind, unix.LOCK_NB) }

// LockWaiting is Lock that waits for others.
func (f *File) LockWaiting(kind LockKind) error { return f.flock(kind, 0) }

func (f *File) flock(kind LockKind, how int) error {
	how |= [...]int{Unlocked: unix.LOCK_UN, Shared: unix.LOCK_SH, Exclusive: unix.LOCK_EX}[kind]
	return again(func() error { return unix.Flock(f.fd, how) })
}

// LockByte sets a lock of one byte, which other programs give a meaning. A lock of the process, which is all there is
// here, would be lost with the first descriptor of the file that is closed.
func (*File) LockByte(LockKind, int64) error { return needsLinux("a lock of one byte") }

// LockedByte reports whether another has a lock of a byte.
func (*File) LockedByte(int64) (bool, error) { return false, needsLinux("a lock of one byte") }
