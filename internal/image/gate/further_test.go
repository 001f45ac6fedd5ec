package gate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
)

// further is a tree with an image in own, a library that is allowed, and links that lead out of it.
func further(t testing.TB) (root string, o *Opened) {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	for _, name := range []string{"own/child", "own/beside", "lib/base", "lib/sub/deep", "secret/base"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(name), 0o644))
	}
	for to, at := range map[string]string{
		"../secret": "lib/out", "../secret/base": "lib/file", "sub": "lib/in", "lib/sub": "jump", "lib": "alias",
	} {
		require.NoError(t, os.Symlink(to, filepath.Join(root, at)))
	}
	d, base, err := Follow(filepath.Join(root, "own/child"), nil)
	require.NoError(t, err)
	f, err := d.Open(base)
	require.NoError(t, err)
	o = &Opened{Dir: d, Base: base, Handles: []*File{f}}
	t.Cleanup(func() { require.NoError(t, o.Close()) })
	return root, o
}

// Reach opens what the kernel opens by the same path, within the allowed folders.
func TestReach(t *testing.T) {
	disktest.OnUnix(t, "links")
	t.Parallel()
	root, o := further(t)
	_, all, err := Allow([]string{root + "/lib", root + "/alias", root + "/lib"})
	require.NoError(t, err)
	require.Equal(t, []string{root + "/lib", root + "/alias"}, all)
	_, byLink, err := Allow([]string{root + "/alias"})
	require.NoError(t, err)
	require.Equal(t, all, byLink)
	for name, want := range map[string]string{
		root + "/lib/base": root + "/lib/base", "../lib/base": root + "/lib/base",
		"./../lib//sub/./deep": root + "/lib/sub/deep",
		root + "/alias/base":   root + "/lib/base", root + "/own/beside": "beside", "../own/beside": "beside",
	} {
		f, err := o.Reach(o.Handles[0], name, all)
		require.NoError(t, err, name)
		o.Handles = append(o.Handles, f)
		require.Equal(t, want, f.Name(), name)
	}
	require.Len(t, o.Further, 2, "each folder is open once")
	for name, says := range map[string]string{
		root + "/secret/base": "--allow-folder " + root + "/secret", "../secret/base": "--allow-folder " + root +
			"/secret",
		"../lib/out/base": "is a link, or not a folder", "../lib/file": "is a symbolic link",
		"../lib/in/deep": "is a link, or not a folder",
		"../lib/sub":     "is a folder", "../lib/sub/../base": "has .. after a folder name",
		root + "/lib/../secret/base": "has .. after a folder name",
		"../jump/deep":               "--allow-folder " + root + "/jump", "../lib/": "is empty", "..": "is a folder",
		"../..":           "is a folder",
		"../library/base": "--allow-folder " + root + "/library", "../lib/a:b": "has a colon", `../lib/a\b`: "leaves",
	} {
		_, err := o.Reach(o.Handles[0], name, all)
		require.ErrorIs(t, err, ondisk.ErrReference, name)
		require.ErrorContains(t, err, says, name)
	}
	_, err = o.Reach(o.Handles[0], "../lib/sub/gone", all)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = o.Reach(o.Handles[0], "../lib/"+strings.Repeat("a/", maxFolders)+"x", all)
	require.ErrorIs(t, err, ondisk.ErrLimit)
}

// A file of which only the folder's handle is known reaches the files beside it.
func TestReachFromAFolderWithoutAPath(t *testing.T) {
	root, o := further(t)
	t.Chdir(root + "/own")
	d, err := OpenFolder(root + "/lib")
	require.NoError(t, err)
	defer d.Close()
	d.path = ""
	f, err := d.Open("base")
	require.NoError(t, err)
	defer f.Close()
	_, err = o.Reach(f, root+"/own/base", nil)
	require.ErrorIs(t, err, ondisk.ErrReference)
}

// Only folders can be allowed.
func TestAllow(t *testing.T) {
	disktest.OnUnix(t, "words of errors")
	t.Parallel()
	root, _ := further(t)
	for path, says := range map[string]string{"/own/child": "is not a folder", "/gone": "no such file"} {
		_, _, err := Allow([]string{root + path})
		require.ErrorIs(t, err, ondisk.ErrUsage)
		require.ErrorContains(t, err, says)
	}
}

// A remedy can be pasted into a shell, whatever an image names.
func TestShellFolder(t *testing.T) {
	t.Parallel()
	for folder, want := range map[string]string{
		"/srv/vm-1": "/srv/vm-1", "/srv/my vms": "'/srv/my vms'", "/srv/$(reboot)": "'/srv/$(reboot)'",
		"/srv/it's":    "DIR",
		"/srv/\x1b[2J": "DIR", "/srv/\xff": "DIR", "/srv/größe": "/srv/größe", "/srv/a;b": "'/srv/a;b'",
	} {
		require.Equal(t, want, shellFolder(folder))
	}
}

// FuzzReach compares each file that a name leads to with the one that the kernel finds, and with those allowed.
func FuzzReach(f *testing.F) {
	disktest.OnUnix(f, "links")
	for _, name := range []string{
		"../lib/base", "/lib/base", "../lib/out/base", "../lib/sub/../base", "./..//lib/./sub/deep", "../jump/deep",
		"beside", "..",
		"../own/child", "../alias/base", "a/b", "../lib/file", "../secret/base",
	} {
		f.Add(name)
	}
	root, o := further(f)
	_, all, err := Allow([]string{root + "/lib", root + "/alias"})
	require.NoError(f, err)
	var allowed []os.FileInfo
	for _, name := range []string{"own/child", "own/beside", "lib/base", "lib/sub/deep"} {
		st, err := os.Lstat(filepath.Join(root, name))
		require.NoError(f, err)
		allowed = append(allowed, st)
	}
	f.Fuzz(func(t *testing.T, name string) {
		full := root + "/own/" + name
		if name != "" && name[0] == '/' {
			name = root + name
			full = name
		}
		got, err := o.Reach(o.Handles[0], name, all)
		if err != nil {
			require.Nil(t, got)
			return
		}
		defer got.Close()
		kernel := disktest.Stat(t, full)
		opened := disktest.Stat(t, filepath.Join(got.dir.path, got.Base()))
		require.True(t, os.SameFile(kernel, opened), "%q", name)
		found := false
		for _, st := range allowed {
			found = found || os.SameFile(st, opened)
		}
		require.True(t, found, "%q leads to %s", name, got.Name())
	})
}
