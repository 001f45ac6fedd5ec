package sys

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// interrupted is a call that fails as often as it has errors, and succeeds then.
type interrupted struct {
	errs  []error
	calls int
}

func (i *interrupted) call() (string, error) {
	i.calls++
	if i.calls <= len(i.errs) {
		return "", i.errs[i.calls-1]
	}
	return "done", nil
}

func TestInterruptedCallsAreRepeated(t *testing.T) {
	c := &interrupted{errs: []error{unix.EINTR, unix.EINTR, unix.EINTR}}
	got, err := value(c.call)
	require.NoError(t, err)
	require.Equal(t, "done", got)
	require.Equal(t, 4, c.calls)
}

func TestOtherErrorsAreNot(t *testing.T) {
	for _, e := range []error{unix.EAGAIN, unix.EIO, unix.EACCES, unix.ENOLCK} {
		c := &interrupted{errs: []error{unix.EINTR, e}}
		_, err := value(c.call)
		require.ErrorIs(t, err, e)
		require.Equal(t, 2, c.calls)
	}
}

// A program that is started from here must not get the folder of an image.
func TestDupIsNotInherited(t *testing.T) {
	fd, err := Open(t.TempDir(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC)
	require.NoError(t, err)
	second, err := Dup(fd)
	require.NoError(t, err)
	flags, err := unix.FcntlInt(uintptr(second), unix.F_GETFD, 0)
	require.NoError(t, err)
	require.Equal(t, unix.FD_CLOEXEC, flags&unix.FD_CLOEXEC)
	require.NoError(t, Close(second))
	require.NoError(t, Close(fd))
}
