package gate

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
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
		"nbd://127.0.0.1/x", "json:{}", "file:x", "x\x00y", "x\ny", "x\x7fy", "\x1b]0;x\a", `x"y`, "\xff\xfe",
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

// What is no regular file is refused without opening it. A FIFO without a writer would wait for
// ever.
func TestFilesThatAreNone(t *testing.T) {
	d, path := openedFolder(t)
	at := func(name string) string { return filepath.Join(path, name) }
	require.NoError(t, os.WriteFile(at("real"), []byte("x"), 0o644))
	require.NoError(t, os.Symlink("/etc/hostname", at("link out")))
	require.NoError(t, os.Symlink("real", at("link inside")))
	require.NoError(t, os.Symlink("absent", at("dangling link")))
	require.NoError(t, unix.Mkfifo(at("fifo"), 0o644))
	require.NoError(t, os.Mkdir(at("folder"), 0o755))
	t.Chdir(path) // the address of a socket has at most 108 bytes
	socket, err := net.Listen("unix", "socket")
	require.NoError(t, err)
	defer socket.Close()
	for name, kind := range map[string]string{
		"link out": "a symbolic link", "link inside": "a symbolic link", "dangling link": "a symbolic link",
		"fifo":   "a FIFO",
		"folder": "a folder", "socket": "a socket",
	} {
		done := make(chan error, 1)
		go func() {
			_, err := d.Open(name)
			done <- err
		}()
		select {
		case err := <-done:
			require.ErrorIs(t, err, ondisk.ErrReference, name)
			require.ErrorContains(t, err, kind, name)
		case <-time.After(5 * time.Minute):
			t.Fatalf("%s: open hangs", name)
		}
	}
}

// A folder that is renamed and replaced while an image is open cannot lead elsewhere.
func TestTheFolderIsHeldByItsHandle(t *testing.T) {
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

// A call of a file system that fails is said, and taken neither for a change nor for the end of a folder.
func TestCallsThatFailOnAFolder(t *testing.T) {
	behind := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(behind, "file"), []byte("bytes"), 0o600))
	var j oddfs.Journal
	path := filepath.Join(oddfs.Mount(t, behind, oddfs.Manners{Journal: &j}), "file")
	look := func() error {
		d, base, err := Follow(path, nil)
		if err != nil {
			return err
		}
		defer d.Close()
		f, err := d.OpenAny(base, ondisk.ErrReference)
		if err != nil {
			return err
		}
		_, err = d.Names(func(string) bool { return true })
		return errors.Join(err, f.Close())
	}
	failed := map[string]bool{}
	for n := 1; ; n++ {
		j.Restart(n)
		err := look()
		op, _, _ := strings.Cut(j.Failed(), " ")
		if op == "" {
			require.NoError(t, err)
			break
		}
		if err == nil {
			require.Equal(t, "lookup", op, "the kernel looks once more where it knew the file")
			continue
		}
		require.ErrorIs(t, err, unix.EIO, op)
		failed[op] = true
	}
	require.Subset(t, slices.Collect(maps.Keys(failed)), []string{"getattr", "lookup", "open", "opendir", "readdir"})
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
