package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// An entry that this user cannot open as a file keeps its permissions.
func TestStaleFilesOfOthers(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(path, "closed"), nil, 0))
	require.NoError(t, os.WriteFile(filepath.Join(path, "another's"), nil, 0o444))
	fifo := filepath.Join(path, "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o444))
	dir, err := gate.OpenFolder(path)
	require.NoError(t, err)
	defer dir.Close()
	if os.Geteuid() == 0 {
		require.NoError(t, errors.Join(os.Chown(fifo, 65534, 65534), os.Chown(filepath.Join(path, "closed"), 65534,
			65534)))
	}
	disktest.OrdinaryUser(t, path)
	for _, name := range []string{"closed", "another's", "fifo"} {
		if name == "another's" && os.Geteuid() != 0 {
			continue
		}
		before, err := dir.At.Lstat(name)
		require.NoError(t, err)
		_, err = openStale(dir, name)
		require.ErrorIs(t, err, fs.ErrPermission, name)
		after, err := dir.At.Lstat(name)
		require.NoError(t, err)
		require.Equal(t, before.Mode, after.Mode, name)
	}
}

// The target of a name is checked before use, and an irreversible change is reported.
func TestNamesThatLeadElsewhere(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	dir, err := gate.OpenFolder(path)
	require.NoError(t, err)
	defer dir.Close()
	part := func(name string) *partialFile {
		f, err := dir.At.Create(partialName(name), 0o600)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, f.Close()) })
		return &partialFile{File: f, final: name, shown: name}
	}
	o := Parts{dir: dir, path: "x", base: "x", mode: 0o666}

	// Another run has replaced the created file by its own.
	p := part("x")
	require.NoError(t, dir.At.Rename(".x.partial", "mine"))
	require.NoError(t, os.WriteFile(filepath.Join(path, ".x.partial"), nil, 0o600))
	require.ErrorIs(t, o.begin(p, ".x.partial"), ondisk.ErrBusy)

	// Another file has the name of the output, where no call can avoid replacement.
	o.limits = limits{links: errors.ErrUnsupported, noExclusive: true}
	require.NoError(t, os.WriteFile(filepath.Join(path, "y"), []byte("mine"), 0o600))
	require.ErrorIs(t, o.rename(part("y"), false), fs.ErrExist)
	b := disktest.ReadFile(t, filepath.Join(path, "y"))
	require.Equal(t, "mine", string(b))

	// A folder cannot be removed as a file.
	require.NoError(t, os.Mkdir(filepath.Join(path, "x"), 0o700))
	require.ErrorContains(t, o.retract(), "x is complete, but could not be removed again")
	require.ErrorContains(t, o.unlink([]*partialFile{{final: "gone"}, {final: "x", shown: "shown"}}), "publish shown")

	require.ErrorIs(t, removeTrial(dir, strings.Repeat("n", 300)), unix.ENAMETOOLONG)

	// A report of another run stands where a stale one was.
	stale := filepath.Join(path, "stale")
	require.NoError(t, errors.Join(os.WriteFile(stale, nil, 0o600), os.WriteFile(filepath.Join(path, "new"), nil,
		0o600)))
	require.NoError(t, removeStaleReport(dir, "stale", filepath.Join(path, "new")))
	require.FileExists(t, stale)
	// The first check has released its lock, which a program started by another test can hold until it runs.
	disktest.WaitFor(t, "the lock", func() bool {
		require.NoError(t, removeStaleReport(dir, "stale", stale))
		return !dir.Exists("stale")
	})
}

// onePart returns the parts of a copy with one new file, x.
func onePart(t *testing.T) (*Parts, *partialFile) {
	t.Helper()
	path := t.TempDir()
	dir, err := gate.OpenFolder(path)
	require.NoError(t, err)
	o := &Parts{dir: dir, path: path + "/x", base: "x", mode: 0o600}
	p, err := o.newPart("x")
	require.NoError(t, err)
	return o, p
}

// A failing close is reported.
func TestCloseThatFails(t *testing.T) {
	o, p := onePart(t)
	require.NoError(t, p.File.Close())
	require.ErrorIs(t, o.Discard(), os.ErrClosed)
	require.NoFileExists(t, filepath.Join(filepath.Dir(o.path), ".x.partial"))
}

// A child process that was just started has a copy of each descriptor for a moment. A published file has no lock then.
func TestPublishedFilesAreUnlocked(t *testing.T) {
	o, p := onePart(t)
	child, err := unix.Dup(int(p.Fd()))
	require.NoError(t, err)
	defer unix.Close(child)
	require.NoError(t, o.Publish())
	f, err := os.OpenFile(o.path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, sys.FromOS(f).Lock(sys.Exclusive))
}

// A run that is killed just before DEST gets its name leaves a file that its owner may only read, like SOURCE. The next
// run removes it, unless another one is running: it holds the lock, and its file keeps its permissions.
func TestStaleFilesThatAreReadOnly(t *testing.T) {
	t.Parallel()
	for name, atWork := range map[string]bool{"stale": false, "at work": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := t.TempDir()
			dir, err := gate.OpenFolder(path)
			require.NoError(t, err)
			disktest.OrdinaryUser(t, path)
			t.Cleanup(func() { dir.Close() })
			f, err := dir.At.Create(".x.partial", 0o600)
			require.NoError(t, err)
			defer f.Close()
			require.NoError(t, f.Chmod(0o444))
			o := Parts{dir: dir}
			if !atWork {
				require.NoError(t, dir.At.Link(".x.partial", "note"))
				require.NoError(t, o.removeStale(".x.partial"))
				require.False(t, dir.Exists(".x.partial"))
				info, err := f.Stat()
				require.NoError(t, err)
				require.Equal(t, os.FileMode(0o444), info.Mode(), "of its other name")
				return
			}
			require.NoError(t, sys.FromOS(f).Lock(sys.Exclusive))
			before, err := dir.At.Lstat(".x.partial")
			require.NoError(t, err)
			err = o.removeStale(".x.partial")
			require.ErrorIs(t, err, ondisk.ErrBusy)
			require.NotContains(t, err.Error(), "remove it by hand")
			after, err := dir.At.Lstat(".x.partial")
			require.NoError(t, err)
			require.Equal(t, before, after, "nor did it have others for a moment")
			info, err := f.Stat()
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o444), info.Mode())
		})
	}
}
