package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReportHasNoFolder requires that a report which cannot be written is noticed before the copy is made.
func TestReportHasNoFolder(t *testing.T) {
	t.Parallel()
	source := seededDisk(t, filepath.Join(t.TempDir(), "d.raw"), "disk")
	f := newFault(t, source)
	missing := filepath.Join(t.TempDir(), "missing", "x.json")
	for _, args := range [][]string{{"align", source, f.dest}, {"convert", source, f.dest}, {"plan", source}} {
		r := trueup(t, append(args, "--out", missing)...)
		require.Equal(t, 1, r.code, r.stderr)
		requireOneLine(t, r.stderr)
		require.Contains(t, r.stderr, missing)
		f.requireUndone(t)
	}
}

// TestReportThroughLink refuses a report whose name is a link to DEST, which is not there yet.
func TestReportThroughLink(t *testing.T) {
	t.Parallel()
	f := newFault(t, seededDisk(t, filepath.Join(t.TempDir(), "d.raw"), "disk"))
	out := filepath.Join(filepath.Dir(f.dest), "out.json")
	require.NoError(t, os.Symlink(f.dest, out))
	r := trueup(t, "align", f.source, f.dest, "--json", "--out", out)
	require.Equal(t, 64, r.code, r.stderr)
	require.NoFileExists(t, f.dest)
	require.Equal(t, f.before, hashFolder(t, filepath.Dir(f.source)), "SOURCE changed")
}

// TestReportBesideImages has images that are called as a report could be while it is written.
func TestReportBesideImages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	beside := seededDisk(t, filepath.Join(dir, ".x.json.partial"), "disk")
	f := newFault(t, seededDisk(t, filepath.Join(dir, "d.raw"), "disk"))
	before := sha256Of(t, beside)
	r := trueup(t, "align", f.source, f.dest, "--to", "raw", "--out", filepath.Join(dir, "x.json"))
	require.Equal(t, 0, r.code, r.stderr)
	require.Equal(t, before, sha256Of(t, beside))
}
