//go:build linux || darwin || freebsd

package sys

import (
	"errors"

	"golang.org/x/sys/unix"
)

var (
	locked = []error{unix.EAGAIN, unix.EACCES}
	// Files are shared with all programs here.
	notShared []error
	full      = []error{unix.ENOSPC, unix.EDQUOT}

	unsupported = []error{unix.EINVAL, unix.EPERM}
	denied      = []error{unix.EACCES}
	tooLong     = []error{unix.ENAMETOOLONG}
)

// again repeats a call until no signal has interrupted it. A call that failed with EINTR can have had its effect all
// the same, where a server carried it out: a caller that gives or takes names looks at them after an error.
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

// shut is close(2), which is never repeated: Linux has let the descriptor go whatever it says. Spec: close(2), "Dealing
// with error returns from close()". A file that was closed has no descriptor: the number may be that of another one.
func shut(fd *int) error {
	n := *fd
	*fd = -1
	if err := unix.Close(n); !errors.Is(err, unix.EINTR) {
		return err
	}
	return nil
}
