//go:build linux || darwin || freebsd

package sys

import (
	"os"

	"golang.org/x/sys/unix"
)

// File is an open file. Unlike an os.File it has no lock and no poller: a read is one system call.
type File struct{ fd int }

// Of returns an open file as a File. Its owner closes it.
func Of(f *os.File) *File { return &File{int(f.Fd())} }

// Handed turns f into an os.File, which is to be closed instead of f.
func (f *File) Handed(name string) *os.File { return os.NewFile(uintptr(f.fd), name) }

// Close closes the file.
func (f *File) Close() error { return shut(&f.fd) }

// Stat returns the information on the open file.
func (f *File) Stat() (Info, error) {
	return stat(func(st *unix.Stat_t) error { return unix.Fstat(f.fd, st) })
}

// Chmod sets the permissions and the special bits of a mode.
func (f *File) Chmod(mode os.FileMode) error {
	bits := uint32(mode.Perm())
	for bit, name := range special {
		if mode&name != 0 {
			bits |= bit
		}
	}
	return again(func() error { return unix.Fchmod(f.fd, bits) })
}

// Sparse does nothing: what is not written of a file takes no space.
func (*File) Sparse() {}

// Pread reads once, from off on: fewer bytes than p has room for are no error, and none is the end of the file.
func (f *File) Pread(p []byte, off int64) (int, error) {
	return value(func() (int, error) { return unix.Pread(f.fd, p, off) })
}

// fcntl makes a call for a lock of one byte, with command saying which.
func (f *File) fcntl(command int, kind LockKind, at int64) (unix.Flock_t, error) {
	l := unix.Flock_t{
		Type:  [...]int16{Unlocked: unix.F_UNLCK, Shared: unix.F_RDLCK, Exclusive: unix.F_WRLCK}[kind],
		Start: at, Len: 1,
	}
	err := again(func() error { return unix.FcntlFlock(uintptr(f.fd), command, &l) })
	return l, err
}
