package gate_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// opened is a folder with a file of five bytes, which is open in it.
func opened(t *testing.T) (path string, d *gate.Folder, o *gate.Opened) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(path, []byte("bytes"), 0o600))
	require.NoError(t, os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)))
	d, base, err := gate.Follow(path, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	f, err := d.OpenNamed(base)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return path, d, &gate.Opened{Dir: d, Base: base, Under: "within", Handles: []*gate.File{f}}
}

// A file is unchanged since it was opened: name, size, times and bytes.
func TestChangesOfAFile(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, path string) error{
		"another file has its name": func(t *testing.T, path string) error {
			t.Helper()
			require.NoError(t, os.Rename(path, path+".old"))
			return os.WriteFile(path, []byte("other"), 0o600)
		},
		"its name is gone": func(_ *testing.T, path string) error { return os.Rename(path, path+".old") },
		"it was written":   func(_ *testing.T, path string) error { return os.WriteFile(path, []byte("BYTES"), 0o600) },
		"it grew": func(_ *testing.T, path string) error {
			return errors.Join(os.WriteFile(path, []byte("more bytes"), 0o600), os.Chtimes(path, time.Unix(1, 0),
				time.Unix(1, 0)))
		},
		"it was cut": func(_ *testing.T, path string) error {
			return errors.Join(os.Truncate(path, 2), os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)))
		},
		"it was written, and its time set back": func(_ *testing.T, path string) error {
			return errors.Join(os.WriteFile(path, []byte("BYTES"), 0o600), os.Chtimes(path, time.Unix(1, 0),
				time.Unix(1, 0)))
		},
		"it was removed": func(t *testing.T, path string) error {
			t.Helper()
			disktest.OnUnix(t, "rules for removing an open file")
			return os.Remove(path)
		},
		"its times were set": func(_ *testing.T, path string) error {
			return os.Chtimes(path, time.Unix(2, 0),
				time.Unix(2, 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path, _, o := opened(t)
			require.NoError(t, o.Unchanged())
			require.NoError(t, change(t, path))
			err := o.Unchanged()
			require.ErrorIs(t, err, ondisk.ErrChanged)
			switch name {
			case "another file has its name":
				require.ErrorContains(t, err, name)
			case "its name is gone":
				require.ErrorIs(t, err, os.ErrNotExist)
			}
		})
	}
	// One sign is enough.
	for name, change := range map[string]func(i *sys.Info){
		"size":     func(i *sys.Info) { i.Size++ },
		"modified": func(i *sys.Info) { i.Modified++ },
		"changed":  func(i *sys.Info) { i.Changed++ },
	} {
		_, _, o := opened(t)
		change(&o.Handles[0].Info)
		require.ErrorIs(t, o.Unchanged(), ondisk.ErrChanged, name)
	}
}

// A file that is shorter than it was ends with an error, now and later.
func TestFileThatWasCut(t *testing.T) {
	path, _, o := opened(t)
	f := o.Handles[0]
	b := make([]byte, 5)
	_, err := f.ReadAt(b, 5)
	require.Equal(t, io.EOF, err)
	require.NoError(t, os.Truncate(path, 2))
	_, err = f.ReadAt(b, 0)
	require.ErrorIs(t, err, ondisk.ErrChanged)
	require.NoError(t, os.WriteFile(path, []byte("bytes"), 0o600))
	_, err = f.ReadAt(b, 0)
	require.ErrorIs(t, err, ondisk.ErrChanged)
	require.ErrorContains(t, f.Unchanged(), "it ends at byte 2")
}

// An open error states the reason, and leaves nothing open.
func TestOpenErrors(t *testing.T) {
	disktest.OnUnix(t, "words of errors")
	path, d, o := opened(t)
	dir := filepath.Dir(path)
	_, _, err := gate.Follow(filepath.Join(dir, "none"), nil)
	require.Equal(t, "no such file or directory", err.Error(), "the path is known")
	_, err = gate.OpenFolder(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	for _, open := range []func(string) (*gate.File, error){d.Open, d.OpenNamed} {
		_, err = open("none")
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "folder"), 0o700))
	require.NoError(t, os.Symlink("folder", filepath.Join(dir, "link")))
	_, err = d.OpenNamed("folder")
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	_, err = d.Open("../file")
	require.ErrorIs(t, err, ondisk.ErrReference)
	for _, name := range []string{"link", "file"} {
		_, err = d.Enter(name)
		require.ErrorIs(t, err, ondisk.ErrReference, name)
	}
	_, err = d.Enter("folder/none")
	require.ErrorIs(t, err, fs.ErrNotExist)
	sub, err := d.Enter("folder")
	require.NoError(t, err)
	require.NoError(t, sub.Close())
	names, err := d.Names(func(n string) bool { return n != "link" })
	require.NoError(t, err)
	require.Equal(t, []string{"file", "folder"}, names)

	states := o.States()
	require.Len(t, states, 1)
	require.Equal(t, "within/file", states[0].Name)
	require.EqualValues(t, 5, states[0].Size)
	require.Equal(t, errors.New("text"), gate.PlainError(errors.New("text")))
}

// A run that reads an image keeps QEMU from writing it, as long as it reads, and sees the locks of others.
func TestHold(t *testing.T) {
	disktest.OnUnix(t, "locks")
	path, d, o := opened(t)
	other, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer other.Close()
	locked := func() (n int) {
		for _, at := range []int64{100, 201} {
			if yes, err := sys.FromOS(other).LockedByte(at); err == nil && yes {
				n++
			}
		}
		return n
	}
	require.Zero(t, locked())
	release, err := o.Hold()
	require.NoError(t, err)
	require.Equal(t, 2, locked())
	release()
	require.Zero(t, locked())
	require.NoError(t, o.Handles[0].QEMULock())
	require.NoError(t, sys.FromOS(other).LockByte(sys.Exclusive, 101))
	require.ErrorContains(t, o.Handles[0].QEMULock(), "open for writing in QEMU")
	again, err := d.Again()
	require.NoError(t, err)
	require.NoError(t, again.Close())

	require.NoError(t, sys.FromOS(other).Lock(sys.Exclusive))
	require.True(t, o.Handles[0].AtWork())
	require.NoError(t, sys.FromOS(other).Lock(sys.Unlocked))
	require.False(t, o.Handles[0].AtWork())
	require.NoError(t, sys.FromOS(other).Lock(sys.Exclusive), "the question leaves no lock")
	require.NoError(t, o.CloseFiles())
}
