package journal

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A file that is not a journal is held by no command.
func TestNoJournalIsHeld(t *testing.T) {
	t.Parallel()
	for name, put := range map[string]func(path string) error{
		"a pipe": func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a link": func(path string) error { return os.Symlink("other", path) },
		"a text": func(path string) error { return os.WriteFile(path, []byte(strings.Repeat("text", 200)), 0o600) },
	} {
		_, path := folder(t)
		require.NoError(t, put(path+Suffix))
		_, err := Hold(path, "")
		require.ErrorContains(t, err, "should be a journal", name)
	}
}

// A program that was started meanwhile has the file of the journal open: it does not keep the lock.
func TestLockEndsWithTheRun(t *testing.T) {
	t.Parallel()
	h, _, path := held(t)
	fd, err := unix.Dup(int(h.file.Fd()))
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, h.Close())
	h, err = Hold(path, "")
	require.NoError(t, err)
	require.NoError(t, h.Close())
}
