package catalog

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
)

// noon is when the runs of these tests begin. Files are older.
var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

var v1 = Settings{Version: "1.0", Options: "boundary=64K"}

// file is one file of a test image, written an hour before noon.
func file(name string, inode uint64) results.File {
	written := noon.Add(-time.Hour).UnixNano() + 7
	return results.File{
		Name: name, Size: 1 << 20, Allocated: 1 << 19, Device: 9, Inode: inode, Modified: written,
		Changed: written,
	}
}

// image is a judged image with two partitions, the first one at a byte of the disk.
func image(path string, start int64, f results.File) *results.Image {
	i := results.NewImage(path)
	i.State, i.Format, i.Subformat, i.Size, i.Stored, i.Files = results.Judged, "vmdk", "monolithicSparse", 1<<30,
		1<<19,
		[]results.File{f}
	verdict := align.Aligned
	if start%65536 != 0 {
		verdict = align.Misaligned
	}
	part := func(n int, start int64, verdict align.Verdict) report.Partition {
		return report.Partition{
			Number: n, Kind: "primary", Type: "0x07", TypeName: "NTFS, exFAT or HPFS", StartLBA: start / 512,
			Start: start,
			Size:  100 << 20, Verdict: verdict,
			Alignment: start & -start, Aligned: report.Aligned{To4K: start%4096 == 0},
			Volume: &report.Volume{
				Kind: "ntfs", Label: "System", UUID: "1234567890ABCDEF", Size: 100 << 20, Cluster: 4096,
				Details: map[string]string{"version": "3.1"},
			},
		}
	}
	i.Disks = []results.Disk{{
		Disk: report.Disk{
			Size: 1 << 30, Table: report.Table{Scheme: "mbr", Signature: "0x12345678"},
			Boot:  report.BootCode{Name: "windows-7", Text: "Windows 7 or later"},
			Chain: []report.BootLink{}, Findings: []align.Finding{}, Boundary: 65536, Verdict: verdict,
			Partitions: []report.Partition{part(1, start, verdict), part(2, 512<<20, align.Aligned)},
		},
		Depth: results.Full,
	}}
	i.Settle(nil)
	return i
}

// catalogue opens a catalogue that is closed at the end of the test.
func catalogue(t *testing.T, path string, s Settings) *Catalog {
	t.Helper()
	c, err := Open(path, s)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func fresh(t *testing.T) *Catalog {
	t.Helper()
	return catalogue(t, filepath.Join(t.TempDir(), "lib.catalog"), v1)
}

func begin(t *testing.T, c *Catalog, paths ...string) *Run {
	t.Helper()
	if paths == nil {
		paths = []string{"/lib"}
	}
	r, err := c.Begin(paths, noon)
	require.NoError(t, err)
	return r
}

func finish(t *testing.T, r *Run) {
	t.Helper()
	s := results.NewSummary()
	s.Complete, s.Finished = true, noon.Add(time.Minute).Format(time.RFC3339)
	require.NoError(t, r.Finish(s))
}

func save(t *testing.T, r *Run, path string, i *results.Image) results.Change {
	t.Helper()
	f := file("x", 1)
	if i != nil && len(i.Files) > 0 {
		f = i.Files[0]
	}
	change, err := r.Save(path, f, Known{Ident: []byte("vmdk"), Image: i, Beside: "x.lck"})
	require.NoError(t, err)
	if i != nil {
		require.Equal(t, change, i.Change)
	}
	return change
}

// reuse looks an image up, which must be known, and uses it again.
func reuse(t *testing.T, r *Run, path string, f results.File) results.Change {
	t.Helper()
	k, ok, err := r.Lookup(path, f)
	require.NoError(t, err)
	require.True(t, ok)
	change, err := r.Reuse(path, k)
	require.NoError(t, err)
	return change
}

func removed(t *testing.T, r *Run, there ...string) (paths []string) {
	t.Helper()
	for i, err := range r.Removed(func(path string) bool { return strings.Contains(strings.Join(there, " "), path) }) {
		require.NoError(t, err)
		require.Equal(t, results.Gone, i.State)
		require.Equal(t, results.Removed, i.Change)
		paths = append(paths, i.Path)
	}
	return paths
}

// written writes what waits, as time would.
func written(t *testing.T, r *Run) {
	t.Helper()
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	require.NoError(t, r.flush())
}

// query asks the sqlite3 tool: a second reader of the file.
func query(t *testing.T, c *Catalog, sql string) string {
	t.Helper()
	return strings.TrimSuffix(disktest.Output(t, "sqlite3", c.file, sql), "\n")
}

func text(t *testing.T, v any) string {
	t.Helper()
	out, err := json.Marshal(v)
	require.NoError(t, err)
	return string(out)
}

func TestAnImageComesBackAsItWasSaved(t *testing.T) {
	c := fresh(t)
	r := begin(t, c)
	i := image("lib/a.vmdk", 32256, file("a.vmdk", 1))
	i.Files = append(i.Files, file("a-\xff\xfe\n.vmdk", math.MaxUint64))
	i.Parents = []string{"base.vmdk"}
	i.Findings = []align.Finding{{Code: "x", Severity: "warning", Subject: "image", Text: "<script>"}}
	want := text(t, i)
	i.Read, i.Accepted, i.Priority.Rank = 4096, &results.Accepted{Reason: "old"}, 3
	require.Equal(t, results.New, save(t, r, "/lib/a.vmdk", i))
	require.Equal(t, 3, i.Priority.Rank, "saving an image changes nothing of it but Change")

	k, ok, err := r.Lookup("/lib/a.vmdk", file("a.vmdk", 1))
	require.NoError(t, err)
	require.True(t, ok, "what waits to be written is known already")
	require.Equal(t, want, text(t, k.Image))
	require.Equal(t, i.Files, k.Image.Files, "names are bytes")
	require.Equal(t, "vmdk", string(k.Ident))
	require.Equal(t, "x.lck", k.Beside)
}

func TestWhatIsNotLookedUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c")
	c := catalogue(t, path, v1)
	r := begin(t, c)
	save(t, r, "/lib/a", image("a", 65536, file("a", 1)))
	fleeting := image("b", 65536, file("b", 2))
	fleeting.Fleeting = true
	save(t, r, "/lib/fleeting", fleeting)
	now := file("c", 3)
	now.Changed = noon.UnixNano() - 3
	save(t, r, "/lib/now", image("c", 65536, now))
	whole := file("d", 4)
	whole.Changed = noon.Add(-time.Second).UnixNano()
	save(t, r, "/lib/whole seconds", image("d", 65536, whole))
	extent := image("e", 65536, file("e", 5))
	extent.Files = append(extent.Files, now)
	save(t, r, "/lib/new extent", extent)

	unknown := func(r *Run, path string, f results.File, why string) {
		t.Helper()
		_, ok, err := r.Lookup(path, f)
		require.NoError(t, err)
		require.False(t, ok, why)
	}
	for why, change := range map[string]func(*results.File){
		"size": func(f *results.File) { f.Size++ }, "inode": func(f *results.File) { f.Inode++ },
		"time of the last write": func(f *results.File) { f.Modified++ },
		"time of the inode":      func(f *results.File) { f.Changed++ },
	} {
		f := file("a", 1)
		change(&f)
		unknown(r, "/lib/a", f, why)
	}
	unknown(r, "/lib/A", file("a", 1), "another path")
	unknown(r, "/lib/fleeting", file("b", 2), "a result of that moment")
	unknown(r, "/lib/now", now, "a file that was written within the step of its clock")
	unknown(r, "/lib/whole seconds", whole, "a file that was written within the step of a coarse clock")
	unknown(r, "/lib/new extent", file("e", 5), "an extent that was written within the step of its clock")
	other := file("a", 1)
	other.Device++
	require.Equal(t, results.New, reuse(t, r, "/lib/a", other), "the number of a device may change at a restart")

	finish(t, r)
	for _, s := range []Settings{{Version: "1.1", Options: v1.Options}, {Version: v1.Version, Options: "boundary=1M"}} {
		unknown(begin(t, catalogue(t, path, s)), "/lib/a", file("a", 1), "other settings")
	}
	require.Equal(t, results.Same, reuse(t, begin(t, catalogue(t, path, v1)), "/lib/a", file("a", 1)))
}

// What counts as a change is said in docs/catalog.md.
func TestChanges(t *testing.T) {
	f := file("a.vmdk", 1)
	touched, replaced, chmod := f, f, f
	touched.Modified++
	replaced.Inode++
	chmod.Changed++
	failed := results.NewImage("a")
	failed.Files = []results.File{f}
	failed.Fail("format", "vmdk header at 0x0: version 9")
	other := results.NewImage("a")
	other.Files = []results.File{f}
	other.Fail("io", "read at 0x0")
	reworded := results.NewImage("a")
	reworded.Files = []results.File{f}
	reworded.Fail("format", "vmdk header at 0x0: version 9, want 1 to 3")
	labelled, cheaper := image("a", 65536, f), image("a", 32256, f)
	labelled.Disks[0].Partitions[0].Volume.Label = "Data"
	cheaper.Disks[0].Cost, cheaper.Disks[0].Depth = &results.Cost{More: 5}, results.Survey
	cheaper.Settle([]string{"--storage", "ssd"})
	for name, row := range map[string]struct {
		was, now *results.Image
		want     results.Change
	}{
		"nothing known":               {nil, image("a", 65536, f), results.New},
		"the same result":             {image("a", 65536, f), image("a", 65536, f), results.Same},
		"another start":               {image("a", 65536, f), image("a", 32256, f), results.Changed},
		"another label":               {image("a", 65536, f), labelled, results.Changed},
		"another cost and plan":       {image("a", 32256, f), cheaper, results.Same},
		"the file written again":      {image("a", 65536, f), image("a", 65536, touched), results.Changed},
		"another file":                {image("a", 65536, f), image("a", 65536, replaced), results.Changed},
		"only the rights of the file": {image("a", 65536, f), image("a", 65536, chmod), results.Same},
		"an error":                    {image("a", 65536, f), failed, results.Changed},
		"an error no more":            {failed, image("a", 65536, f), results.Changed},
		"another error":               {failed, other, results.Changed},
		"the error in other words":    {failed, reworded, results.Same},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "c")
			if row.was != nil {
				r := begin(t, catalogue(t, path, v1))
				require.Equal(t, results.New, save(t, r, "/lib/a", row.was))
				finish(t, r)
			}
			// Another version changes nothing by itself.
			c := catalogue(t, path, Settings{Version: "2.0"})
			r := begin(t, c)
			require.Equal(t, row.want, save(t, r, "/lib/a", row.now))
			finish(t, r)
			r = begin(t, c)
			require.Equal(t, results.Same, save(t, r, "/lib/a", row.now))
			finish(t, r)
			runs := map[results.Change]string{results.New: "1|1", results.Same: "1|1", results.Changed: "1|2"}[row.want]
			require.Equal(t, runs, query(t, c, "SELECT first_run, changed_run FROM images"))
		})
	}
}

// Of a run that was killed no report was read, so that the next one still calls its images new.
func TestChangesCountFromTheLastRunThatEnded(t *testing.T) {
	c := fresh(t)
	a, b := file("a", 1), file("b", 2)
	r := begin(t, c)
	require.Empty(t, r.Since)
	save(t, r, "/lib/a", image("a", 65536, a))
	save(t, r, "/lib/b", image("b", 65536, b))
	finish(t, r)

	killed := begin(t, c)
	require.Equal(t, "2026-11-21T12:01:00Z", killed.Since)
	require.Equal(t, results.Changed, save(t, killed, "/lib/a", image("a", 32256, a)))
	require.Equal(t, results.Changed, save(t, killed, "/lib/b", image("b", 32256, b)))
	require.Equal(t, results.New, save(t, killed, "/lib/c", image("c", 65536, file("c", 3))))
	written(t, killed)

	again := begin(t, c)
	require.Equal(t, results.Changed, reuse(t, again, "/lib/a", a))
	require.Equal(t, results.Same, save(t, again, "/lib/b", image("b", 65536, b)),
		"as the run before the killed one left it")
	require.Equal(t, results.New, reuse(t, again, "/lib/c", file("c", 3)))
	finish(t, again)

	last := begin(t, c)
	require.Equal(t, results.Same, reuse(t, last, "/lib/a", a))
	require.Equal(t, results.Same, reuse(t, last, "/lib/b", b))
	require.Equal(t, results.Same, reuse(t, last, "/lib/c", file("c", 3)))
	finish(t, last)
	require.Equal(t, "1|3", query(t, c, "SELECT first_run, changed_run FROM images WHERE path = '/lib/b'"))
	require.Equal(t, "1|1\n2|0\n3|1\n4|1", query(t, c, "SELECT run, complete FROM runs ORDER BY run"))
}

func TestRemoved(t *testing.T) {
	c := fresh(t)
	r := begin(t, c, "/lib", "/lib/deep", "/library", "/lib-old", "/other.vmdk")
	for n, p := range []string{
		"/lib/a", "/lib/deep/b", "/lib/kept", "/lib/left out", "/library/c", "/lib-old/e",
		"/other.vmdk", "/else/d",
	} {
		save(t, r, p, image(p, 65536, file("x", uint64(n))))
	}
	require.Empty(t, removed(t, r))
	finish(t, r)

	r = begin(t, c, "/lib", "/other.vmdk")
	require.Equal(t, results.Same, reuse(t, r, "/lib/kept", file("x", 2)))
	require.Equal(t, []string{"/lib/a", "/lib/deep/b", "/other.vmdk"}, removed(t, r, "/lib/left out"))
	require.Empty(t, removed(t, r, "/lib/left out"), "once")
	finish(t, r)
	require.Equal(t, "gone|2", query(t, c, "SELECT state, changed_run FROM images WHERE path = '/lib/a'"))

	r = begin(t, c)
	require.Empty(t, removed(t, r, "/lib/left out", "/lib/kept"), "once in all runs")
	_, ok, err := r.Lookup("/lib/a", file("x", 0))
	require.NoError(t, err)
	require.False(t, ok, "what comes back is read again")
	require.Equal(t, results.New, save(t, r, "/lib/a", image("a", 65536, file("x", 0))))
	finish(t, r)
	require.Equal(t, "judged|1|3",
		query(t, c, "SELECT state, first_run, changed_run FROM images WHERE path = '/lib/a'"))
}

func TestRemovedIsSaidAgainAfterARunThatWasKilled(t *testing.T) {
	c := fresh(t)
	r := begin(t, c)
	save(t, r, "/lib/a", image("a", 65536, file("a", 1)))
	finish(t, r)
	require.Equal(t, []string{"/lib/a"}, removed(t, begin(t, c)))
	r = begin(t, c)
	require.Equal(t, []string{"/lib/a"}, removed(t, r))
	finish(t, r)
	require.Empty(t, removed(t, begin(t, c)))
	require.Equal(t, "gone|1|2", query(t, c, "SELECT state, first_run, changed_run FROM images"))
}

func TestAnImageThatBecomesAPartOfAnother(t *testing.T) {
	c := fresh(t)
	r := begin(t, c)
	save(t, r, "/lib/a-flat.vmdk", image("a-flat.vmdk", 65536, file("x", 1)))
	finish(t, r)
	r = begin(t, c)
	require.Empty(t, save(t, r, "/lib/a-flat.vmdk", nil))
	require.Equal(t, []string{"/lib/a-flat.vmdk"}, removed(t, r, "/lib/a-flat.vmdk"),
		"the file is there, and no image any more")
	finish(t, r)
	r = begin(t, c)
	k, ok, err := r.Lookup("/lib/a-flat.vmdk", file("x", 1))
	require.NoError(t, err)
	require.True(t, ok)
	require.Nil(t, k.Image)
	require.Empty(t, removed(t, r, "/lib/a-flat.vmdk"))
}

func TestFilesThatAreNoImagesAreForgottenWhenTheyAreGone(t *testing.T) {
	c := fresh(t)
	r := begin(t, c)
	for _, p := range []string{"/lib/a.txt", "/lib/b.txt", "/else/c.txt"} {
		require.Empty(t, save(t, r, p, nil))
	}
	finish(t, r)
	r = begin(t, c)
	require.Empty(t, reuse(t, r, "/lib/a.txt", file("x", 1)))
	s := results.NewSummary()
	require.NoError(t, r.Finish(s))
	require.Equal(t, "3", query(t, c, "SELECT count(*) FROM file"), "a run that is not complete forgets nothing")
	r = begin(t, c)
	require.Empty(t, reuse(t, r, "/lib/a.txt", file("x", 1)))
	finish(t, r)
	require.Equal(t, "/else/c.txt\n/lib/a.txt", query(t, c, "SELECT path FROM file ORDER BY path"))
}

func TestPathsAreBytes(t *testing.T) {
	c := fresh(t)
	r := begin(t, c, "/")
	paths := []string{
		"/lib/\xff\xfe", "/lib/a\nb", "/lib/\x01\x7f\x9b", "/lib/ü", "/lib/u\u0308",
		"/lib/'; DROP TABLE file; --", "/lib/%20?x#y",
	}
	for n, p := range paths {
		save(t, r, p, image(p, 65536, file("x", uint64(n))))
	}
	finish(t, r)
	r = begin(t, c, "/")
	for n, p := range paths {
		require.Equal(t, results.Same, reuse(t, r, p, file("x", uint64(n))))
	}
	finish(t, r)
	require.Equal(t, strings.ToUpper(fmt.Sprintf("%x", paths[0])),
		query(t, c, "SELECT hex(path) FROM images ORDER BY path DESC LIMIT 1"))
	require.ElementsMatch(t, paths, func() (got []string) {
		for i, err := range begin(t, c, "/").Removed(func(string) bool { return false }) {
			require.NoError(t, err)
			if i.PathBytes != "" {
				require.Equal(t, base64.StdEncoding.EncodeToString([]byte(i.Path)), i.PathBytes)
			}
			got = append(got, i.Path)
		}
		return got
	}())
}

// The file's own name is no option of SQLite, and it may be relative or behind a link.
func TestNamesOfCatalogues(t *testing.T) {
	folder := t.TempDir()
	t.Chdir(folder)
	for _, name := range []string{"a?mode=memory", "b#x", "c%41", "d \xff\n", "file:e", ":memory:", "-f"} {
		c, err := Open(name, v1)
		require.NoError(t, err, "%q", name)
		save(t, begin(t, c), "/lib/a", image("a", 65536, file("a", 1)))
		require.NoError(t, c.Close())
		head, err := os.ReadFile(filepath.Join(folder, name))
		require.NoError(t, err, "%q", name)
		require.Equal(t, "SQLite format 3\x00", string(head[:16]))
		require.Equal(t, "trup", string(head[68:72]))
	}
	require.NoError(t, os.Symlink("b#x", "link"))
	c := catalogue(t, "link", v1)
	real, err := filepath.EvalSymlinks(folder)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(real, "b#x-wal"), c.Files()[1])
	require.Equal(t, results.New, reuse(t, begin(t, c), "/lib/a", file("a", 1)))
}

// A result that nothing follows is written all the same: another process sees it.
func TestSavedResultsAreWrittenInTime(t *testing.T) {
	c := fresh(t)
	r := begin(t, c)
	save(t, r, "/lib/a", image("a", 65536, file("a", 1)))
	disktest.WaitFor(t, "the row", func() bool { return query(t, c, "SELECT count(*) FROM images") == "1" })
}

func TestCloseWritesWhatIsLeft(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c")
	c, err := Open(path, v1)
	require.NoError(t, err)
	save(t, begin(t, c), "/lib/a", image("a", 65536, file("a", 1)))
	require.NoError(t, c.Close())
	require.NoError(t, c.Close(), "twice does no harm")
	require.Equal(t, results.New, reuse(t, begin(t, catalogue(t, path, v1)), "/lib/a", file("a", 1)))
}
