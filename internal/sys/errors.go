package sys

import (
	"errors"
	"io/fs"
	"os/exec"
	"slices"
	"syscall"
)

// Errors of the system for what a look-up finds before it asks the system.
const (
	ErrNotExist = syscall.ENOENT
	ErrExist    = syscall.EEXIST
	ErrLoop     = syscall.ELOOP
)

// isAny reports whether an error is one of some.
func isAny(err error, some ...error) bool {
	return slices.ContainsFunc(some, func(e error) bool { return errors.Is(err, e) })
}

// Cause returns an error of the file system or of a program to start without its name, which the caller gives.
func Cause(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	if p, ok := errors.AsType[*exec.Error](err); ok {
		return p.Err
	}
	return err
}

// FromSystem reports whether an error comes from the operating system.
func FromSystem(err error) bool {
	_, ok := errors.AsType[syscall.Errno](err)
	return ok
}

// Unsupported reports whether an error says that a file system does not know a call, or an option of it.
func Unsupported(err error) bool {
	return isAny(err, unsupported...) || errors.Is(err, errors.ErrUnsupported)
}

// NoLocks reports whether an error says that a file system knows no locks.
func NoLocks(err error) bool { return errors.Is(err, syscall.ENOLCK) || Unsupported(err) }

// Locked reports whether an error says that another program has the lock.
func Locked(err error) bool { return isAny(err, locked...) }

// NotShared reports whether an error says that another program has a file open, and does not share it.
func NotShared(err error) bool { return isAny(err, notShared...) }

// Full reports whether an error says that a file system or a quota has no room left.
func Full(err error) bool { return isAny(err, full...) }

// Denied reports whether an error says that this user lacks the right to a file.
func Denied(err error) bool { return isAny(err, denied...) }

// NotFolder reports whether an error says that a name on the way to a file is a link or a file.
func NotFolder(err error) bool { return isAny(err, syscall.ENOTDIR, syscall.ELOOP, syscall.EMLINK) }

// TooLong reports whether an error says that no file can have a name so long.
func TooLong(err error) bool { return isAny(err, tooLong...) }

// Interrupted reports whether an error says that a signal interrupted a call.
func Interrupted(err error) bool { return errors.Is(err, syscall.EINTR) }

// Claimed reports whether an error says that the kernel keeps a device for another use.
func Claimed(err error) bool { return errors.Is(err, syscall.EBUSY) }
