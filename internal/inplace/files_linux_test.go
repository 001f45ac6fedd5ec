package inplace

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/units"
)

// TestErrorsOfFiles has each call on a file fail: the error says which it was, and of which file.
func TestErrorsOfFiles(t *testing.T) {
	t.Parallel()
	fs, _, _ := twoFiles(t)
	for _, f := range fs.open {
		require.NoError(t, f.Close())
	}
	_, err := fs.WriteAt([]byte("x"), 0)
	require.ErrorContains(t, err, "write a: ")
	_, err = fs.ReadAt(make([]byte, 1), 0)
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorContains(t, fs.Zero(0, 1), "make a hole in a: ")
	require.ErrorContains(t, fs.Zero(2*units.MiB, 1), "write b: ")
	require.ErrorContains(t, fs.Truncate(5*units.MiB), "set size of b: ")
	require.ErrorContains(t, fs.Sync(), "sync a: ")
	require.ErrorIs(t, fs.apart(nil), unix.EBADF)
	require.ErrorIs(t, fs.Close(), os.ErrClosed)
}
