package sys

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/windows"
)

// Source: Naming Files, Paths, and Namespaces (Microsoft): devices have their names with any suffix, too.
func TestNamesOfWindows(t *testing.T) {
	for _, name := range []string{"a", "a.vmdk", "nul-a", "COM10", ".", "..", "a b"} {
		require.NoError(t, CheckName(name), name)
	}
	for _, name := range []string{"NUL", "nul", "CON", "com1", "LPT9", "aux", "nul.vmdk", "a:b", "C:", `\`} {
		require.ErrorContains(t, CheckName(name), "device", name)
	}
	for _, name := range []string{"a.", "a ", "a. ."} {
		require.ErrorContains(t, CheckName(name), "ends with a dot or a space", name)
	}
}

// What a caller asks of an error is known of the errors of Windows.
func TestErrorsOfWindows(t *testing.T) {
	require.True(t, Unsupported(windows.ERROR_INVALID_FUNCTION), "a link on FAT")
	require.True(t, Denied(windows.ERROR_ACCESS_DENIED))
	require.True(t, NotShared(windows.ERROR_LOCK_VIOLATION), "a locked stretch, when it is read")
	require.True(t, Full(windows.ERROR_DISK_QUOTA_EXCEEDED))
	require.True(t, TooLong(windows.ERROR_FILENAME_EXCED_RANGE))
	d, err := OpenFolder(t.TempDir())
	require.NoError(t, err)
	require.True(t, Unsupported(d.Sync()))
	require.True(t, TooLong(d.RenameNew("a", strings.Repeat("x", 300))))
	require.NoError(t, d.Close())
}

// A file that is made, or opened to write it, no other program can write, and all can read.
func TestFilesAreWrittenAlone(t *testing.T) {
	path := t.TempDir()
	d, err := OpenFolder(path)
	require.NoError(t, err)
	made, err := d.Create("a", 0o600)
	require.NoError(t, err)
	_, err = d.OpenToWrite("a")
	require.True(t, NotShared(err), "%v", err)
	_, err = d.OpenHeld("a")
	require.True(t, NotShared(err), "%v", err)
	_, err = d.Create("a", 0o600)
	require.ErrorIs(t, err, os.ErrExist)
	read, err := d.Open("a")
	require.NoError(t, err)
	require.NoError(t, errors.Join(made.Close(), read.Close()))

	held, err := d.OpenHeld("a")
	require.NoError(t, err)
	again, err := d.OpenHeld("a")
	require.NoError(t, err)
	_, err = d.OpenToWrite("a")
	require.True(t, NotShared(err), "%v", err)
	require.NoError(t, d.RenameNew("a", "b"), "its name can change")
	require.NoError(t, errors.Join(held.Close(), again.Close()))
	written, err := d.OpenToWrite("b")
	require.NoError(t, err)
	require.NoError(t, written.Close())
	require.NoError(t, d.Close())
}

// Folders below each other may have more than 260 characters together.
func TestLongPathsOfWindows(t *testing.T) {
	path := t.TempDir()
	for range 4 {
		path = filepath.Join(path, strings.Repeat("x", 100))
	}
	require.NoError(t, os.MkdirAll(path, 0o700))
	d, err := OpenFolder(path)
	require.NoError(t, err)
	f, err := d.Create("a", 0o600)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, d.RenameNew("a", "b"))
	_, known, err := d.Free()
	require.NoError(t, err)
	require.True(t, known)
	i, err := Stat(filepath.Join(path, "b"))
	require.NoError(t, err)
	require.Equal(t, uint64(1), i.Links)
	require.NoError(t, d.Remove("b"))
	require.NoError(t, d.Close())
}

// The first range of data that a file system names says what lies at an offset. Spec: FSCTL_QUERY_ALLOCATED_RANGES
// (Microsoft): a range may begin before what was asked for, and end after it.
func TestStateFromRangesOfData(t *testing.T) {
	for name, c := range map[string]struct {
		data []span
		n    int64
		hole bool
	}{
		"no data":               {nil, 100, true},
		"data at the offset":    {[]span{{1000, 40}}, 40, false},
		"data around":           {[]span{{900, 4096}}, 100, false},
		"data behind a hole":    {[]span{{1030, 70}}, 30, true},
		"data behind the limit": {[]span{{1100, 10}}, 100, true},
	} {
		n, hole := stateAt(1000, 100, c.data)
		require.Equal(t, c.n, n, name)
		require.Equal(t, c.hole, hole, name)
	}
}

// The numbers are those of winnt.h: 0x20 archive, 0x200 sparse, 0x400 reparse point, 0x800 compressed. Data
// Deduplication makes files of 0x620.
func TestHolesOfSparseFilesAlone(t *testing.T) {
	for attributes, want := range map[uint32]bool{
		0x20: false, 0x220: true, 0xa20: true, 0x420: false, 0x620: false, 0x820: false,
	} {
		require.Equal(t, want, showsHoles(attributes), "%#x", attributes)
	}
}

// A scratch file goes with its handle.
func TestScratchOfWindows(t *testing.T) {
	folder := t.TempDir()
	f, err := Scratch(folder, ".scratch")
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("kept"), 512)
	require.NoError(t, err)
	b := make([]byte, 4)
	_, err = f.ReadAt(b, 512)
	require.NoError(t, err)
	require.Equal(t, "kept", string(b))
	second, err := Scratch(folder, ".scratch")
	require.NoError(t, err)
	require.NoError(t, errors.Join(f.Close(), second.Close()))
	names, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Empty(t, names)
	_, err = Scratch(filepath.Join(folder, "none"), ".scratch")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// All calls about holes end, and the ranges then read as zeros, also on a file system without holes.
func TestHolesOfWindows(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	defer f.Close()
	FromOS(f).Sparse()
	require.NoError(t, f.Truncate(1<<20))
	_, err = f.WriteAt([]byte("data"), 1<<19)
	require.NoError(t, err)
	for off := int64(0); off < 1<<20; {
		n, hole := FromOS(f).Extent(off, 1<<20-off)
		require.Positive(t, n)
		require.False(t, hole && off <= 1<<19 && off+n > 1<<19, "data is no hole")
		off += n
	}
	b := make([]byte, 4)
	if err := FromOS(f).Punch(1<<19, 1<<16); err != nil {
		require.True(t, Unsupported(err), "%v", err)
		return
	}
	_, err = f.ReadAt(b, 1<<19)
	require.NoError(t, err)
	require.Equal(t, make([]byte, 4), b)
}

// A process that restricted itself is refused what the layers that it names are against, and works otherwise. Wine has
// none of them in force, which shows.
func TestRestrict(t *testing.T) {
	dir := os.Getenv("TRUEUP_TEST_RESTRICT")
	if dir == "" {
		dir = t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "source"), []byte("disk"), 0o600))
		cmd := exec.Command(os.Args[0], "-test.run=^TestRestrict$")
		cmd.Env = append(os.Environ(), "TRUEUP_TEST_RESTRICT="+dir)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	layers, err := Restrict(256<<20, false)
	require.Equal(t, len(layers) < 2, err != nil, "%v, %v", layers, err)
	b, err := os.ReadFile(filepath.Join(dir, "source"))
	require.NoError(t, err)
	require.Equal(t, "disk", string(b))
	require.Equal(t, slices.Contains(layers, "low-integrity"), Denied(os.WriteFile(filepath.Join(dir, "x"), b, 0o600)))
	err = exec.Command(os.Args[0], "-test.run=^$").Run()
	require.Equal(t, slices.Contains(layers, "job-object"), err != nil, "%v", err)
}
