package exchange_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/sys"
)

// Changes of a disk after it was opened, and names that are too long, are found before anything is written.
func TestSourcesThatChange(t *testing.T) {
	disktest.OnUnix(t, "names of open files")
	t.Parallel()
	at := func(dir, name string) string { return filepath.Join(dir, name) }
	for name, c := range map[string]struct {
		kind string
		do   func(t *testing.T, dir string, img *image.Image)
		says string
	}{
		"removed": {"raw", func(t *testing.T, dir string, _ *image.Image) {
			t.Helper()
			require.NoError(t, os.Remove(at(dir, "vm.img")))
		}, "no such file"},
		"an extent that was removed": {"flat", func(t *testing.T, dir string, _ *image.Image) {
			t.Helper()
			require.NoError(t, os.Remove(at(dir, "vm-flat.vmdk")))
		}, "no such file"},
		"a folder in its place": {"raw", func(t *testing.T, dir string, _ *image.Image) {
			t.Helper()
			require.NoError(t, os.Remove(at(dir, "vm.img")))
			require.NoError(t, os.Mkdir(at(dir, "vm.img"), 0o700))
		}, "not a regular file"},
		"mounted from elsewhere": {"raw", func(_ *testing.T, _ string, img *image.Image) {
			img.Handles[0].Info.Device++
		}, "another file system"},
		"without numbers": {"raw", func(_ *testing.T, _ string, img *image.Image) {
			img.Handles[0].Info.Inode = 0
		}, "no inode numbers"},
		"a folder by the name of its tracked blocks": {"split", func(t *testing.T, dir string, _ *image.Image) {
			t.Helper()
			require.NoError(t, os.Remove(at(dir, "vm-ctk.vmdk")))
			require.NoError(t, os.Mkdir(at(dir, "vm-ctk.vmdk"), 0o700))
		}, "vm-ctk.vmdk"},
		"a run that had not begun": {"raw", func(t *testing.T, dir string, _ *image.Image) {
			t.Helper()
			require.NoError(t, os.WriteFile(at(dir, "vm.img.trueup"), make([]byte, 4096), 0o600))
		}, ""},
		"immutable": {"raw", func(t *testing.T, dir string, _ *image.Image) {
			t.Helper()
			chattr := disktest.Tool(t, "chattr")
			if exec.Command(chattr, "+i", at(dir, "vm.img")).Run() != nil {
				t.Skip("needs root for chattr")
			}
			t.Cleanup(func() { _ = exec.Command(chattr, "-i", at(dir, "vm.img")).Run() })
		}, "immutable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := kinds[c.kind]
			dir, _ := k.fresh(t)
			img := imagetest.Open(t, at(dir, k.main))
			c.do(t, dir, img)
			_, err := exchange.New(img)
			if c.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.says)
		})
	}
	path := imagetest.Write(t, t.TempDir(), strings.Repeat("n", 247), make([]byte, sectors*512))
	_, err := exchange.New(imagetest.Open(t, path))
	require.ErrorContains(t, err, "would have 262 bytes, at most 255")
}

// A copy that cannot get the properties of the original is not published, nor one whose names are taken.
func TestCopyIsNotPublished(t *testing.T) {
	t.Parallel()
	k := kinds["raw"]
	dir, before := k.fresh(t)
	s, done, err := k.source(filepath.Join(dir, k.main))
	require.NoError(t, err)
	defer done() //nolint:errcheck // read-only
	closed := &copied{dir: dir, names: k.new}
	require.NoError(t, s.Prepare(closed))
	require.NoError(t, closed.Release())
	require.ErrorContains(t, s.Prepare(closed), "owner and attributes of")
	_, err = s.Publish(closed)
	require.ErrorContains(t, err, "permissions of")
	imagetest.Write(t, dir, exchange.OriginalOf(k.main, k.main), []byte("a file of the user's"))
	_, err = s.Publish(&copied{dir: dir, names: k.new})
	require.ErrorContains(t, err, "is not a file of the exchange")
	require.Equal(t, before[k.main], sums(t, dir)[k.main])
}

// A moment without a disk under its name, on a file system without links, is noted.
func TestNoLinksAreNoted(t *testing.T) {
	t.Parallel()
	k := kinds["raw"]
	dir, _ := k.fresh(t)
	r := k.published(t, oddfs.Mount(t, dir, oddfs.Failing("link", syscall.EPERM, "rename2", syscall.EINVAL)))
	require.Len(t, r.Notes, 1)
	require.Equal(t, "replaced-no-links", r.Notes[0].Code)
	k.requireExchanged(t, dir)
}

// The texts of a package are read again for its journal, which has room for 1 MiB of them.
func TestTextsOfPackages(t *testing.T) {
	disktest.OnUnix(t, "names of open files")
	t.Parallel()
	k := kinds["ovf"]
	for says, change := range map[string]func(path string) error{
		"no such file": os.Remove,
		"at most 1048576 are kept": func(path string) error {
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(f, "<!-- %s -->", strings.Repeat("x", 1<<20))
			return errors.Join(err, f.Close())
		},
		"vm.ovf": func(path string) error { return os.Truncate(path, 0) },
	} {
		dir, _ := k.fresh(t)
		path := filepath.Join(dir, k.main)
		if strings.HasPrefix(says, "at most") {
			require.NoError(t, change(path))
		}
		p, err := ova.Open(path, nil)
		require.NoError(t, err)
		defer p.Close()
		if !strings.HasPrefix(says, "at most") {
			require.NoError(t, change(path))
		}
		_, err = exchange.NewPackage(p)
		require.ErrorContains(t, err, says)
	}
}

// An exchange fails if, after the checks, the source disappears or another run leaves a journal.
func TestOthersComeBetween(t *testing.T) {
	disktest.OnUnix(t, "names of open files")
	t.Parallel()
	k := kinds["raw"]
	dir, before := k.fresh(t)
	s, done, err := k.source(filepath.Join(dir, k.main))
	require.NoError(t, err)
	defer done() //nolint:errcheck // read-only
	c := &copied{dir: dir, names: k.new}
	require.NoError(t, s.Prepare(c))
	d, err := gate.OpenFolder(dir)
	require.NoError(t, err)
	defer d.Close()
	h, err := journal.Begin(d, k.main, filepath.Join(dir, k.main), journal.InPlace, nil, 0)
	require.NoError(t, err)
	require.NoError(t, h.Close())
	_, err = s.Publish(c)
	require.ErrorContains(t, err, "was interrupted")
	require.Equal(t, before[k.main], sums(t, dir)[k.main])
	require.NoError(t, os.Remove(filepath.Join(dir, k.main)))
	require.ErrorIs(t, s.Prepare(c), os.ErrNotExist)
}

// A name that the copy needs, and that no file of the original has, is not taken from another file.
func TestCopyTakesNoForeignName(t *testing.T) {
	disktest.OnUnix(t, "names of open files")
	t.Parallel()
	k := kinds["grown"]
	dir, before := k.fresh(t)
	imagetest.Write(t, dir, "vm-f002.vmdk", []byte("a file of the user's"))
	_, err := k.publish(dir)
	require.ErrorContains(t, err, "is not a file of the original")
	now := sums(t, dir)
	for n, sum := range before {
		require.Equal(t, sum, now[n])
	}
	require.NoFileExists(t, filepath.Join(dir, journal.PathOf(k.main)))
}

// The changed-block tracking file stays with the original, with a note.
func TestTrackedBlocksAreNoted(t *testing.T) {
	disktest.OnUnix(t, "notes")
	t.Parallel()
	k := kinds["split"]
	dir, _ := k.fresh(t)
	r := k.published(t, dir)
	require.Len(t, r.Notes, 1)
	require.Equal(t, "replaced-tracking", r.Notes[0].Code)
}

// The exchange of a package whose disk is in use is not undone, and one whose copy cannot be opened keeps its original.
func TestPackagesInUse(t *testing.T) {
	disktest.OnUnix(t, "names of open files")
	t.Parallel()
	k := kinds["ovf"]
	for _, name := range []string{"vm-disk1.img", "data.bin"} {
		dir, _ := k.fresh(t)
		k.published(t, dir)
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR, 0)
		require.NoError(t, err)
		require.NoError(t, sys.FromOS(f).LockByte(sys.Exclusive, 101))
		err = k.command(dir, "undo", false)
		if name == "data.bin" { // no disk
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "QEMU")
		}
		require.NoError(t, f.Close())
	}
	dir, _ := k.fresh(t)
	k.published(t, dir)
	require.NoError(t, os.Remove(filepath.Join(dir, "vm-disk1.img")))
	err := k.command(dir, "finish", false)
	require.ErrorContains(t, err, "the original is the only copy")
	require.FileExists(t, filepath.Join(dir, "vm.orig-disk1.img"))
	imagetest.Write(t, dir, "vm.cert", []byte("of the user"))
	err = k.command(dir, "undo", false)
	require.ErrorContains(t, err, "is not a file of the exchange")
}

var onFile = regexp.MustCompile(`(?m)^\d+ +(\w+)\((?:\d+|AT_FDCWD)<([^>]*)>(.*)$`)

// TestStepsAreDurable follows an exchange and its undo call by call: a name changes only when all earlier names are
// durable, except for names of files that will get one, and a file gets its name when its bytes are durable.
func TestStepsAreDurable(t *testing.T) {
	t.Parallel()
	strace := disktest.Tool(t, "strace")
	for _, kind := range []string{"raw", "flat"} {
		k := kinds[kind]
		dir, _ := k.fresh(t)
		for _, step := range []string{"publish", "undo"} {
			log := filepath.Join(t.TempDir(), "strace")
			out, err := child(step, kind, dir, strace, "-f", "-y", "-o", log, "-e", changing).CombinedOutput()
			require.NoError(t, err, "%s", out)
			text := disktest.ReadFile(t, log)
			changed, names, flushes, begun := map[string]bool{}, []string{}, 0, step == "undo"
			for _, m := range onFile.FindAllStringSubmatch(string(text), -1) {
				call, on, rest := m[1], m[2], m[3]
				begun = begun || strings.Contains(rest, ".trueup")
				switch {
				case !begun || !strings.HasPrefix(on, dir):
				case call == "pwrite64" || call == "write":
					changed[on] = true
				case call == "fsync" && on == dir:
					names, flushes = nil, flushes+1
				case call == "fsync":
					delete(changed, on)
				case call == "openat" && strings.Contains(rest, "O_CREAT") && strings.Contains(rest, ".trueup"):
					names = append(names, rest)
				case call == "linkat" || strings.HasPrefix(call, "rename"):
					require.Empty(t, names, "%s of %s: %s%s", step, kind, call, rest)
					require.Empty(t, changed, "%s of %s: %s%s", step, kind, call, rest)
					if !strings.Contains(rest, `.exchange"`) || call != "linkat" {
						names = append(names, rest)
					}
				case call == "unlinkat" && strings.Contains(rest, ".trueup"):
					require.Empty(t, names, "%s of %s: the journal goes", step, kind)
					names = append(names, rest)
				}
			}
			require.Empty(t, names, "%s of %s, at its end", step, kind)
			require.Greater(t, flushes, 2)
		}
	}
}
