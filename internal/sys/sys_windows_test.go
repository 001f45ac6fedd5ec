package sys

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/windows"
)

// Source: Naming Files, Paths, and Namespaces (Microsoft): devices have their names with any suffix, too.
func TestNamesOfWindows(t *testing.T) {
	for _, name := range []string{"a", "a.vmdk", "nul-a", "COM10", ".", "..", "a b"} {
		require.NoError(t, CheckName(name), name)
	}
	for _, name := range []string{"NUL", "nul", "CON", "com1", "LPT9", "aux", "nul.vmdk", "a:b", "C:", `\`} {
		require.ErrorContains(t, CheckName(name), "device", name)
	}
	for _, name := range []string{"a.", "a ", "a. ."} {
		require.ErrorContains(t, CheckName(name), "leave out", name)
	}
}

// What a caller asks of an error is known of the errors of Windows.
func TestErrorsOfWindows(t *testing.T) {
	require.True(t, Unsupported(windows.ERROR_INVALID_FUNCTION), "a link on FAT")
	require.True(t, Denied(windows.ERROR_ACCESS_DENIED))
	require.True(t, Full(windows.ERROR_DISK_QUOTA_EXCEEDED))
	require.True(t, TooLong(windows.ERROR_FILENAME_EXCED_RANGE))
	d, err := OpenFolder(t.TempDir())
	require.NoError(t, err)
	require.True(t, Unsupported(d.Sync()))
	require.True(t, TooLong(d.RenameNew("a", strings.Repeat("x", 300))))
	require.NoError(t, d.Close())
}

// Folders below each other may have more than 260 characters together.
func TestLongPathsOfWindows(t *testing.T) {
	path := t.TempDir()
	for range 4 {
		path = filepath.Join(path, strings.Repeat("x", 100))
	}
	require.NoError(t, os.MkdirAll(path, 0o700))
	d, err := OpenFolder(path)
	require.NoError(t, err)
	f, err := d.Create("a", 0o600)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, d.RenameNew("a", "b"))
	_, known, err := d.Free()
	require.NoError(t, err)
	require.True(t, known)
	i, err := Stat(filepath.Join(path, "b"))
	require.NoError(t, err)
	require.Equal(t, uint64(1), i.Links)
	require.NoError(t, d.Remove("b"))
	require.NoError(t, d.Close())
}
