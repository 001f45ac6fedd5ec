package sys

import (
	"cmp"
	"errors"
	"io"
	"math"
	"os"

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
