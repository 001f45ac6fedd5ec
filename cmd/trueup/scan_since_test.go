package main

import (
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

// kept is a library and the results of its last scan.
type kept struct{ dir, last string }

// newKept makes one with images of several files, and scans it.
func newKept(t *testing.T) (kept, scanResult) {
	t.Helper()
	k := kept{t.TempDir(), filepath.Join(t.TempDir(), "last.ndjson")}
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

// scan scans the library once more, and keeps the results unless some are left out. What was written just now may be
// written once more under the same time stamp, so that it is not taken over: the time has to go on before.
func (k kept) scan(t *testing.T, code int, flags ...string) scanResult {
	t.Helper()
	disktest.WaitSettled(t, k.dir)
	if !slices.Contains(flags, "--changed") {
		flags = append(flags, "--out", k.last)
	}
	s := scan(t, append(flags, "--since", k.last, k.dir)...)
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

// The workers open no unchanged image, only parts of images and other files.
func TestScanKnowsWhatHasNotChanged(t *testing.T) {
	t.Parallel()
	k, first := newKept(t)
	again := k.scan(t, 3)
	require.Empty(t, k.read(again))
	require.Zero(t, again.sum.Read)
	require.Equal(t, 5, again.sum.Changes.Same)
	require.Equal(t, first.same(t), again.same(t))

	for range 2 { // nor in the run behind that
		paths, r := opened(t, "--since", k.last, k.dir)
		s := readScan(t, r)
		require.Zero(t, s.sum.Read)
		require.Equal(t, 2, s.sum.Skipped)
		var names []string
		for _, path := range paths {
			if name, in := strings.CutPrefix(path, k.dir+"/"); in && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		require.ElementsMatch(t, []string{"firmware.bin", "flat-flat.vmdk", "readme"}, names)
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

// TestScanSinceDamagedResults has an earlier scan that was killed while it printed a line, and files of which no scan
// has written all.
func TestScanSinceDamagedResults(t *testing.T) {
	t.Parallel()
	k, _ := newKept(t)
	good := string(disktest.ReadFile(t, k.last))
	lines := strings.SplitAfter(good, "\n")
	require.Len(t, lines, 7, "five rows, their sums, and nothing behind them")
	since := func(text string) result {
		require.NoError(t, os.WriteFile(k.last, []byte(text), 0o600))
		return trueup(t, "scan", "-o", "json", "--since", k.last, k.dir)
	}
	disktest.WaitSettled(t, k.dir)
	for _, cut := range []int{1, 5, 100, len(lines[4]) - 2} {
		r := since(strings.Join(lines[:4], "") + lines[4][:cut])
		require.Equal(t, 3, r.code, r.stderr)
		require.Equal(t, "trueup: note: "+k.last+": line 5 is incomplete, as a scan leaves it that is killed; it is "+
			"passed over\n", r.stderr)
		s := readScan(t, r)
		require.Len(t, k.read(s), 1)
		require.Equal(t, results.Changes{New: 1, Same: 4}, *s.sum.Changes)
	}
	whole := since(strings.TrimSuffix(good, "\n"))
	require.Equal(t, 3, whole.code, whole.stderr)
	require.Empty(t, whole.stderr)
	for name, c := range map[string]struct{ text, says string }{
		"a line in the middle": {
			lines[0] + lines[1][:50] + "\n" + lines[2], "line 2: no object of JSON: the line is damaged",
		},
		"no JSON at the end": {lines[0] + "and so on", "line 2: no object of JSON"},
		"another program":    {"SQLite format 3\x00" + strings.Repeat("x", 1000), "line 1: no object of JSON"},
		"another schema":     {strings.Replace(lines[0], "trueup/1", "trueup/9", 1), `line 1: schema "trueup/9"`},
		"another command":    {strings.Replace(lines[0], `"scan"`, `"plan"`, 1), `line 1: a result of trueup "plan"`},
		"a report of several": {
			good + strings.Replace(lines[5], `"scan"`, `"report"`, 1), "line 7: the summary of a report of several",
		},
		"a state that no row has": {
			strings.Replace(lines[0], `"state":"judged"`, `"state":"good"`, 1), `line 1: a row that is "good"`,
		},
		"an identity that no file has": {
			strings.Replace(lines[0], `"identity":{"kind":"`, `"identity":{"kind":"x`, 1), "line 1: a file of the kind",
		},
	} {
		r := since(c.text)
		require.Equal(t, 1, r.code, "%s: %s", name, r.stderr)
		requireOneLine(t, r.stderr)
		require.Contains(t, r.stderr, "--since "+k.last+": "+c.says, name)
	}
}

// TestScanSinceIsEnded ends scans that would replace the results which they take over: those stay.
func TestScanSinceIsEnded(t *testing.T) {
	t.Parallel()
	dir, last := manyDisks(t, 5*someDisks), filepath.Join(t.TempDir(), "last.ndjson")
	scan(t, append(since(last), filepath.Join(dir, "folder-00"))...)
	before := disktest.ReadFile(t, last)
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		l := startScan(t, append(since(last), "-o", "json", "--jobs", "2", dir)...)
		disktest.WaitFor(t, "some images", func() bool { return readCalls(t, l.workers(t)) > 50 })
		l.freeze(t)
		l.signal(t, s)
		if s != syscall.SIGKILL { // which ends a frozen process, too
			l.signal(t, syscall.SIGCONT)
		}
		r := l.end(t)
		require.Equal(t, 128+int(s), r.code, r.stderr)
		require.Equal(t, before, disktest.ReadFile(t, last), s)
		if s == syscall.SIGTERM {
			require.Contains(t, r.stderr, "interrupted: "+last+" stays as the earlier scan has written it")
			require.Equal(t, []string{"last.ndjson"}, folderNames(t, filepath.Dir(last)))
		}
	}
	whole := scan(t, append(since(last), dir)...)
	require.Equal(t, []string{"last.ndjson"}, folderNames(t, filepath.Dir(last)), "what was killed left nothing")
	require.Len(t, whole.rows, 5*someDisks)
	require.Positive(t, whole.sum.Changes.Same)
}

// TestScanSinceAnotherBuild compares with the rows of another build, and reuses none.
func TestScanSinceAnotherBuild(t *testing.T) {
	t.Parallel()
	k, _ := newKept(t)
	const ours = `"reuse":{"settings":"`
	text := strings.ReplaceAll(string(disktest.ReadFile(t, k.last)), ours, ours+"v9 ")
	require.NoError(t, os.WriteFile(k.last, []byte(text), 0o600))
	s := k.scan(t, 3)
	require.Len(t, k.read(s), 5)
	require.Equal(t, 5, s.sum.Changes.Same)
	require.Empty(t, k.read(k.scan(t, 3)))
}
