package gate_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/image/gate"
)

// All ways to write the path of a file lead to it. Source: File path formats on Windows systems (Microsoft).
func TestPathsOfWindows(t *testing.T) {
	dir := t.TempDir()
	for range 4 {
		dir = filepath.Join(dir, strings.Repeat("x", 100))
	}
	require.NoError(t, os.MkdirAll(dir, 0o700))
	long := filepath.Join(dir, "long.img")
	require.NoError(t, os.WriteFile(long, []byte("bytes"), 0o600))
	short := filepath.Join(t.TempDir(), "a.img")
	require.NoError(t, os.WriteFile(short, []byte("bytes"), 0o600))
	t.Chdir(filepath.Dir(short))
	drive := filepath.VolumeName(short)
	require.Len(t, drive, 2)
	for _, path := range []string{
		short, "a.img", "A.IMG", drive + "a.img", short[len(drive):], filepath.ToSlash(short), `.\a.img`,
		`\\?\` + short,
		long, `\\?\` + long,
	} {
		d, base, err := gate.Follow(path, nil)
		require.NoError(t, err, path)
		f, err := d.OpenNamed(base)
		require.NoError(t, err, path)
		require.EqualValues(t, 5, f.Size(), path)
		require.NoError(t, f.Unchanged(), path)
		require.NoError(t, f.Close())
		require.NoError(t, d.Close())
	}
	for path, says := range map[string]string{
		"NUL": "Windows device", `\\.\NUL`: "Windows device", `\\.\PhysicalDrive0`: "Windows device",
		"COM1.img": "Windows device", "a.img:stream": "or stream", drive: "drive", "a.img.": "ends with a dot",
	} {
		_, _, err := gate.Follow(path, nil)
		require.ErrorContains(t, err, says, path)
	}
}
