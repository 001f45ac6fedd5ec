package scan

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/scan/sandbox"
)

func TestMain(m *testing.M) { disktest.LeakTestMain(m) }

// textJudge takes a file for what its text says: "disk", "extent", "bare", "pack", "iso"; then "has NAME" and "of
// NAME", a line each.
type textJudge struct {
	// look and open are called before a file is identified and judged.
	look, open func(path string)
}

func (j *textJudge) Identify(path string) (id image.Identity, err error) {
	if j.look != nil {
		j.look(path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return id, err
	}
	kinds := map[string]image.Kind{
		"disk": image.Disk, "extent": image.Extent, "bare": image.Bare, "pack": image.Pack,
		"iso": image.Medium, "companion": image.Companion,
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "has "); ok {
			id.Extents = append(id.Extents, name)
		} else if name, ok := strings.CutPrefix(line, "of "); ok {
			id.Parents = append(id.Parents, name)
		} else if kind := kinds[line]; kind != "" {
			id.Kind = kind
		}
	}
	return id, nil
}

func (j *textJudge) Image(job Job) *results.Image {
	if j.open != nil {
		j.open(job.Path)
	}
	i := results.NewImage(job.Path)
	i.State, i.Format = results.Judged, "text"
	if strings.Contains(filepath.Base(job.Path), "broken") {
		i.Fail("format", "broken")
	}
	if job.Doubt && !job.Package && !strings.Contains(job.Path, "holds") {
		return nil
	}
	return i
}

// trial is a scan of a folder under test, and what it told.
type trial struct {
	testing.TB
	dir   string
	judge *textJudge
	Task
	worker   func() (Worker, error)
	settings string
	started  time.Time
	earlier  *earlier

	mu         sync.Mutex
	rows       []*results.Image
	unreadable []results.Unreadable
	found      int
	walked     int
}

func newTrial(t testing.TB) *trial {
	t.Helper()
	tr := &trial{TB: t, dir: t.TempDir(), judge: &textJudge{}}
	tr.Jobs = 4
	tr.worker = func() (Worker, error) { return inProcess{tr.judge}, nil }
	tr.Boundary = align.DefaultBoundary
	tr.Progress = tr
	tr.Row = func(i *results.Image) error { tr.told(func() { tr.rows = append(tr.rows, i) }); return nil }
	return tr
}

func (tr *trial) Found(n int)         { tr.told(func() { tr.found += n }) }
func (tr *trial) Walked()             { tr.told(func() { tr.walked++ }) }
func (tr *trial) Done(*results.Image) { tr.told(func() {}) }

// told requires that the functions are called one at a time.
func (tr *trial) told(note func()) {
	if !tr.mu.TryLock() {
		tr.Error("two functions are told at once")
		return
	}
	defer tr.mu.Unlock()
	note()
}

func (tr *trial) path(name string) string { return filepath.Join(tr.dir, name) }

// put writes files, each a name and its text.
func (tr *trial) put(files map[string]string) {
	tr.Helper()
	for name, text := range files {
		require.NoError(tr, os.MkdirAll(filepath.Dir(tr.path(name)), 0o755))
		require.NoError(tr, os.WriteFile(tr.path(name), []byte(text), 0o644))
	}
}

func (tr *trial) link(old, name string) {
	tr.Helper()
	require.NoError(tr, os.MkdirAll(filepath.Dir(tr.path(name)), 0o755))
	require.NoError(tr, os.Link(tr.path(old), tr.path(name)))
}

// search begins a scan.
func (tr *trial) search() *search {
	r := tr.begin()
	r.settings, r.start, r.earlier = tr.settings, tr.started, tr.earlier
	return r
}

// queue is a worker that answers one request after the other, like a worker process.
type queue struct {
	Worker
	requests []Request
}

func (q *queue) Call(ctx context.Context, r ...Request) (Answer, error) {
	q.requests = append(q.requests, r...)
	first := q.requests[0]
	q.requests = q.requests[1:]
	return q.Worker.Call(ctx, first)
}

// run scans the trial's folder, or paths, from inside of it.
func (tr *trial) run(ctx context.Context, paths ...string) (*results.Summary, error) {
	tr.Helper()
	tr.Paths = paths
	tr.rows, tr.found, tr.walked = nil, 0, 0
	r := tr.search()
	r.pool = newPool(tr.Jobs, sandbox.MostRequests, nil, func(context.Context) (Worker, error) {
		w, err := tr.worker()
		return &queue{Worker: w}, err
	})
	err := r.look(ctx)
	require.NoError(tr, r.pool.Close())
	require.Equal(tr, r.summary.Found, tr.found)
	tr.unreadable = r.summary.Unreadable
	return r.summary, err
}

// scanned runs to the end and requires that each image that was found has a row.
func (tr *trial) scanned(paths ...string) *results.Summary {
	tr.Helper()
	if len(paths) == 0 {
		paths = []string{tr.dir}
	}
	res, err := tr.run(tr.Context(), paths...)
	require.NoError(tr, err)
	require.Equal(tr, 1, tr.walked)
	require.Len(tr, tr.rows, res.Found)
	return res
}

// shown lists the paths of the rows, sorted, without the trial's folder, with the state where it is not "judged".
func (tr *trial) shown() []string {
	out := []string{}
	for _, i := range tr.rows {
		name := filepath.ToSlash(strings.TrimPrefix(i.Path, tr.dir+string(filepath.Separator)))
		if i.State != results.Judged {
			name += " " + string(i.State)
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func TestLinksAreNotFollowed(t *testing.T) {
	disktest.OnUnix(t, "links")
	tr := newTrial(t)
	tr.put(map[string]string{"a/x.raw2": "disk", "b/y": "disk", "elsewhere/z": "disk"})
	for name, to := range map[string]string{
		"a/file": "x.raw2", "a/loop": "loop", "a/up": "..", "b/folder": "../elsewhere",
		"in": "a", "b/gone": "nothing", "image": "b/y",
	} {
		require.NoError(t, os.Symlink(to, tr.path(name)))
	}
	require.Equal(t, 5, tr.scanned(tr.path("a"), tr.path("b")).Links)
	require.Equal(t, []string{"a/x.raw2", "b/y"}, tr.shown())
	tr.Wanted = func(rel, _ string) bool { return rel != "file" }
	require.Equal(t, 2, tr.scanned(tr.path("a")).Links, "loop and up")
	tr.Wanted = nil
	require.Equal(t, 3, tr.scanned(tr.path("in"), tr.path("image")).Links, "in the folder behind the link")
	require.Equal(t, []string{"image", "in/x.raw2"}, tr.shown(), "what the user names may be a link")
	tr.scanned(tr.path("a/loop"), tr.path("b/gone"), tr.path("b/y/z"), "")
	require.Equal(t, []string{" failed", "a/loop failed", "b/gone failed", "b/y/z failed"}, tr.shown())
	for _, i := range tr.rows {
		require.Contains(t, []string{
			"too many levels of symbolic links", "no such file or directory",
			"not a directory",
		},
			strings.TrimSuffix(i.Error.Message, "; check the path"))
	}
}

func TestEachInodeHasOneRow(t *testing.T) {
	tr := newTrial(t)
	tr.put(map[string]string{"a/x.vmdk": "disk\nhas x-flat.vmdk", "a/x-flat.vmdk": "bare", "a/b/y": "disk"})
	t.Chdir(tr.dir)
	for _, c := range []struct{ paths, want []string }{
		{[]string{"."}, []string{"a/b/y", "a/x.vmdk"}},
		{[]string{"./"}, []string{"./a/b/y", "./a/x.vmdk"}},
		{[]string{"a", "a", "./a", tr.dir}, []string{"a/b/y", "a/x.vmdk"}},
		{[]string{"a/b", "a"}, []string{"a/b/y", "a/x.vmdk"}},
		{[]string{"a", "a/x.vmdk"}, []string{"a/b/y", "a/x.vmdk"}},
		{[]string{"a/../a/x.vmdk", "a"}, []string{"a/../a/x.vmdk", "a/b/y"}},
		{[]string{"a/x.vmdk", "a/x.vmdk", "./a/x.vmdk"}, []string{"a/x.vmdk"}},
		{[]string{"a/x-flat.vmdk", "a/x.vmdk"}, []string{"a/x.vmdk"}},
		{[]string{"a/x-flat.vmdk", "a"}, []string{"a/b/y", "a/x.vmdk"}},
		{[]string{"a/x-flat.vmdk"}, []string{"a/x-flat.vmdk"}},
		{[]string{"a/b/../../a/b/y", "a"}, []string{"a/b/../../a/b/y", "a/x.vmdk"}},
	} {
		tr.scanned(c.paths...)
		require.Equal(t, c.want, tr.shown(), c.paths)
	}
}

// The first name in the order of the walk has the row, whichever folder was ready first: a later scan finds images by
// their paths.
func TestHardLinks(t *testing.T) {
	tr := newTrial(t)
	tr.put(map[string]string{"b/x": "disk", "c/one.vmdk": "disk\nhas one-flat.vmdk", "c/one-flat.vmdk": "bare"})
	for _, name := range []string{"b/y", "a/z", "d/x", "e/f/x"} {
		tr.link("b/x", name)
	}
	// A tree of hard links, as cp -al makes it: neither its descriptors nor its extents have rows.
	for _, dir := range []string{"copy1", "copy2"} {
		tr.link("c/one.vmdk", dir+"/one.vmdk")
		tr.link("c/one-flat.vmdk", dir+"/one-flat.vmdk")
	}
	for i := range 60 { // more work for the folders that come first
		tr.put(map[string]string{fmt.Sprintf("a/%d.txt", i): "text"})
	}
	for range 20 {
		tr.scanned()
		require.Equal(t, []string{"a/z", "c/one.vmdk"}, tr.shown())
	}
	tr.scanned(tr.dir, tr.path("d/x"))
	require.Equal(t, []string{"c/one.vmdk", "d/x"}, tr.shown(), "a file that the user names has that name")
	tr.Wanted = func(rel, _ string) bool { return !strings.HasPrefix(rel, "a/") && rel != "b/x" }
	tr.scanned()
	require.Equal(t, []string{"b/y", "c/one.vmdk"}, tr.shown(), "what is left out stands for nothing")
}

func TestWanted(t *testing.T) {
	tr := newTrial(t)
	tr.put(map[string]string{
		"x.vmdk": "disk\nhas x-flat.vmdk", "x-flat.vmdk": "bare", "vm.ovf": "pack\nhas d.vmdk", "d.vmdk": "disk",
		"text": "text", "deep/y.vmdk": "disk", "deep/z.qcow2": "disk",
	})
	for _, c := range []struct {
		name string
		keep func(rel string) bool
		want []string
	}{
		{"all", func(string) bool { return true }, []string{"deep/y.vmdk", "deep/z.qcow2", "vm.ovf", "x.vmdk"}},
		{
			"no package: its disks can stand alone", func(rel string) bool { return rel != "vm.ovf" },
			[]string{"d.vmdk", "deep/y.vmdk", "deep/z.qcow2", "x.vmdk"},
		},
		{
			"no descriptor: its extents cannot", func(rel string) bool { return rel != "x.vmdk" },
			[]string{"deep/y.vmdk", "deep/z.qcow2", "vm.ovf"},
		},
		{
			"one folder", func(rel string) bool { return strings.HasPrefix(rel, "deep/") },
			[]string{"deep/y.vmdk", "deep/z.qcow2"},
		},
		{"nothing", func(string) bool { return false }, []string{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr.Wanted = func(rel, shown string) bool {
				require.Equal(t, tr.path(rel), shown)
				return c.keep(rel)
			}
			tr.scanned()
			require.Equal(t, c.want, tr.shown())
			tr.scanned(tr.path("text"))
			require.Equal(t, []string{"text"}, tr.shown(), "a file that the user names is wanted")
		})
	}
}

func TestSpared(t *testing.T) {
	tr := newTrial(t)
	tr.put(map[string]string{"x": "disk", "last.ndjson": "disk"})
	tr.Spare = []string{tr.path("last.ndjson")}
	tr.judge.look = func(path string) { require.NotEqual(t, tr.path("last.ndjson"), path) }
	tr.scanned()
	require.Equal(t, []string{"x"}, tr.shown())
}

// What a row says about its parts depends on the row: an image that cannot be judged hides only what says nothing
// alone.
func TestPartsOfWhatCannotBeJudged(t *testing.T) {
	tr := newTrial(t)
	tr.put(map[string]string{
		"broken.ovf": "pack\nhas broken.vmdk\nhas good.vmdk", "good.vmdk": "disk\nhas good-flat.vmdk",
		"good-flat.vmdk": "bare",
		"broken.vmdk":    "disk\nhas broken-flat.vmdk\nhas holds.img", "broken-flat.vmdk": "bare", "holds.img": "bare" +
			strings.Repeat(" ", 508),
		"fine.ovf": "pack\nhas fine.vmdk", "fine.vmdk": "disk",
	})
	tr.scanned()
	require.Equal(t, []string{"broken.ovf failed", "broken.vmdk failed", "fine.ovf", "good.vmdk", "holds.img"},
		tr.shown())
}

// A folder of VMware passes a gate with the files that track and digest its disks, which are not images.
func TestFilesBesideDisks(t *testing.T) {
	tr := newTrial(t)
	tr.put(map[string]string{
		"vm.vmdk": "disk\nhas vm-flat.vmdk", "vm-flat.vmdk": "bare", "vm-ctk.vmdk": "companion",
		"._vm.vmdk": "companion",
		"VM-2.vmdk": "disk", "vm-2-ctk.vmdk": "companion", // systems differ in case
		"lone/x-ctk.vmdk": "companion", "lone/._notes": "companion", "lone/x.ctk": "companion",
		"broken.vmdk": "disk", "broken-ctk.vmdk": "companion",
		"unread/empty.vmdk": "disk\nhas empty-rdm.vmdk", "unread/empty-rdm.vmdk": "",
	})
	res := tr.scanned()
	require.Equal(t, []string{
		"VM-2.vmdk", "broken.vmdk failed", "lone/x-ctk.vmdk orphan", "unread/empty.vmdk", "vm.vmdk",
	}, tr.shown())
	require.Equal(t, 2, res.Skipped)
	tr.scanned(tr.path("vm-ctk.vmdk"), tr.path("._vm.vmdk"))
	require.Equal(t, []string{"._vm.vmdk orphan", "vm-ctk.vmdk orphan"}, tr.shown())
	require.Equal(t, `it belongs to "vm.vmdk" and holds other data, not the data of a disk`,
		tr.rows[0].Findings[0].Text)
	tr.scanned(tr.path("vm-ctk.vmdk"), tr.path("vm.vmdk"))
	require.Equal(t, []string{"vm.vmdk"}, tr.shown())
}

// The chunks of a file that an OVF names are not disks of their own, whether the OVF can be judged or not. Spec:
// DSP0243 7.1.
func TestChunksOfAnOVF(t *testing.T) {
	tr := newTrial(t)
	tr.put(map[string]string{
		"vm.ovf": "pack\nhas d.vmdk", "d.vmdk.000000000": "disk", "d.vmdk.000000001": "disk",
		"broken.ovf": "pack\nhas e.vmdk", "e.vmdk.000000000": "disk", "other.vmdk.000000000": "disk",
		"whole.ovf": "pack\nhas w.vmdk", "w.vmdk": "disk", "w.vmdk.000000000": "disk",
	})
	tr.scanned()
	require.Equal(t, []string{
		"broken.ovf failed", "other.vmdk.000000000", "vm.ovf", "w.vmdk.000000000", "whole.ovf",
	}, tr.shown())
}

func TestNonImagesAreCounted(t *testing.T) {
	tr := newTrial(t)
	sector := strings.Repeat(" ", 508)
	tr.put(map[string]string{
		"text": "text", "a/empty": "", "cd.iso": "iso", "cd.img": "iso", "short": "bare", "doubt": "bare" + sector,
		"holds": "bare" + sector, "x.vmdk": "text", "empty.vhd": "",
	})
	res := tr.scanned()
	require.Equal(t, []string{"empty.vhd", "holds", "x.vmdk"}, tr.shown())
	require.Equal(t, 6, res.Skipped)
	tr.scanned(tr.path("cd.iso"), tr.path("text"))
	require.Equal(t, []string{"cd.iso", "text"}, tr.shown())
}

// Files that a run is writing or has not removed yet are not images of their own, and not opened. The images that name
// one as their extent, and the user who names one as a PATH, mean it.
func TestTemporaryFilesHaveNoRows(t *testing.T) {
	const job = ".trueup-0123456789abcdef0123456789abcdef-0"
	tr := newTrial(t)
	tr.put(map[string]string{
		"x.vmdk": "disk", ".x.vmdk.partial": "disk", ".x-flat.vmdk.partial": "bare", ".x.orig.vmdk.exchange": "disk",
		".x-flat.vmdk.replaced": "bare", ".partial": "disk", "y.partial": "disk", ".z.vmdk": "disk",
		job + "-x.vmdk": "disk", job + "/x.vmdk": "disk", ".trueup-old.vmdk": "disk",
	})
	res := tr.scanned()
	require.Equal(t, 5, res.Temporary)
	require.Equal(t, tr.path(job+"-x.vmdk"), res.Leftover)
	require.Equal(t, []string{".partial", ".trueup-old.vmdk", ".z.vmdk", "x.vmdk", "y.partial"}, tr.shown())
	require.Zero(t, tr.scanned(tr.path(".x.vmdk.partial"), tr.path("x.vmdk")).Temporary)
	require.Equal(t, []string{".x.vmdk.partial", "x.vmdk"}, tr.shown())
}

// dying are workers that die of some files.
type dying struct {
	inProcess
	of map[string]error
}

func (d dying) Call(ctx context.Context, r ...Request) (Answer, error) {
	if err := d.of[filepath.Base(r[0].Path)]; err != nil {
		return Answer{}, err
	}
	if strings.HasPrefix(filepath.Base(r[0].Path), "silent") && r[0].Judge {
		return Answer{}, nil
	}
	return d.inProcess.Call(ctx, r...)
}

func TestWorkersThatDie(t *testing.T) {
	tr := newTrial(t)
	files, of, want := map[string]string{}, map[string]error{}, []string{}
	for i := range 200 {
		name := fmt.Sprintf("%03d", i)
		files[name] = "disk"
		if i%3 == 0 {
			of[name] = errors.New("killed by a signal")
			name += " failed"
		}
		want = append(want, name)
	}
	files["silent"] = "disk"
	want = append(want, "silent failed")
	tr.put(files)
	started := 0
	tr.worker = func() (Worker, error) {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		if started++; started%5 == 0 {
			return nil, errors.New("no more processes")
		}
		return dying{inProcess{tr.judge}, of}, nil
	}
	tr.Jobs = 1 // so that it is known which worker fails to start
	_, err := tr.run(t.Context(), tr.dir)
	require.NoError(t, err)
	require.Len(t, tr.rows, len(want))
	tr.Jobs = 4
	tr.worker = func() (Worker, error) { return dying{inProcess{tr.judge}, of}, nil }
	tr.scanned()
	require.Equal(t, want, tr.shown())
	for _, i := range tr.rows {
		require.Equal(t, i.State == results.Failed, i.Fleeting, "what died may live another time")
		require.Len(t, i.Files, 1)
	}
}

func TestAnErrorOfARowEndsTheRun(t *testing.T) {
	tr := newTrial(t)
	files := map[string]string{}
	for i := range 100 {
		files[fmt.Sprintf("%d/x", i)] = "disk"
	}
	tr.put(files)
	full := errors.New("no space left on device")
	for _, paths := range [][]string{{tr.dir}, {tr.path("nothing"), tr.dir}} {
		tr.Row = func(*results.Image) error { return full }
		_, err := tr.run(t.Context(), paths...)
		require.ErrorIs(t, err, full)
		require.NotErrorIs(t, err, context.Canceled, "it was not interrupted")
		require.Zero(t, tr.walked)
	}
}
