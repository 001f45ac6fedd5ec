package scan

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/scan/results"
)

func TestFolderThatVanishes(t *testing.T) {
	tr := newTrial(t)
	for _, d := range "abcdefgh" {
		tr.put(map[string]string{string(d) + "/x": "disk", string(d) + "/y": "disk"})
	}
	tr.Jobs = 1
	var first sync.Once
	var gone string
	tr.judge.look = func(path string) { // which folder comes first is up to the scheduler
		first.Do(func() {
			gone = tr.path("h")
			if filepath.Dir(path) == gone {
				gone = tr.path("a")
			}
			require.NoError(t, os.RemoveAll(gone))
			other := map[string]string{"x": "y", "y": "x"}[filepath.Base(path)]
			require.NoError(t, os.Remove(filepath.Join(filepath.Dir(path), other)))
		})
	}
	tr.scanned()
	require.Len(t, tr.shown(), 13, "what is left has rows, and a file that is gone has none")
	if len(tr.unreadable) > 0 { // it had not been listed yet
		require.Equal(t, []string{gone}, places(tr.unreadable))
	}
}

// A link that takes the place of a folder after the walk has found it, or of one above it, leads out of the library.
func TestFolderThatBecomesALink(t *testing.T) {
	outside, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(outside, "below"), 0o755))
	for _, name := range []string{"secret", "below/secret"} {
		require.NoError(t, os.WriteFile(filepath.Join(outside, name), []byte("disk"), 0o600))
	}
	for _, swapped := range []string{"h", "h/below"} {
		tr := newTrial(t)
		tr.put(map[string]string{"h/below/x": "disk"})
		w := &walker{search: tr.search(), use: func(f *folder) { t.Error(f.path) }}
		require.NoError(t, os.RemoveAll(tr.path(swapped)))
		require.NoError(t, os.Symlink(outside, tr.path(swapped)))
		f := &folder{path: tr.path("h/below"), shown: "h/below"}
		require.Empty(t, w.visit(t.Context(), f), swapped)
		require.Equal(t, []string{"h/below"}, places(w.summary.Unreadable), "which is said")
	}
}

func places(us []results.Unreadable) (out []string) {
	for _, u := range us {
		out = append(out, u.Path)
	}
	return out
}

// A folder that can be listed and not entered has files that cannot be looked at. Root can, so the test runs as another
// user.
func TestFolderThatCannotBeEntered(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root can look into all folders; TestScripts/scan_unreadable gives up its rights")
	}
	disktest.OnUnix(t, "modes of files")
	tr := newTrial(t)
	tr.put(map[string]string{"locked/x": "disk", "listed/x": "disk", "fine/x": "disk"})
	for name, mode := range map[string]os.FileMode{"locked": 0o300, "listed": 0o400} {
		require.NoError(t, os.Chmod(tr.path(name), mode))
		t.Cleanup(func() { require.NoError(t, os.Chmod(tr.path(name), 0o700)) })
	}
	tr.scanned()
	require.Equal(t, []string{"fine/x"}, tr.shown())
	got := places(tr.unreadable)
	slices.Sort(got)
	require.Equal(t, []string{tr.path("listed"), tr.path("locked")}, got)
}

func TestCancelled(t *testing.T) {
	tr := newTrial(t)
	for i := range 50 {
		tr.put(map[string]string{fmt.Sprintf("%d/x", i): "disk", fmt.Sprintf("%d/y", i): "disk"})
	}
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	tr.judge.open = func(path string) {
		if strings.HasSuffix(path, filepath.Join("9", "y")) {
			cancel()
			<-release // a parser that never ends, until the test does
		}
	}
	_, err := tr.run(ctx, tr.dir) // which ends before the parser does
	require.ErrorIs(t, err, context.Canceled)
	close(release)
	require.Zero(t, tr.walked)
	for _, i := range tr.rows {
		require.Equal(t, results.Judged, i.State)
	}
	require.Less(t, len(tr.rows), 100)
}

func TestCancelledInABigFolder(t *testing.T) {
	tr := newTrial(t)
	for i := range 5 * batch {
		tr.put(map[string]string{fmt.Sprintf("%d", i): ""})
	}
	ctx, cancel := context.WithCancel(t.Context())
	tr.put(map[string]string{"0": "disk"})
	tr.judge.look = func(string) { cancel() }
	_, err := tr.run(ctx, tr.dir)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, tr.walked)
}

// Files that the user names are looked at, and what they belong to is known; the others of the folder have no rows.
func TestNamedFilesAmongMany(t *testing.T) {
	tr := newTrial(t)
	tr.put(map[string]string{
		"base": "disk", "overlay": "disk\nof base", "other": "disk", "base.lck": "",
		"x.vmdk": "disk\nhas x-flat.vmdk", "x-flat.vmdk": "bare",
	})
	beside := map[string]*image.Beside{}
	tr.worker = func() (Worker, error) { return noting{inProcess{tr.judge}, beside}, nil }
	tr.Jobs = 1
	tr.scanned(tr.path("base"))
	require.Equal(t, []string{"base"}, tr.shown())
	require.Equal(t, &image.Beside{
		Locks:    image.FileNames{"base.lck"},
		Children: []image.Child{{Name: []byte("overlay"), Parents: image.FileNames{"base"}}},
	}, beside["base"])
	tr.scanned(tr.path("overlay"))
	require.Equal(t, image.FileNames{"base.lck"}, beside["overlay"].Locks, "a lock on the parent concerns the child")
	tr.scanned(tr.path("x-flat.vmdk"), tr.path("x.vmdk"), tr.path("other"))
	require.Equal(t, []string{"other", "x.vmdk"}, tr.shown())
}

// noting are workers that note what the images that they judge have beside them.
type noting struct {
	inProcess
	beside map[string]*image.Beside
}

func (n noting) Call(ctx context.Context, r ...Request) (Answer, error) {
	if r[0].Judge {
		n.beside[filepath.Base(r[0].Path)] = r[0].Beside
	}
	return n.inProcess.Call(ctx, r...)
}

// Many images that concern each other must not take the square of their number.
func TestManyRelatedFiles(t *testing.T) {
	const n = 10_000
	name := func(prefix string, i int) string { return fmt.Sprintf("%s%05d", prefix, i) }
	c := newContents()
	shared := make(image.FileNames, 200)
	for i := range shared {
		shared[i] = name("extent", i)
		c.add(&found{entry: entry{File: results.File{Name: shared[i]}}, id: image.Identity{Kind: image.Bare}})
	}
	refused, locks, children := 0, 0, 0
	took := disktest.ProcessorTime(func() {
		for i := range n {
			x := &found{
				entry: entry{File: results.File{Name: name("disk", i)}},
				id:    image.Identity{Kind: image.Disk, Extents: shared},
			}
			if !c.add(x) {
				refused++
			}
			c.add(&found{
				entry: entry{File: results.File{Name: name("child", i)}},
				id: image.Identity{Kind: image.Disk, Parents: image.FileNames{
					name("disk", i), "extent00000",
					"disk00000",
				}},
			})
			for _, lock := range []string{
				name("disk", i) + ".lck", name("disk", i) + "-1.vmem",
				"child00001-" + name("", i) +
					".vmem", ".lck-" + name("", i), name("", i) + ".vmss",
			} {
				c.beside.Add(lock)
			}
		}
		c.relate()
		for _, x := range c.sorted() {
			locks += len(c.beside.Locks(c.family(x)))
			children += len(c.snapshots(x))
		}
	})
	require.Equal(t, n-maxFolderNames/(len(shared)+3), refused, "what does not fit")
	require.Less(t, took, time.Minute, "3 s, when the race detector watches")
	require.Less(t, locks, 40*2*n)
	require.LessOrEqual(t, children, maxChildren*2*n)
}

// Snapshots and views concern a disk under each of its names.
func TestChildrenOfLinks(t *testing.T) {
	t.Parallel()
	c := newContents()
	add := func(name string, links, inode uint64, id image.Identity) *found {
		x := &found{entry: entry{File: results.File{Name: name, Device: 7, Inode: inode}, links: links}, id: id}
		c.add(x)
		return x
	}
	parents := image.FileNames{"b-link"}
	disk := add("a-link", 2, 1, image.Identity{Kind: image.Bare})
	same := add("b-link", 2, 1, image.Identity{Kind: image.Bare})
	other := add("c-link", 2, 2, image.Identity{Kind: image.Bare})
	add("snapshot", 1, 3, image.Identity{Kind: image.Disk, Parents: parents})
	add("view", 1, 4, image.Identity{Kind: image.Disk, Views: parents, Extents: parents})
	c.relate()
	want := []image.Child{{Name: []byte("snapshot"), Parents: parents}, {Name: []byte("view"), Views: parents}}
	require.Equal(t, want, c.snapshots(disk))
	require.Equal(t, want, c.snapshots(same))
	require.Empty(t, c.snapshots(other))
}

// A folder of a million folders, of which only names are kept.
func TestWalkHasBoundedMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("makes many folders")
	}
	tr := newTrial(t)
	const n = 8_000
	for i := range n {
		require.NoError(t, os.Mkdir(tr.path(fmt.Sprintf("a-folder-with-a-name-of-some-length-%06d", i)), 0o755))
	}
	w := &walker{search: tr.search(), use: func(*folder) {}}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	names := w.visit(t.Context(), &folder{path: tr.dir, shown: tr.dir})
	runtime.GC()
	runtime.ReadMemStats(&after)
	require.Len(t, names, n)
	require.Less(t, after.HeapAlloc-before.HeapAlloc, uint64(n*100), "bytes for each folder that waits")
	require.True(t, slices.IsSorted(names))
}

// A shell shows the folder that it is in by the link through which it came there.
func TestFolderThatTheUserIsInByALink(t *testing.T) {
	disktest.OnUnix(t, "links")
	tr := newTrial(t)
	tr.put(map[string]string{"real/x": "disk"})
	require.NoError(t, os.Symlink("real", tr.path("link")))
	t.Chdir(tr.path("link"))
	t.Setenv("PWD", tr.path("link"))
	real, mode, err := resolve(".")
	require.NoError(t, err)
	require.True(t, mode.IsDir())
	want, err := filepath.EvalSymlinks(tr.path("real"))
	require.NoError(t, err)
	require.Equal(t, want, real)
}
