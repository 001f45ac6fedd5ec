package gate

import (
	"errors"
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
		case <-time.After(disktest.Patience):
			t.Fatalf("%s: open hangs", name)
		}
	}
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
