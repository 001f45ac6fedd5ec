//go:build linux

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// TestReplaceOfAFixedFile requires that an immutable file or folder is refused before a byte is copied.
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
}

// TestFolderCannotBeWritten runs undo and finish where no name can change: nothing is begun, and both can be repeated.
func TestFolderCannotBeWritten(t *testing.T) {
	t.Parallel()
	path := sampleDisk(t)
	require.Zero(t, trueup(t, "replace", path).code)
	before, dir := hashFolder(t, filepath.Dir(path)), filepath.Dir(path)
	require.NoError(t, os.Chmod(dir, 0o555))
	t.Cleanup(func() { require.NoError(t, os.Chmod(dir, 0o755)) })
	for _, name := range []string{"undo", "finish"} {
		command := []string{builtPath, name, path}
		if os.Geteuid() == 0 {
			command = append([]string{disktest.Tool(t, "setpriv"), "--bounding-set", "-dac_override"}, command...)
		}
		r := run(t, command[0], command[1:]...)
		require.Equal(t, 1, r.code, r.stderr)
		require.Contains(t, r.stderr, "permission denied; nothing was changed; make the folder writable")
		requireOneLine(t, r.stderr)
		require.Equal(t, before, hashFolder(t, dir))
	}
}
