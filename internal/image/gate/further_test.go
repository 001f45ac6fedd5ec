package gate

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
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

// From a file with only a handle of its folder, files beside it can be opened.
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

// sectorDevice reads whole sectors of a disk, as Windows does.
type sectorDevice struct {
	disk    []byte
	sector  int64
	longest int
	bad     error
}

func (d *sectorDevice) ReadAt(p []byte, off int64) (int, error) {
	d.longest = max(d.longest, len(p))
	switch end := off + int64(len(p)); {
	case off%d.sector != 0 || end%d.sector != 0 || len(p) == 0:
		return 0, errors.New("the parameter is incorrect")
	case end > int64(len(d.disk)):
		return 0, errors.New("the sector is not there")
	case d.bad != nil:
		return 0, d.bad
	}
	return copy(p, d.disk[off:]), nil
}

// Reads of any offset and length become reads of whole sectors, with the same result as reads from memory.
func TestSectors(t *testing.T) {
	t.Parallel()
	for _, sector := range []int64{512, 4096} {
		d := &sectorDevice{disk: make([]byte, 5<<20), sector: sector}
		r := rand.New(rand.NewPCG(1, uint64(sector)))
		for i := range d.disk {
			d.disk[i] = byte(r.Uint32())
		}
		size := int64(len(d.disk))
		s, err := sectorsOf(d, size, sector)
		require.NoError(t, err)
		want := bytes.NewReader(d.disk)
		check := func(off int64, n int) {
			t.Helper()
			got, expected := make([]byte, n), make([]byte, n)
			m, err := s.ReadAt(got, off)
			wantN, wantErr := want.ReadAt(expected, off)
			require.Equal(t, wantN, m, "%d bytes at %d", n, off)
			require.Equal(t, wantErr, err, "%d bytes at %d", n, off)
			require.True(t, bytes.Equal(expected, got), "%d bytes at %d", n, off)
		}
		for _, off := range []int64{
			0, 1, sector - 1, sector, 1<<20 - 1, 1 << 20, size - sector, size - 1, size, size + 1,
		} {
			for _, n := range []int{1, 511, 512, int(sector), int(sector) + 1, 1 << 20, 1<<20 + 1, 3<<20 + 7} {
				check(off, n)
			}
		}
		for range 200 {
			check(r.Int64N(size), 1+r.IntN(1<<17))
		}
		require.Equal(t, 1<<20, d.longest)
		n, err := s.ReadAt(nil, 1)
		require.NoError(t, err)
		require.Zero(t, n)
		d.bad = errors.New("cyclic redundancy check")
		_, err = s.ReadAt(make([]byte, 2), sector-1)
		require.ErrorIs(t, err, d.bad)
		require.ErrorContains(t, err, "at byte 0")
	}
}

// Impossible disk sizes are refused before anything is read.
func TestSectorsOfOddSizes(t *testing.T) {
	t.Parallel()
	_, err := sectorsOf(nil, 0, 512)
	require.ErrorIs(t, err, ondisk.ErrFormat)
	for _, c := range [][2]int64{
		{512, 0}, {512, 256}, {520 * 10, 520}, {513, 512}, {1 << 20, 1 << 17}, {-512, 512}, {512, -512}, {2048, 4096},
	} {
		_, err := sectorsOf(nil, c[0], c[1])
		require.ErrorIs(t, err, ondisk.ErrUnsupported, "%v", c)
	}
}

// A disk that ends before its size, as when its medium is taken out, has an error.
func TestReaderOfADriveReportsItsEnd(t *testing.T) {
	t.Parallel()
	d, err := OpenFolder(t.TempDir())
	require.NoError(t, err)
	defer d.Close()
	made, err := d.At.Create("a", 0o600)
	require.NoError(t, err)
	_, err = made.WriteString("0123456789")
	require.NoError(t, errors.Join(err, made.Close()))
	f, err := d.At.Open("a")
	require.NoError(t, err)
	defer f.Close()
	p := make([]byte, 8)
	n, err := preader{f}.ReadAt(p, 1)
	require.NoError(t, err)
	require.Equal(t, "12345678", string(p[:n]))
	n, err = preader{f}.ReadAt(p, 4)
	require.Equal(t, 6, n)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}
