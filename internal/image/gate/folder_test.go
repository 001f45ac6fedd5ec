package gate

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
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

// A device without a medium is none, and one that is claimed while it is read has changed. Spec: open(2), O_EXCL.
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
