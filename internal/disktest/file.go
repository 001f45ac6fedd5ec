package disktest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Blank makes a file of size bytes that is a hole, in a new folder, and returns its path.
func Blank(t testing.TB, name string, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	MakeBlank(t, path, size)
	return path
}

// MakeBlank makes a file of size bytes that is a hole.
func MakeBlank(t testing.TB, path string, size int64) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, nil, 0o644))
	require.NoError(t, os.Truncate(path, size))
}

// ReadFile returns the bytes of a file.
func ReadFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

// Stat returns the os.FileInfo of the file at path.
func Stat(t testing.TB, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info
}

// Names lists a folder.
func Names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	out := []string{}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// WriteAt writes into a file.
func WriteAt(t testing.TB, path string, off int64, b []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(b, off)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}
