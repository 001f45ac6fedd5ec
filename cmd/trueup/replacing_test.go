//go:build linux

package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// folderSums returns the digests and modes of the files of a folder.
func folderSums(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, n := range folderNames(t, dir) {
		b := disktest.ReadFile(t, filepath.Join(dir, n))
		st := disktest.Stat(t, filepath.Join(dir, n))
		out[n] = fmt.Sprintf("%x %v", sha256.Sum256(b), st.Mode())
	}
	return out
}

// TestReplaceOfAFixedFile refuses a file and a folder whose names cannot change, before a byte is copied.
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

// TestFolderCannotBeWritten gives undo and finish where no name can change: nothing is begun, and both can be given
// yet.
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
		require.Contains(t, r.stderr, "permission denied; nothing was changed: make it writable")
		requireOneLine(t, r.stderr)
		require.Equal(t, before, hashFolder(t, dir))
	}
}

// TestKeepNoneIsKilled kills an exchange that is to keep no original. The same command completes it, and keeps none.
func TestKeepNoneIsKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := newFault(t, flatDisk(t, dir, "x"))
	before := folderNames(t, dir)
	command := []string{builtPath, "replace", "--keep", "none", f.source}
	killed := run(t, disktest.Tool(t, "strace"), append([]string{
		"-f", "-o", filepath.Join(t.TempDir(), "log"),
		"-e", "trace=renameat", "-e", "inject=renameat:signal=KILL:when=1",
	}, command...)...)
	require.Equal(t, 128+9, killed.code, killed.stderr)
	r := trueup(t, command[1:]...)
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, r.stdout, "the original is removed")
	require.Equal(t, before, folderNames(t, dir))
}

// TestReplaceIsKilled kills an exchange by the program itself. All commands refuse the disk, and the same one completes
// it.
func TestReplaceIsKilled(t *testing.T) {
	t.Parallel()
	f := newFault(t, flatDisk(t, t.TempDir(), "x"))
	before := folderSums(t, filepath.Dir(f.source))
	killed := run(t, disktest.Tool(t, "strace"), "-f", "-o", filepath.Join(t.TempDir(), "log"),
		"-e", "trace=renameat", "-e", "inject=renameat:signal=KILL:when=1", builtPath, "replace", f.source)
	require.Equal(t, 128+9, killed.code, killed.stderr)
	for _, args := range [][]string{
		{"inspect", f.source},
		{"plan", f.source},
		{"align", f.source, f.dest},
		{"convert", f.source, f.dest},
		{"finish", f.source},
		{"align", sampleDisk(t), f.source, "--force"},
	} {
		r := trueup(t, append(args, "--json")...)
		require.Equal(t, 4, r.code, "%q: %s", args, r.stderr)
		require.Contains(t, r.stdout, `"unfinished"`)
	}
	require.Contains(t, trueup(t, "inspect", f.source).stderr, "trueup resume")
	r := trueup(t, "replace", f.source)
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, r.stdout, "the exchange is complete")
	require.Equal(t, 0, trueup(t, "verify", filepath.Join(filepath.Dir(f.source), "x.orig.vmdk"), f.source).code)
	require.Equal(t, 0, trueup(t, "undo", f.source).code)
	require.Equal(t, before, folderSums(t, filepath.Dir(f.source)))
}
