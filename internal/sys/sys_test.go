package sys

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
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

// Modes are those of os, which the room does without.
func TestInfoIsThatOfOS(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(path, make([]byte, 5000), 0o640))
	require.NoError(t, os.Chmod(path, 0o640|fs.ModeSetgid|fs.ModeSticky))
	require.NoError(t, os.Symlink("file", filepath.Join(dir, "link")))
	require.NoError(t, os.Link(path, filepath.Join(dir, "second")))
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	for _, path := range []string{dir, path, filepath.Join(dir, "link"), filepath.Join(dir, "fifo"), os.DevNull} {
		want, err := os.Lstat(path)
		require.NoError(t, err)
		got, err := Lstat(path)
		require.NoError(t, err)
		require.Equal(t, want.Mode(), got.Mode, path)
		require.Equal(t, want.Size(), got.Size)
		require.Equal(t, want.ModTime().UnixNano(), got.Modified)
	}
	file, err := Stat(filepath.Join(dir, "link"))
	require.NoError(t, err)
	second, err := Lstat(filepath.Join(dir, "second"))
	require.NoError(t, err)
	link, err := Lstat(filepath.Join(dir, "link"))
	require.NoError(t, err)
	require.True(t, file.Same(second))
	require.False(t, file.Same(link))
	require.False(t, Info{}.Same(Info{}), "a system that does not say what a file is")
	require.Equal(t, uint64(2), file.Links)
}

// The special bits of a mode come back as they were.
func TestChmodKeepsSpecialBits(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	defer f.Close()
	want := 0o640 | fs.ModeSetgid | fs.ModeSticky
	require.NoError(t, Of(f).Chmod(want))
	got, err := Of(f).Stat()
	require.NoError(t, err)
	require.Equal(t, want, got.Mode)
}

// A name that is taken stays with its file.
func TestRenameNewReplacesNothing(t *testing.T) {
	path := t.TempDir()
	d, err := OpenFolder(path)
	require.NoError(t, err)
	defer d.Close()
	for _, name := range []string{"a", "b"} {
		require.NoError(t, os.WriteFile(filepath.Join(path, name), []byte(name), 0o600))
	}
	require.ErrorIs(t, d.RenameNew("a", "b"), fs.ErrExist)
	require.NoError(t, d.RenameNew("a", "c"))
	text := disktest.ReadFile(t, filepath.Join(path, "b"))
	require.Equal(t, "b", string(text))
}

// Each call has its effect, and says why it has none.
func TestCallsOnAFolder(t *testing.T) {
	path := t.TempDir()
	names := func() (out []string) {
		entries, err := os.ReadDir(path)
		require.NoError(t, err)
		for _, e := range entries {
			out = append(out, e.Name())
		}
		return out
	}
	d, err := OpenFolder(path)
	require.NoError(t, err)
	f, err := d.Create("a", 0o600)
	require.NoError(t, err)
	defer f.Close()
	_, err = d.Create("a", 0o600)
	require.ErrorIs(t, err, fs.ErrExist)
	require.NoError(t, d.Link("a", "b"))
	require.ErrorIs(t, d.Link("a", "b"), fs.ErrExist)
	require.NoError(t, d.Rename("b", "c"))
	require.ErrorIs(t, d.Rename("b", "c"), fs.ErrNotExist)
	require.Equal(t, []string{"a", "c"}, names())
	require.NoError(t, d.RenameNew("c", "d"))
	require.NoError(t, d.Remove("a"))
	require.ErrorIs(t, d.Remove("a"), fs.ErrNotExist)
	require.Equal(t, []string{"d"}, names())
	require.NoError(t, d.Sync())

	for _, open := range []func(string) (*File, error){d.Open, d.OpenToWrite} {
		_, err = open("none")
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
	_, err = d.Lstat("none")
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = OpenFolder(filepath.Join(path, "none"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = OpenDirect(filepath.Join(path, "none"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = SharesMemory(filepath.Join(path, "none"))
	require.ErrorIs(t, err, fs.ErrNotExist)

	require.NoError(t, d.Close())
	closed := &Folder{-1}
	require.ErrorIs(t, closed.Sync(), unix.EBADF)
	_, err = closed.Again()
	require.ErrorIs(t, err, unix.EBADF)
	_, err = closed.List()
	require.ErrorIs(t, err, unix.EBADF)
	require.ErrorIs(t, closed.Close(), unix.EBADF)
}

// A lock belongs to an open file: another of the same file meets it, byte by byte.
func TestLocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	var f [2]*os.File
	for i := range f {
		var err error
		f[i], err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		require.NoError(t, err)
		defer f[i].Close()
	}
	first, second := Of(f[0]), Of(f[1])
	require.NoError(t, first.Lock(Exclusive))
	require.True(t, Locked(second.Lock(Shared)))
	require.NoError(t, first.Lock(Unlocked))
	require.NoError(t, second.LockWaiting(Shared))
	require.NoError(t, first.Lock(Shared))
	require.True(t, Locked(first.Lock(Exclusive)))

	require.NoError(t, first.LockByte(Exclusive, 100))
	for at, want := range map[int64]bool{99: false, 100: true, 101: false} {
		locked, err := second.LockedByte(at)
		require.NoError(t, err)
		require.Equal(t, want, locked, "%d", at)
	}
}

// An error of a file system loses its path, and others stay as they are.
func TestCause(t *testing.T) {
	require.Equal(t, unix.EIO, Cause(&fs.PathError{Op: "open", Path: "a", Err: unix.EIO}))
	require.Equal(t, fs.ErrClosed, Cause(fs.ErrClosed))
}
