package sys

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFileSystemOfAFolder compares the UUID with that of findmnt, which asks udev or the device.
func TestFileSystemOfAFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	got := FileSystem(dir)
	require.NotContains(t, got, "00000000-0000", "zeros are no UUID")
	require.Empty(t, FileSystem(dir+"/nothing"))
	out, err := exec.Command("findmnt", "-n", "-o", "UUID", "-T", dir).Output()
	if want := strings.TrimSpace(string(out)); err == nil && want != "" && got != "" {
		require.Equal(t, want, got)
	}
}
