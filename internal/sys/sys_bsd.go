//go:build darwin || freebsd

package sys

import (
	"errors"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// OpenDirect opens a folder by a path without links. Only the last name is protected against a link that replaced it
// meanwhile.
func OpenDirect(path string) (*os.File, error) {
	fd, err := openat(unix.AT_FDCWD, path, aFolder|quietly, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Free returns the free space for an ordinary user in the folder, in bytes. known is false if the file system does not
// report it.
func (d *Folder) Free() (n int64, known bool, err error) {
	var st unix.Statfs_t
	err = retry(func() error { return unix.Fstatfs(d.fd, &st) })
	if Unsupported(err) || err == nil && st.Blocks == 0 {
		return 0, false, nil
	}
	return max(0, int64(min(st.Bavail, math.MaxInt64))) * int64(st.Bsize), true, err //nolint:gosec // positive
}

// Scratch returns a new file in a folder, for reading and writing. Its name exists only for a moment.
func Scratch(folder, name string) (*os.File, error) { return unlinkedFile(folder, name) }

// Restrict is not supported.
func Restrict(int64, bool) ([]string, error) { return nil, errors.ErrUnsupported }

// Punch is not supported.
func (*File) Punch(int64, int64) error { return errors.ErrUnsupported }

// Lock sets or releases the lock of a file among runs of this program. It belongs to the open file, not to the process.
func (f *File) Lock(kind LockKind) error { return f.flock(kind, unix.LOCK_NB) }

// LockWaiting is Lock, but waits for other holders.
func (f *File) LockWaiting(kind LockKind) error { return f.flock(kind, 0) }

// Unlock releases the lock of the open file.
func (f *File) Unlock() error { return f.Lock(Unlocked) }

func (f *File) flock(kind LockKind, how int) error {
	how |= [...]int{Unlocked: unix.LOCK_UN, Shared: unix.LOCK_SH, Exclusive: unix.LOCK_EX}[kind]
	return retry(func() error { return unix.Flock(f.fd, how) })
}
