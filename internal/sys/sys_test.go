package sys

import (
	"io/fs"
	"os"
	"path/filepath"
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
	text, err := os.ReadFile(filepath.Join(path, "b"))
	require.NoError(t, err)
	require.Equal(t, "b", string(text))
}
