package sys

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// Modes are those of os, which the room works without.
func TestInfoEqualsOS(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(path, make([]byte, 5000), 0o640))
	require.NoError(t, os.Chmod(path, 0o640|fs.ModeSetgid|fs.ModeSticky))
	require.NoError(t, os.Link(path, filepath.Join(dir, "second")))
	for _, path := range []string{dir, path, os.DevNull} {
		requireInfoOfOS(t, path)
	}
	file, err := Stat(path)
	require.NoError(t, err)
	second, err := Lstat(filepath.Join(dir, "second"))
	require.NoError(t, err)
	folder, err := Lstat(dir)
	require.NoError(t, err)
	require.True(t, file.Same(second))
	require.False(t, file.Same(folder))
	require.False(t, Info{}.Same(Info{}), "a system that does not say what a file is")
	require.Equal(t, uint64(2), file.Links)
}

func requireInfoOfOS(t testing.TB, path string) (got Info) {
	t.Helper()
	want, err := os.Lstat(path)
	require.NoError(t, err)
	got, err = Lstat(path)
	require.NoError(t, err)
	require.Equal(t, want.Mode(), got.Mode, path)
	require.Equal(t, want.Size(), got.Size)
	require.Equal(t, want.ModTime().UnixNano(), got.Modified)
	return got
}

// A name that is taken stays with its file.
func TestRenameNewReplacesNothing(t *testing.T) {
	path := t.TempDir()
	d, err := OpenFolder(path)
	require.NoError(t, err)
	defer d.Close()
	for _, name := range []string{"a", "b"} {
		require.NoError(t, os.WriteFile(filepath.Join(path, name), []byte(name), 0o600))
	}
	require.ErrorIs(t, d.RenameNew("a", "b"), fs.ErrExist)
	require.NoError(t, d.RenameNew("a", "c"))
	text := disktest.ReadFile(t, filepath.Join(path, "b"))
	require.Equal(t, "b", string(text))
}

// Each call has its effect, or reports the reason for its failure.
func TestCallsOnAFolder(t *testing.T) {
	path := t.TempDir()
	names := func() (out []string) {
		entries, err := os.ReadDir(path)
		require.NoError(t, err)
		for _, e := range entries {
			out = append(out, e.Name())
		}
		return out
	}
	d, err := OpenFolder(path)
	require.NoError(t, err)
	f, err := d.Create("a", 0o600)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	_, err = d.Create("a", 0o600)
	require.ErrorIs(t, err, fs.ErrExist)
	require.NoError(t, d.Link("a", "b"))
	require.ErrorIs(t, d.Link("a", "b"), fs.ErrExist)
	require.NoError(t, d.Rename("b", "c"))
	require.ErrorIs(t, d.Rename("b", "c"), fs.ErrNotExist)
	require.Equal(t, []string{"a", "c"}, names())
	require.NoError(t, d.RenameNew("c", "d"))
	require.NoError(t, d.Remove("a"))
	require.ErrorIs(t, d.Remove("a"), fs.ErrNotExist)
	require.Equal(t, []string{"d"}, names())

	for _, open := range []func(string) (*File, error){d.Open, d.OpenToWrite} {
		_, err = open("none")
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
	_, err = d.Lstat("none")
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = OpenFolder(filepath.Join(path, "none"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = OpenDirect(filepath.Join(path, "none"))
	require.ErrorIs(t, err, fs.ErrNotExist)

	require.NoError(t, d.Close())
}

// twice returns two open files of the same name.
func twice(t testing.TB) (first, second *File) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	var f [2]*os.File
	for i := range f {
		var err error
		f[i], err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, f[i].Close()) })
	}
	return FromOS(f[0]), FromOS(f[1])
}

// A lock belongs to an open file: another of the same file meets it.
func TestLocks(t *testing.T) {
	first, second := twice(t)
	require.NoError(t, first.Lock(Exclusive))
	require.True(t, Locked(second.Lock(Shared)))
	require.NoError(t, first.Lock(Unlocked))
	require.NoError(t, second.LockWaiting(Shared))
	require.NoError(t, first.Lock(Shared))
	require.True(t, Locked(first.Lock(Exclusive)))
}

// An error of a file system loses its path, and others stay as they are.
func TestCause(t *testing.T) {
	require.Equal(t, ErrLoop, Cause(&fs.PathError{Op: "open", Path: "a", Err: ErrLoop}))
	require.Equal(t, fs.ErrClosed, Cause(fs.ErrClosed))
}

// Source: Naming Files, Paths, and Namespaces, and CreateFile (Microsoft): physical drives.
func TestNamesOfDrives(t *testing.T) {
	for path, want := range map[string]string{
		`\\.\PhysicalDrive0`: "PhysicalDrive0", `\\.\PHYSICALDRIVE12`: "PhysicalDrive12",
		"//./physicaldrive3": "PhysicalDrive3", `\/./PhysicalDrive3`: "PhysicalDrive3",
	} {
		name, ok := driveName(path)
		require.True(t, ok, path)
		require.Equal(t, want, name)
		require.Equal(t, runtime.GOOS == "windows", IsDrive(path), path)
	}
	for _, path := range []string{
		"", `\\.\`, `\\.\PhysicalDrive`, `\\.\PhysicalDrive-1`, `\\.\PhysicalDrive+1`, `\\.\PhysicalDrive01`,
		`\\.\PhysicalDrive0\`, `\\.\PhysicalDrive0\a`, `\\.\PhysicalDrive0:a`, `\\.\PhysicalDrive99999999999`,
		"PhysicalDrive0", `C:\PhysicalDrive0`, `\\server\PhysicalDrive0`, `\\.\a\PhysicalDrive0`, `\\.\C:`,
		`\\.\CdRom0`,
	} {
		_, ok := driveName(path)
		require.False(t, ok, path)
		require.False(t, IsDrive(path), path)
	}
}

// A system lacks what docs/systems.md says that it does not do.
func TestLacksOfTheSystem(t *testing.T) {
	d, err := OpenFolder(t.TempDir())
	require.NoError(t, err)
	defer d.Close()
	require.Equal(t, runtime.GOOS == "windows", Unsupported(d.Sync()))
	first, _ := twice(t)
	_, err = first.LockedByte(100)
	require.Equal(t, runtime.GOOS != "linux", Unsupported(err))
}
