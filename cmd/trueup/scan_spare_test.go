package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// A raw disk and an extent can have any name. A report must not take their place.
func TestScanSparesWhatMayBeADisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "web01")
	disk := make([]byte, 1<<20)
	copy(disk[510:], "\x55\xaa")
	require.NoError(t, os.WriteFile(path, disk, 0o600))
	for _, flag := range []string{"--out", "--script"} {
		r := trueup(t, "scan", flag, path, dir)
		require.Equal(t, 64, r.code)
		require.Contains(t, r.stderr, "would overwrite what is no text")
		after := disktest.ReadFile(t, path)
		require.True(t, bytes.Equal(disk, after))
	}
}

func TestScanWritesAnOlderReportAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "report")
	for range 2 {
		require.Zero(t, trueup(t, "scan", "--allow-empty", "-o", "html", "--out", path, dir).code)
	}
}

// One name for two files would lose the one that was written, or read, first.
func TestScanKeepsItsFilesApart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, link := filepath.Join(dir, "x"), filepath.Join(dir, "link")
	require.NoError(t, os.WriteFile(path, []byte("# none\n"), 0o600))
	require.NoError(t, os.Symlink(path, link))
	absent := filepath.Join(dir, "absent")
	for _, args := range [][]string{
		{"--out", path, "--script", path},
		{"--out", path, "--ignore", path},
		{"--out", link, "--ignore", path},
		{"--script", path, "--files-from", path},
		{"--script", absent, "--since", dir + "/./absent"},
		{"--script", path, "--since", link},
	} {
		r := trueup(t, append([]string{"scan", dir}, args...)...)
		require.Equal(t, 64, r.code, args)
		require.Contains(t, r.stderr, " would overwrite --", args)
		require.NoFileExists(t, absent)
	}
}

// What cannot be written is said before anything is looked at, not when hours of work are lost with it.
func TestScanTriesWhereItsScriptGoes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	report := filepath.Join(dir, "report")
	r := trueup(t, "scan", "--out", report, "--script", filepath.Join(dir, "absent", "fix.sh"), "--progress", "json",
		dir)
	require.Equal(t, 1, r.code)
	requireOneLine(t, r.stderr)
	require.Contains(t, r.stderr, "folder of --script")
	require.NoFileExists(t, report)
}
