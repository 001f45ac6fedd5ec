package gate

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
)

func openedFolder(t *testing.T) (*Folder, string) {
	t.Helper()
	path := t.TempDir()
	d, err := OpenFolder(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d, path
}

// A name in an image is the plain name of a file beside it. Each of these leads elsewhere, on some
// system or other.
func TestNamesThatLeadElsewhere(t *testing.T) {
	d, _ := openedFolder(t)
	for _, name := range []string{
		"", ".", "..", "/etc/shadow", "../x", "a/../../x", "sub/x", "x/", `..\x`, `C:\x`, `\\host\share`, "C:x",
		"/proc/self/fd/0",
		"nbd://127.0.0.1/x", "json:{}", "file:x", "x\x00y", "x\ny", "x\x7fy", "\x1b]0;x\a", `x"y`,
		"\xfc/x", "\xfc\x1bx", "\xfcx\\y", "\\\xfc", "\xfc:", "Grü\\x", "\xfc\x7f", `\xfc"`,
		strings.Repeat("a", 256),
	} {
		_, err := d.Open(name)
		require.ErrorIs(t, err, ondisk.ErrReference, "%q", name)
		require.NotContains(t, err.Error(), "\x1b")
		require.Less(t, len(err.Error()), 1500)
	}
}

// A path in a package leads to a file inside of its folder.
func TestPathsThatLeadElsewhere(t *testing.T) {
	for _, path := range []string{"..", "../x", "a/../x", "a//x", "/x", "a/"} {
		err := CheckPath(path)
		require.ErrorIs(t, err, ondisk.ErrReference, path)
		require.ErrorContains(t, err, "leaves the package's folder")
	}
	for _, path := range []string{"", "a/\x01"} {
		require.ErrorIs(t, CheckPath(path), ondisk.ErrReference)
	}
	require.ErrorIs(t, CheckPath(strings.Repeat("a/", maxFolders)+"x"), ondisk.ErrLimit)
	require.NoError(t, CheckPath(strings.Repeat("a/", maxFolders-1)+"x"))
}

func TestNamesThatAreFine(t *testing.T) {
	d, path := openedFolder(t)
	for _, name := range []string{
		"disk-flat.vmdk", "with blanks.vmdk", "-rf", "..x", "Grüße.vmdk", "%00", "~", "$HOME",
		strings.Repeat("a", 255),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(path, name), []byte("12345"), 0o644))
		f, err := d.Open(name)
		require.NoError(t, err, "%q", name)
		require.Equal(t, int64(5), f.Size())
		require.NoError(t, f.Close())
	}
	_, err := d.Open("absent")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NotErrorIs(t, err, ondisk.ErrReference)
}

// The names of files are bytes: an image can name them in any character set. The second half of a letter of two bytes
// can be that of a backslash, as in Shift_JIS (JIS X 0208), and separates no folders.
func TestNamesInOtherCharsets(t *testing.T) {
	disktest.OnUnix(t, "names that are not UTF-8")
	d, path := openedFolder(t)
	for _, name := range []string{"B\xfcro.vmdk", "\x95\x5c.vmdk", "\xff\xfe"} {
		if err := os.WriteFile(filepath.Join(path, name), []byte("12345"), 0o644); err != nil {
			t.Skipf("the file system takes no such names: %v", err)
		}
		f, err := d.Open(name)
		require.NoError(t, err, "%q", name)
		require.NoError(t, f.Close())
		require.ErrorContains(t, CheckName(name), "is not UTF-8", "what trueup writes has other names")
	}
}

// A folder that is renamed and replaced while an image is open cannot lead elsewhere.
func TestTheFolderIsHeldByItsHandle(t *testing.T) {
	disktest.OnUnix(t, "names of open files")
	top := t.TempDir()
	inside := filepath.Join(top, "images")
	require.NoError(t, os.Mkdir(inside, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(inside, "x"), []byte("right"), 0o644))
	d, err := OpenFolder(inside)
	require.NoError(t, err)
	defer d.Close()
	require.NoError(t, os.Rename(inside, filepath.Join(top, "moved")))
	require.NoError(t, os.Mkdir(inside, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(inside, "x"), []byte("wrong"), 0o644))
	f, err := d.Open("x")
	require.NoError(t, err)
	b := make([]byte, 5)
	_, err = f.ReadAt(b, 0)
	require.NoError(t, err)
	require.Equal(t, "right", string(b))
	require.NoError(t, f.Close())
}

// Opening a device without a medium fails. A device that is claimed during the read counts as changed. Spec: open(2),
// O_EXCL.
func TestDevices(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func(size int64) (*File, error) {
		path := filepath.Join(dir, fmt.Sprint(size))
		require.NoError(t, os.WriteFile(path, make([]byte, size), 0o600))
		d, base, err := Follow(disktest.LoopDevice(t, path), nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d.Close()) })
		return d.OpenNamed(base)
	}
	_, err := open(0)
	require.ErrorContains(t, err, "there is no medium in the device")
	f, err := open(1 << 20)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Unchanged())
	keeper, err := os.OpenFile(filepath.Join("/dev", f.Name()), os.O_RDONLY|os.O_EXCL, 0)
	require.NoError(t, err)
	defer keeper.Close()
	require.ErrorIs(t, f.Unchanged(), ondisk.ErrChanged)
}

// manyFiles is a folder with this many open files; file i holds its number.
func manyFiles(t *testing.T, n int) (string, []*File) {
	t.Helper()
	path := t.TempDir()
	d, err := OpenFolder(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	files := make([]*File, n)
	for i := range files {
		name := fmt.Sprintf("disk-s%03d.vmdk", i)
		require.NoError(t, os.WriteFile(filepath.Join(path, name), fmt.Appendf(nil, "%08d", i), 0o644))
		files[i], err = d.Open(name)
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		for _, f := range files {
			require.NoError(t, f.Close())
		}
		require.Empty(t, d.handles.open)
	})
	return path, files
}

func openHandles(files []*File) (n int) {
	for _, f := range files {
		if f.open != nil {
			n++
		}
	}
	return n
}

// A disk in pieces of 2 GB has more files than a process may have open.
func TestFilesTakeTurns(t *testing.T) {
	_, files := manyFiles(t, 3*maxHandles)
	require.Equal(t, maxHandles, openHandles(files))
	require.NotNil(t, files[0].open, "the first one carries the locks")
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for w := range errs {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 5))
			for range 2000 {
				i := rnd.IntN(len(files))
				b := make([]byte, 8)
				if _, err := files[i].ReadAt(b, 0); err != nil || string(b) != fmt.Sprintf("%08d", i) {
					errs[w] = fmt.Errorf("file %d: %q: %w", i, b, err)
					return
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, maxHandles, openHandles(files))
	require.NotNil(t, files[0].open)
}

// A file that gave its place away is opened again by name, and another one may have got the name meanwhile.
func TestReopenedFileWasReplaced(t *testing.T) {
	path, files := manyFiles(t, maxHandles+10)
	require.Nil(t, files[1].open, "it was not used for longest")
	name := filepath.Join(path, files[1].name)
	require.NoError(t, os.Rename(name, name+".old"))
	require.NoError(t, os.WriteFile(name, []byte("00000001"), 0o644))
	_, err := files[1].ReadAt(make([]byte, 8), 0)
	require.ErrorIs(t, err, ondisk.ErrChanged)
	require.ErrorIs(t, files[1].Unchanged(), ondisk.ErrChanged)
}

// The names of a folder are few, and one that was not looked at could matter.
func TestFoldersOfManyNames(t *testing.T) {
	t.Parallel()
	d, path := openedFolder(t)
	for i := range 3 {
		require.NoError(t, os.WriteFile(filepath.Join(path, fmt.Sprint(i)), nil, 0o600))
	}
	names, err := d.names(func(string) bool { return true }, 3)
	require.NoError(t, err)
	require.Equal(t, []string{"0", "1", "2"}, names)
	_, err = d.names(func(string) bool { return true }, 2)
	require.ErrorIs(t, err, ondisk.ErrLimit)
	_, err = d.names(func(n string) bool { return n != "1" }, 2)
	require.NoError(t, err)
}

// metered opens a file of random bytes whose reads are counted.
func metered(t *testing.T, size int, m *Meter) (f *File, want []byte) {
	t.Helper()
	want = make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(want)
	path := filepath.Join(t.TempDir(), "x.raw")
	require.NoError(t, os.WriteFile(path, want, 0o600))
	dir, err := OpenFolder(filepath.Dir(path))
	require.NoError(t, err)
	dir.Count(m)
	f, err = dir.OpenAny("x.raw", ondisk.ErrReference)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, f.Close())
		require.NoError(t, dir.Close())
	})
	return f, want
}

func TestPagesEqualTheFile(t *testing.T) {
	f, want := metered(t, 3*maxPages*pageBytes+777, &Meter{})
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		off := rnd.IntN(len(want))
		n := min(1+rnd.IntN(2*maxRun), len(want)-off)
		got := make([]byte, n)
		_, err := f.ReadAt(got, int64(off))
		require.NoError(t, err)
		require.True(t, bytes.Equal(want[off:off+n], got), "%d bytes at %d", n, off)
		require.LessOrEqual(t, len(f.dir.pages.pages), maxPages)
	}
	_, err := f.ReadAt(make([]byte, 8), int64(len(want))-4)
	require.Error(t, err, "past the end")
}

// The same sectors are requested many times, and read once. The limit applies to requests: endless requests must end.
func TestMeterCountsPagesOnce(t *testing.T) {
	m := NewMeter(64 << 10)
	f, _ := metered(t, 10*pageBytes+100, m)
	b := make([]byte, 512)
	for _, off := range []int64{0, 0, 512, 2*pageBytes - 256, 10 * pageBytes} {
		_, err := f.ReadAt(b[:min(int64(len(b)), f.Size()-off)], off)
		require.NoError(t, err)
	}
	require.Equal(t, int64(3*pageBytes+100), m.Read())
	var err error
	for n := 0; err == nil; n++ {
		require.Less(t, n, 200)
		_, err = f.ReadAt(b, 0)
	}
	require.ErrorIs(t, err, ondisk.ErrLimit)
	require.Equal(t, int64(3*pageBytes+100), m.Read())
}
