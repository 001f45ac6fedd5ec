package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// exitLibraries are folders with one thing in each.
func exitLibraries(t *testing.T) map[string]string {
	t.Helper()
	dirs := map[string]string{}
	folder := func(name string) string {
		dirs[name] = t.TempDir()
		return dirs[name]
	}
	smallDisk(t, filepath.Join(folder("on 1M"), "a.raw"), 2048)
	smallDisk(t, filepath.Join(folder("on 64K"), "a.raw"), 128)
	smallDisk(t, filepath.Join(folder("on 4K"), "a.raw"), 8)
	smallDisk(t, filepath.Join(folder("off 4K"), "a.raw"), 63)
	require.NoError(t, os.WriteFile(filepath.Join(folder("broken"), "a.vmdk"), []byte("KDMV\x01\x00\x00\x00"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(folder("orphan"), "a-flat.vmdk"), make([]byte, 8192), 0o644))
	folder("empty")
	require.NoError(t, os.WriteFile(filepath.Join(folder("blank"), "a.raw"), make([]byte, 8<<20), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(folder("unknown"), "a.raw"), noise("unknown", 8<<20), 0o644))
	both := folder("broken and off 4K")
	disktest.Run(t, "cp", filepath.Join(dirs["broken"], "a.vmdk"), filepath.Join(dirs["off 4K"], "a.raw"), both)
	two := folder("on 4K and off 4K")
	smallDisk(t, filepath.Join(two, "a.raw"), 8)
	smallDisk(t, filepath.Join(two, "b.raw"), 63)
	return dirs
}

func TestScanExitCodes(t *testing.T) {
	t.Parallel()
	dirs := exitLibraries(t)
	want := map[string]map[string]int{ // by library and --fail-on
		"empty":             {"": 1, "error": 1, "4K": 1, "never": 0},
		"blank":             {"": 0, "error": 0, "4K": 0, "never": 0},
		"unknown":           {"": 1, "error": 1, "4K": 1, "never": 0},
		"on 1M":             {"": 0, "error": 0, "4K": 0, "never": 0},
		"on 64K":            {"": 0, "error": 0, "4K": 0, "never": 0},
		"on 4K":             {"": 2, "error": 0, "4K": 0, "never": 0},
		"off 4K":            {"": 3, "error": 0, "4K": 3, "never": 0},
		"on 4K and off 4K":  {"": 3, "error": 0, "4K": 3, "never": 0},
		"orphan":            {"": 1, "error": 1, "4K": 1, "never": 0},
		"broken":            {"": 1, "error": 1, "4K": 1, "never": 0},
		"broken and off 4K": {"": 1, "error": 1, "4K": 1, "never": 0},
	}
	for name, dir := range dirs {
		for level, code := range want[name] {
			args := []string{"--isolation", "none", dir}
			if level != "" {
				args = append(args, "--fail-on", level)
			}
			s := scan(t, args...)
			require.Equal(t, code, s.code, "%s, --fail-on %q", name, level)
			nothing := code == 1 && (name == "empty" || name == "orphan")
			require.Equal(t, code == 0 || nothing, s.sum.Worst == "", s.sum.Worst)
			require.Equal(t, nothing, strings.Contains(s.stderr, "no image was judged"), s.stderr)
		}
	}
	require.Equal(t, 0, scan(t, "--allow-empty", dirs["empty"]).code)
	require.Equal(t, 0, scan(t, "--allow-unknown", dirs["unknown"]).code)
	require.Equal(t, 1, trueup(t, "inspect", filepath.Join(dirs["unknown"], "a.raw")).code)
	require.Equal(t, 0, trueup(t, "inspect", "--allow-unknown", filepath.Join(dirs["unknown"], "a.raw")).code)
	require.Equal(t, 2, scan(t, "--boundary", "1M", dirs["on 64K"]).code)
	require.Equal(t, 0, scan(t, "--boundary", "4K", dirs["on 4K"]).code)
	require.Equal(t, filepath.Join(dirs["on 4K and off 4K"], "b.raw"), scan(t, dirs["on 4K and off 4K"]).sum.Worst)
	lower := scan(t, "--fail-on", "4k", dirs["off 4K"])
	require.Equal(t, 3, lower.code)
	require.Equal(t, "4K", lower.sum.FailOn)
}

// Of several images that are as bad, the one that stands first in the report is named, whichever was finished first.
func TestScanNamesTheWorst(t *testing.T) {
	t.Parallel()
	dir := manyDisks(t, 40)
	for range 3 {
		require.Equal(t, filepath.Join(dir, "folder-00", "disk-000.raw"), scan(t, "--jobs", "4", dir).sum.Worst)
	}
}

// withoutRights runs a scan that has no right to pass over the modes of files, which root has.
func withoutRights(t *testing.T, args ...string) scanResult {
	t.Helper()
	command := append([]string{builtPath, "scan", "-o", "json"}, args...)
	if os.Geteuid() == 0 {
		const rights = "-dac_override,-dac_read_search"
		command = append([]string{disktest.Tool(t, "setpriv"), "--bounding-set", rights, "--inh-caps", rights},
			command...)
	}
	return readScan(t, run(t, command[0], command[1:]...))
}

// What cannot be looked at is an error, since what is there is not known. What lies beside it is judged.
func TestScanUnreadable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	smallDisk(t, filepath.Join(dir, "a.raw"), 2048)
	closed := filepath.Join(dir, "closed")
	require.NoError(t, os.Mkdir(closed, 0))
	t.Cleanup(func() { require.NoError(t, os.Chmod(closed, 0o755)) })
	for level, code := range map[string]int{"error": 1, "4K": 1, "never": 0} {
		s := withoutRights(t, "--fail-on", level, dir)
		require.Equal(t, code, s.code, s.stderr)
		require.Equal(t, map[string]string{"a.raw": "aligned"}, s.words(dir))
		require.Equal(t, 1, s.sum.UnreadableCount)
		require.Equal(t, closed, s.sum.Unreadable[0].Path)
		require.Equal(t, "io", s.sum.Unreadable[0].Error.Code)
		require.True(t, s.sum.Complete)
	}
	secret := smallDisk(t, filepath.Join(dir, "secret.vmdk"), 63)
	require.NoError(t, os.Chmod(secret, 0))
	s := withoutRights(t, dir)
	require.Equal(t, map[string]string{"a.raw": "aligned", "secret.vmdk": "io"}, s.words(dir))
	require.Contains(t, s.rows[secret].Error.Message, "permission denied")
}
