//go:build linux

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// TestReplaceOfAFixedFile requires that an immutable file or folder is refused before a byte is copied, or moved.
func TestReplaceOfAFixedFile(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root for chattr")
	}
	chattr := disktest.Tool(t, "chattr")
	for _, folder := range []bool{false, true} {
		path := sampleDisk(t)
		fixed, flag := path, "i"
		if folder {
			fixed, flag = filepath.Dir(path), "a"
		}
		if r := run(t, chattr, "+"+flag, fixed); r.code != 0 {
			t.Skip("the file system has no such attributes: " + r.stderr)
		}
		t.Cleanup(func() { run(t, chattr, "-"+flag, fixed) })
		r := trueup(t, "replace", path)
		require.Equal(t, 4, r.code, r.stderr)
		require.Contains(t, r.stderr, "chattr")
		require.Equal(t, []string{"xp.vmdk"}, folderNames(t, filepath.Dir(path)))
	}
	raw := filepath.Join(t.TempDir(), "xp.raw")
	require.Zero(t, trueup(t, "convert", "--to", "raw", sampleDisk(t), raw).code)
	t.Cleanup(func() { run(t, chattr, "-i", raw) })
	require.Zero(t, run(t, chattr, "+i", raw).code)
	r := trueup(t, "move", raw)
	require.Equal(t, 1, r.code, r.stderr)
	require.Contains(t, r.stderr, "chattr")
	require.Equal(t, []string{"xp.raw"}, folderNames(t, filepath.Dir(raw)))
}
