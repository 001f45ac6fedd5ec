//go:build unix

package sys

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
	got, err := retryValue(c.call)
	require.NoError(t, err)
	require.Equal(t, "done", got)
	require.Equal(t, 4, c.calls)
}

func TestOtherErrorsAreNotRetried(t *testing.T) {
	for _, e := range []error{unix.EAGAIN, unix.EIO, unix.EACCES, unix.ENOLCK} {
		c := &interrupted{errs: []error{unix.EINTR, e}}
		_, err := retryValue(c.call)
		require.ErrorIs(t, err, e)
		require.Equal(t, 2, c.calls)
	}
}

// A program that is started from here must not get the folder of an image.
func TestFoldersAreNotInherited(t *testing.T) {
	first, err := OpenFolder(t.TempDir())
	require.NoError(t, err)
	second, err := first.Again()
	require.NoError(t, err)
	for _, d := range []*Folder{first, second} {
		flags, err := unix.FcntlInt(uintptr(d.fd), unix.F_GETFD, 0)
		require.NoError(t, err)
		require.Equal(t, unix.FD_CLOEXEC, flags&unix.FD_CLOEXEC)
		require.NoError(t, d.Close())
	}
}

// The special bits of a mode come back as they were.
func TestChmodKeepsSpecialBits(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	defer f.Close()
	want := 0o640 | fs.ModeSetgid | fs.ModeSticky
	require.NoError(t, FromOS(f).Chmod(want))
	got, err := FromOS(f).Stat()
	require.NoError(t, err)
	require.Equal(t, want, got.Mode)
}

// A folder is flushed as long as it is open.
func TestCallsOnAClosedFolder(t *testing.T) {
	d, err := OpenFolder(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, d.Sync())
	require.NoError(t, d.Close())
	closed := &Folder{-1}
	require.ErrorIs(t, closed.Sync(), unix.EBADF)
	_, err = closed.Again()
	require.ErrorIs(t, err, unix.EBADF)
	_, err = closed.List()
	require.ErrorIs(t, err, unix.EBADF)
	require.ErrorIs(t, closed.Close(), unix.EBADF)
}

// A link is another file than that which it leads to.
func TestInfoOfLinksAndPipes(t *testing.T) {
	dir := t.TempDir()
	path, link, pipe := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	require.NoError(t, os.WriteFile(path, make([]byte, 5000), 0o640))
	require.NoError(t, os.Symlink("file", link))
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	requireInfoOfOS(t, pipe)
	file := requireInfoOfOS(t, path)
	require.False(t, file.Same(requireInfoOfOS(t, link)))
	followed, err := Stat(link)
	require.NoError(t, err)
	require.True(t, file.Same(followed))
}

// Other descriptors meet the lock of a byte there only.
func TestLocksOfBytes(t *testing.T) {
	first, second := twice(t)
	require.NoError(t, first.LockByte(Exclusive, 100))
	for at, want := range map[int64]bool{99: false, 100: true, 101: false} {
		locked, err := second.LockedByte(at)
		require.NoError(t, err)
		require.Equal(t, want, locked, "%d", at)
	}
	// A child process that was just started has a copy of each descriptor for a moment.
	require.NoError(t, first.Lock(Exclusive))
	child, err := unix.Dup(first.fd)
	require.NoError(t, err)
	defer unix.Close(child)
	require.NoError(t, first.Unlock())
	locked, err := second.LockedByte(100)
	require.NoError(t, err)
	require.False(t, locked)
	require.NoError(t, second.Lock(Exclusive))
}

// A program that prints more than it may ends, and one that is ended says by what.
func TestAsk(t *testing.T) {
	t.Parallel()
	ask := func(ctx context.Context, script string) (out, said []byte, err error) {
		return Output(ctx, exec.CommandContext(ctx, "sh", "-c", script), 100)
	}
	out, said, err := ask(t.Context(), "echo out; echo said >&2; exit 3")
	exit, ok := errors.AsType[*exec.ExitError](err)
	require.True(t, ok, err)
	require.Equal(t, 3, exit.ExitCode())
	require.Equal(t, "out\n said\n", string(out)+" "+string(said))
	_, _, err = ask(t.Context(), "yes")
	require.EqualError(t, err, "it printed more than 100 bytes")
	out, said, err = ask(t.Context(), "yes no | head -n 30000 >&2; echo out; echo last words >&2")
	require.NoError(t, err)
	require.Equal(t, "out\n", string(out))
	require.Len(t, said, 100)
	require.True(t, strings.HasSuffix(string(said), "no\nlast words\n"), "%q", said)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("Ctrl-C")
	cancel(why)
	_, _, err = ask(ctx, "sleep 1000")
	require.ErrorIs(t, err, why)
	_, reads := any(&bounded{}).(io.ReaderFrom)
	require.False(t, reads, "io.Copy would pass the bound")
}
