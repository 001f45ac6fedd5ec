package inplace

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// TestErrorsOfFiles makes each call on a file fail: the error names the call and the file.
func TestErrorsOfFiles(t *testing.T) {
	t.Parallel()
	fs, _, _ := twoFiles(t)
	for _, f := range fs.open {
		require.NoError(t, f.Close())
	}
	_, err := fs.WriteAt([]byte("x"), 0)
	require.ErrorContains(t, err, "write a: ")
	_, err = fs.ReadAt(make([]byte, 1), 0)
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorContains(t, fs.Zero(0, 1), "make a hole in a: ")
	require.ErrorContains(t, fs.Zero(2*units.MiB, 1), "write b: ")
	require.ErrorContains(t, fs.Truncate(5*units.MiB), "set size of b: ")
	require.ErrorContains(t, fs.Sync(), "sync a: ")
	require.ErrorIs(t, fs.apart(nil), unix.EBADF)
	require.ErrorIs(t, fs.Close(), os.ErrClosed)
}

// TestFilesOfOthers refuses a disk if another program has one of its files open, or mapped, for reading.
func TestFilesOfOthers(t *testing.T) {
	t.Parallel()
	fs, dir, _ := twoFiles(t)
	parts := fs.parts
	require.NoError(t, fs.Close())
	d, err := gate.OpenFolder(dir)
	require.NoError(t, err)
	defer d.Close()
	for name, what := range map[string]string{"a": "open", "b": "mapped"} {
		f, err := os.Open(filepath.Join(dir, name))
		require.NoError(t, err)
		if _, known := sys.FromOS(f).Shared(); !known {
			t.Skip("the file system has no leases that count")
		}
		end := f.Close
		if what == "mapped" {
			b, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
			require.NoError(t, err)
			require.NoError(t, f.Close())
			end = func() error { return unix.Munmap(b) }
		}
		_, err = openFiles(d, "", parts, nil)
		require.ErrorIs(t, err, ondisk.ErrBusy, what)
		require.ErrorContains(t, err, fmt.Sprintf("%q", name))
		require.NoError(t, end())
		fs, err := openFiles(d, "", parts, nil)
		require.NoError(t, err, what)
		require.NoError(t, fs.Close())
	}
}

// TestOwnFilesAreNoOthers opens the disk of an image whose files this run reads.
func TestOwnFilesAreNoOthers(t *testing.T) {
	t.Parallel()
	fs, dir, _ := twoFiles(t)
	parts := fs.parts
	require.NoError(t, fs.Close())
	d, err := gate.OpenFolder(dir)
	require.NoError(t, err)
	defer d.Close()
	own, err := d.Open("a")
	require.NoError(t, err)
	defer own.Close()
	fs, err = openFiles(d, "", parts, nil)
	require.NoError(t, err)
	defer fs.Close()
	b := make([]byte, 4)
	_, err = own.ReadAt(b, 0)
	require.NoError(t, err)
	require.Equal(t, "data", string(b))
}

// TestJournalsOfOtherMedia requires an error for each file or device that is not the one in the plan.
func TestJournalsOfOtherMedia(t *testing.T) {
	t.Parallel()
	f := newOnFiles(t, false)
	d, err := gate.OpenFolder(f.dir)
	require.NoError(t, err)
	defer d.Close()
	a := &Again{Held: &journal.Held{Dir: d, Base: "vm.img"}}
	part := Part{disk.Range{Len: 96 * sector}, "vm.img", 0, f.inode("vm.img")}
	sound := &Plan{Base: "vm.img", Files: []Part{part}}
	m, err := a.medium(sound)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	_, err = a.medium(&Plan{Device: "/dev/absent"})
	require.ErrorIs(t, err, ondisk.ErrUsage)
	_, err = a.medium(&Plan{})
	require.ErrorIs(t, err, ondisk.ErrFormat)
	_, err = a.medium(&Plan{Base: "other", Files: sound.Files})
	require.ErrorIs(t, err, ondisk.ErrUsage)
	require.NoError(t, os.Mkdir(filepath.Join(f.dir, "folder"), 0o700))
	pipe := Part{part.Range, "pipe", 0, 0}
	require.NoError(t, unix.Mkfifo(filepath.Join(f.dir, pipe.Name), 0o600))
	pipe.Inode = f.inode(pipe.Name)
	_, err = a.medium(&Plan{Files: []Part{pipe}})
	require.ErrorContains(t, err, "another one of this name")
	for name, p := range map[string]Part{
		"a path":       {part.Range, "../" + filepath.Base(f.dir) + "/vm.img", 0, part.Inode},
		"absent":       {part.Range, "absent", 0, part.Inode},
		"a folder":     {part.Range, "folder", 0, f.inode("folder")},
		"another file": {part.Range, "vm.img", 0, part.Inode + 1},
		"too short":    {disk.Range{Len: 97 * sector}, "vm.img", 0, part.Inode},
	} {
		_, err = a.medium(&Plan{Files: []Part{p}})
		require.Error(t, err, name)
	}

	g := newOnFiles(t, false).middle()
	require.ErrorIs(t, g.again("resume", func(a *Again) { a.Device = device{} }), ondisk.ErrUsage)
	h, err := journal.Begin(d, "other", filepath.Join(f.dir, "other"), journal.InPlace, []byte("{"), 0)
	require.NoError(t, err)
	defer h.Close()
	_, err = (&Again{Held: h}).Resume(t.Context())
	require.ErrorIs(t, err, ondisk.ErrFormat)
}
