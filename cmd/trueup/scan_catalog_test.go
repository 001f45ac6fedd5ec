package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/scan/results"
)

// kept is a library with a catalogue.
type kept struct{ dir, catalogue string }

// newKept makes one with images of several files, and scans it.
func newKept(t *testing.T) (kept, scanResult) {
	t.Helper()
	k := kept{t.TempDir(), filepath.Join(t.TempDir(), "catalogue")}
	raw := smallDisk(t, filepath.Join(t.TempDir(), "disk.raw"), 63)
	disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "vmdk", "-o", "subformat=monolithicFlat", raw,
		k.path("flat.vmdk"))
	disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, k.path("base.qcow2"))
	for _, name := range []string{"a.raw", "b.raw", "sub.raw"} {
		smallDisk(t, k.path(name), 63)
	}
	require.NoError(t, os.WriteFile(k.path("readme"), []byte("no image\n"), 0o644))
	require.NoError(t, os.WriteFile(k.path("firmware.bin"), noise("firmware", 4096), 0o644)) // it could be a disk
	s := k.scan(t, 3)
	require.Equal(t, 5, s.sum.Changes.New)
	require.Equal(t, []string{"a.raw", "b.raw", "base.qcow2", "flat.vmdk", "sub.raw"}, k.read(s))
	return k, s
}

func (k kept) path(name string) string { return filepath.Join(k.dir, name) }

// scan scans the library with its catalogue. What was written just now may be written once more under the same time
// stamp, so that it is not taken as known: the time has to go on before.
func (k kept) scan(t *testing.T, code int, flags ...string) scanResult {
	t.Helper()
	disktest.WaitSettled(t, k.dir)
	s := scan(t, append(flags, "--catalog", k.catalogue, k.dir)...)
	require.Equal(t, code, s.code, s.stderr)
	require.NotNil(t, s.sum.Changes)
	return s
}

// read are the images of which a scan has read something.
func (k kept) read(s scanResult) []string {
	names := []string{}
	for _, name := range slices.Sorted(maps.Keys(s.rows)) {
		if s.rows[name].Read > 0 {
			names = append(names, strings.TrimPrefix(name, k.dir+"/"))
		}
	}
	return names
}

// What has not changed is not opened.
func TestScanKnowsWhatHasNotChanged(t *testing.T) {
	t.Parallel()
	k, first := newKept(t)
	again := k.scan(t, 3)
	require.Empty(t, k.read(again))
	require.Zero(t, again.sum.Read)
	require.Equal(t, 5, again.sum.Changes.Same)
	require.Equal(t, first.same(t), again.same(t))

	for range 2 { // nor in the run behind that
		paths, r := opened(t, "--catalog", k.catalogue, k.dir)
		s := readScan(t, r)
		require.Zero(t, s.sum.Read)
		require.Equal(t, 2, s.sum.Skipped)
		for _, path := range paths {
			require.False(t, strings.HasPrefix(path, k.dir+"/"), "opened %s", path)
		}
		require.Contains(t, paths, k.dir)
	}
}

func TestScanReadsWhatHasChanged(t *testing.T) {
	t.Parallel()
	k, _ := newKept(t)
	touch := func(name string) {
		now := time.Now()
		require.NoError(t, os.Chtimes(k.path(name), now, now))
	}
	for _, c := range []struct {
		name   string
		change func()
		read   []string
		is     map[string]results.Change // of those that are not the same
	}{
		{
			"written in place", func() { smallDisk(t, k.path("a.raw"), 2048) },
			[]string{"a.raw"},
			map[string]results.Change{"a.raw": results.Changed},
		},
		{"touched", func() { touch("b.raw") }, []string{"b.raw"}, map[string]results.Change{"b.raw": results.Changed}},
		{
			"replaced by the same bytes", func() {
				smallDisk(t, k.path("b.new"), 63)
				require.NoError(t, os.Rename(k.path("b.new"), k.path("b.raw")))
			},
			[]string{"b.raw"},
			map[string]results.Change{"b.raw": results.Changed},
		},
		{"other rights", func() { require.NoError(t, os.Chmod(k.path("b.raw"), 0o600)) }, []string{"b.raw"}, nil},
		{
			"an extent is written", func() { disktest.WriteAt(t, k.path("flat-flat.vmdk"), 1<<20, []byte("data")) },
			[]string{"flat.vmdk"},
			map[string]results.Change{"flat.vmdk": results.Changed},
		},
		{
			"a snapshot child", func() {
				disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", "base.qcow2",
					k.path("child.qcow2"))
			},
			[]string{"base.qcow2", "child.qcow2"},
			map[string]results.Change{"child.qcow2": results.New},
		},
		{"a lock", func() { require.NoError(t, os.Mkdir(k.path("flat.vmdk.lck"), 0o755)) }, []string{"flat.vmdk"}, nil},
		{
			"a lock that is gone", func() { require.NoError(t, os.Remove(k.path("flat.vmdk.lck"))) },
			[]string{"flat.vmdk"},
			nil,
		},
		{
			"another name", func() { require.NoError(t, os.Rename(k.path("b.raw"), k.path("c.raw"))) },
			[]string{"c.raw"},
			map[string]results.Change{"b.raw": results.Removed, "c.raw": results.New},
		},
		{
			"removed", func() { require.NoError(t, os.Remove(k.path("c.raw"))) },
			[]string{},
			map[string]results.Change{"c.raw": results.Removed},
		},
		{
			"a file that is no image", func() { require.NoError(t, os.WriteFile(k.path("note"), []byte("x"), 0o644)) },
			[]string{},
			nil,
		},
	} {
		c.change()
		s := k.scan(t, 3)
		require.Equal(t, c.read, k.read(s), c.name)
		for path, i := range s.rows {
			if name := strings.TrimPrefix(path, k.dir+"/"); c.is[name] == "" {
				if i.Change != results.Same {
					require.Contains(t, []string{"base.qcow2", "flat.vmdk"}, name, "%s: %s", c.name, i.Change)
					require.Contains(t, c.read, name, "%s: %s", c.name, i.Change)
				}
			} else {
				require.Equal(t, c.is[name], i.Change, "%s: %s", c.name, name)
			}
		}
		changed := k.scan(t, 0, "--changed")
		if c.name != "a lock" { // what is locked is always read: it may be in use, and changes
			require.Zero(t, changed.sum.Read, "%s, once more", c.name)
		}
		require.Empty(t, changed.rows, "nothing is new, and nothing shown: the exit code is about what is")
	}
	for _, flags := range [][]string{{"--boundary", "1M"}, {"--storage", "netapp"}} {
		require.Len(t, k.read(k.scan(t, 3, flags...)), 5, "%q", flags)
	}
}

// --changed shows what is new, and the exit code tells of that.
func TestScanShowsChanges(t *testing.T) {
	t.Parallel()
	k, _ := newKept(t)
	smallDisk(t, k.path("new.raw"), 2048)
	require.NoError(t, os.Remove(k.path("b.raw")))
	s := k.scan(t, 0, "--changed")
	require.Equal(t, map[string]string{"new.raw": "aligned", "b.raw": "gone"}, s.words(k.dir))
	require.Equal(t, results.Changes{Since: s.sum.Changes.Since, New: 1, Same: 4, Removed: 1}, *s.sum.Changes)
	require.Equal(t, 5, s.sum.Images)
	smallDisk(t, k.path("newer.raw"), 63)
	s = k.scan(t, 3, "--changed")
	require.Equal(t, map[string]string{"newer.raw": "misaligned"}, s.words(k.dir))
	disktest.WaitSettled(t, k.dir)
	r := trueup(t, "scan", "--changed", "--catalog", k.catalogue, k.dir)
	require.Equal(t, 0, r.code)
	require.Regexp(t, `(?m)^Since .*: 0 new, 0 changed, 6 as before, 0 removed\.$`, r.stdout)
}

func TestTwoScansAtOnce(t *testing.T) {
	t.Parallel()
	dir := manyDisks(t, someDisks)
	k := kept{dir, filepath.Join(dir, "folder-00", "catalogue.db")} // it lies in the library
	disktest.WaitSettled(t, dir)
	var scans []*live
	for range 2 {
		scans = append(scans, startScan(t, "-o", "json", "--jobs", "1", "--catalog", k.catalogue, dir))
	}
	for _, l := range scans {
		s := readScan(t, l.end(t))
		require.Equal(t, 3, s.code, s.stderr)
		require.Len(t, s.rows, someDisks)
		require.NotContains(t, s.rows, k.catalogue)
	}
	again := k.scan(t, 3)
	require.Zero(t, again.sum.Read)
	require.Equal(t, someDisks, again.sum.Changes.Same)
	require.Zero(t, again.sum.Skipped, "its own files are not even files that are no images")
	require.Equal(t, "ok", strings.TrimSpace(disktest.Output(t, "sqlite3", k.catalogue, "PRAGMA integrity_check")))
}

// What was finished is kept, however a scan ends.
func TestScanIsKilled(t *testing.T) {
	t.Parallel()
	k := kept{manyDisks(t, someDisks), filepath.Join(t.TempDir(), "catalogue")}
	disktest.WaitSettled(t, k.dir)
	l := startHeld(t, "-o", "json", "--jobs", "2", "--catalog", k.catalogue, k.dir)
	l.middle(t, 20)
	l.freeze(t)
	l.signal(t, syscall.SIGCONT)
	finished := 0
	disktest.WaitFor(t, "rows in the catalogue", func() bool {
		text := disktest.Output(t, "sqlite3", k.catalogue, "SELECT count(*) FROM image")
		_, err := fmt.Sscan(text, &finished)
		require.NoError(t, err)
		return finished >= 20
	})
	l.signal(t, syscall.SIGKILL)
	l.end(t)
	s := k.scan(t, 3)
	require.Len(t, s.rows, someDisks)
	require.LessOrEqual(t, len(k.read(s)), someDisks-finished)
	require.NotEmpty(t, k.read(s))
	require.Equal(t, someDisks, s.sum.Changes.New, "no report of them was read")
}

// A file that is something else is refused, and stays as it is.
func TestScanRefusesOtherCatalogues(t *testing.T) {
	t.Parallel()
	dir := filepath.Dir(sampleDisk(t))
	other := filepath.Join(dir, "other.db")
	disktest.Run(t, "sqlite3", other, "CREATE TABLE t (x); PRAGMA user_version = 7")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "text"),
		[]byte("not a database, and longer than a header of one is, which has a hundred bytes: see its file format\n"),
		0o644))
	smallDisk(t, filepath.Join(dir, "disk.raw"), 63)
	before := hashFolder(t, dir)
	for _, name := range []string{"xp.vmdk", "disk.raw", "other.db", "text", "."} {
		for _, format := range []string{"text", "json"} {
			r := trueup(t, "scan", "-o", format, "--catalog", filepath.Join(dir, name), dir)
			require.Equal(t, 64, r.code, "%s: %s", name, r.stderr)
			requireOneLine(t, r.stderr)
			require.Contains(t, r.stderr, filepath.Join(dir, name))
		}
		require.Equal(t, before, hashFolder(t, dir), name)
	}
	missing := trueup(t, "scan", "--catalog", filepath.Join(dir, "no", "catalogue"), dir)
	require.Equal(t, 1, missing.code)
	require.Contains(t, missing.stderr, "make it first")
}

// A catalogue in a folder that cannot be written is an error before anything is looked at.
func TestScanCatalogueReadOnly(t *testing.T) {
	t.Parallel()
	dir, closed := filepath.Dir(sampleDisk(t)), t.TempDir()
	require.NoError(t, os.Chmod(closed, 0o555))
	t.Cleanup(func() { require.NoError(t, os.Chmod(closed, 0o755)) })
	command := []string{builtPath, "scan", "--catalog", filepath.Join(closed, "catalogue"), dir}
	if os.Geteuid() == 0 {
		command = append([]string{disktest.Tool(t, "setpriv"), "--bounding-set", "-dac_override"}, command...)
	}
	r := run(t, command[0], command[1:]...)
	require.Equal(t, 1, r.code)
	require.Empty(t, r.stdout)
	requireOneLine(t, r.stderr)
	require.Contains(t, r.stderr, "writable")
}
