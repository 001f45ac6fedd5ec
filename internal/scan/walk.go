package scan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"

	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/sys"
)

// folder is one folder with files to look at.
type folder struct {
	path     string // absolute, no links
	shown    string // as the user would write it
	rel      string // from the root, with slashes; "" for the root itself
	only     []entry
	context  bool // only files that the user named have rows; the others show what belongs to these
	turn     int  // its place in the walk
	reported bool // it was reported that it cannot be read
	met      bool // below a root; the files that were named are looked at there
}

// under is the folder of a name in f.
func (f *folder) under(name string) *folder {
	return &folder{path: filepath.Join(f.path, name), shown: join(f.shown, name), rel: path.Join(f.rel, name)}
}

// join makes a path as the user would write it.
func join(shown, name string) string {
	if shown == "." {
		return name
	}
	drive := len(shown) == 2 && filepath.VolumeName(shown) == shown // C: is not C:\
	if drive || os.IsPathSeparator(shown[len(shown)-1]) {
		return shown + name
	}
	return shown + string(filepath.Separator) + name
}

// inodes are files and folders that were seen.
type inodes struct{ seen sync.Map }

// first reports whether an inode was not seen before.
func (s *inodes) first(id sys.ID) bool {
	_, again := s.seen.LoadOrStore(id, true)
	return !again
}

// resolve follows the links of a path that the user wrote, and returns the file that it leads to.
func resolve(path string) (string, fs.FileMode, error) {
	if path == "" {
		return "", 0, sys.ErrNotExist // it would be the folder that the user is in
	}
	real, err := gate.RealPath(path)
	if err != nil {
		if _, system := errors.AsType[*fs.PathError](err); system || sys.NotFolder(err) {
			return "", 0, sys.Cause(err)
		}
		return "", 0, sys.ErrLoop // the one error that EvalSymlinks has itself
	}
	st, err := os.Lstat(real)
	if err != nil {
		return "", 0, sys.Cause(err)
	}
	return real, st.Mode(), nil
}

// walker finds folders, each once. Its memory grows with the names of the folders on its way, not with their paths.
type walker struct {
	*search
	use     func(f *folder)
	visited inodes
	named   map[sys.ID]*folder // of files that the user named, not met yet, by the inode of the folder
	turn    int
}

// walk finds the folders below the paths, then those of files that the user named outside of them, and passes each to
// use. Links are not followed, but those that the user's own paths are.
func (r *search) walk(ctx context.Context, use func(f *folder)) error {
	w := &walker{search: r, use: use}
	named, roots, err := w.roots(ctx)
	if err != nil {
		return err
	}
	for _, root := range roots {
		if err := w.below(ctx, root); err != nil {
			return err
		}
	}
	for _, f := range named {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !f.met {
			w.give(f)
		}
	}
	return nil
}

// give passes a folder on.
func (w *walker) give(f *folder) {
	f.turn = w.turn
	w.turn++
	w.use(f)
}

// below visits a folder and all below it, in the order of their names.
func (w *walker) below(ctx context.Context, f *folder) error {
	for _, name := range w.visit(ctx, f) {
		if err := w.below(ctx, f.under(name)); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// visit hands a folder over when it has files, and gives the names of the folders in it.
func (w *walker) visit(ctx context.Context, f *folder) (below []string) {
	e, err := stat(f.path, "")
	if err != nil {
		w.unreadable(f.shown, err)
		return nil
	}
	if !w.visited.first(e.inode()) {
		return nil // reached by another path, or a bind mount into itself
	}
	if n := w.named[e.inode()]; n != nil {
		f.only, n.met = n.only, true
	}
	files := len(f.only) > 0
	err = eachEntry(ctx, f.path, func(d fs.DirEntry) error {
		switch {
		case d.IsDir() && journal.OfJob(d.Name()): // its files get their names elsewhere
		case d.IsDir():
			below = append(below, d.Name())
		case d.Type().IsRegular():
			files = true
		case d.Type()&fs.ModeSymlink != 0 && w.wantsLink(f, d.Name()):
			w.count(&w.summary.Links, 1)
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		f.reported = true // what was found in it so far counts
		w.unreadable(f.shown, err)
	}
	if files && ctx.Err() == nil {
		w.give(f)
	}
	slices.Sort(below)
	return below
}

// wantsLink reports whether a file of the name of a link would count.
func (w *walker) wantsLink(f *folder, name string) bool {
	return w.Wanted == nil || w.Wanted(path.Join(f.rel, name), join(f.shown, name))
}

// roots divides the paths into folders to walk and folders of files that are named themselves.
func (w *walker) roots(ctx context.Context) (named, roots []*folder, err error) {
	w.named = map[sys.ID]*folder{}
	for _, p := range w.Paths {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		real, mode, err := resolve(p)
		switch {
		case err == nil && mode.IsDir():
			roots = append(roots, &folder{path: real, shown: p})
			continue
		case err == nil:
			var f *folder
			if f, err = w.addNamed(p, real); err == nil && f != nil {
				named = append(named, f)
			}
		}
		if err != nil {
			if err = w.missing(p, err); err != nil {
				return nil, nil, err
			}
		}
	}
	return named, roots, nil
}

// addNamed notes a file that the user named. The folder is that of the file, where no other file of it was named
// before.
func (w *walker) addNamed(shown, real string) (added *folder, err error) {
	e, err := stat(real, filepath.Base(real))
	if err != nil {
		return nil, err
	}
	d, err := stat(filepath.Dir(real), "")
	if err != nil {
		return nil, err
	}
	if !w.seen.first(e.inode()) {
		return nil, nil
	}
	f := w.named[d.inode()]
	if f == nil {
		f = &folder{path: filepath.Dir(real), shown: filepath.Dir(shown), context: true}
		w.named[d.inode()], added = f, f
	}
	e.named, e.shown, e.rel = true, shown, filepath.Base(shown)
	f.only = append(f.only, e)
	return added, nil
}

// missing makes a row of a path that leads nowhere: the user named it.
func (r *search) missing(path string, err error) error {
	if at, wrong := filepath.Abs(path); wrong == nil && !r.shard.Has(at) {
		r.count(&r.summary.Others, 1)
		return nil
	}
	i := results.NewImage(path)
	e := classify(fmt.Errorf("%w%s", err, cmp.Or(patternHint(path), "; check the path")))
	i.Fail(e.Code, e.Message)
	i.Fleeting = true
	r.more(1)
	return r.row(i)
}

// batch is the number of names of a folder that are read at once.
const batch = 1024

// eachEntry passes the names in a folder to use, in the order of the folder, until use returns an error.
func eachEntry(ctx context.Context, path string, use func(d fs.DirEntry) error) error {
	dir, err := sys.OpenDirect(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		list, err := dir.ReadDir(batch)
		for _, d := range list {
			if err := use(d); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return sys.Cause(err)
		}
	}
}

// turns lets folders that are looked at at once do something in the order of the walk. Each of them must finish.
type turns struct {
	mu    sync.Mutex
	cond  *sync.Cond
	next  int // the first one that has not finished
	ready map[int]bool
}

func newTurns() *turns {
	t := &turns{ready: map[int]bool{}}
	t.cond = sync.NewCond(&t.mu)
	return t
}

// wait returns when all turns before n have finished.
func (t *turns) wait(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.next < n {
		t.cond.Wait()
	}
}

// finish ends a turn, once or again.
func (t *turns) finish(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n < t.next {
		return
	}
	t.ready[n] = true
	for t.ready[t.next] {
		delete(t.ready, t.next)
		t.next++
	}
	t.cond.Broadcast()
}

// entry is a file of a folder.
type entry struct {
	results.File

	links   uint64
	regular bool
	named   bool // the user named it itself
	shown   string
	rel     string // from the root, with slashes
}

// stat looks at a file without opening it.
func stat(path, name string) (entry, error) {
	st, err := sys.Lstat(path)
	if err != nil {
		return entry{}, err
	}
	return entry{
		File: results.File{
			Name: name, Size: st.Size, Allocated: st.Allocated, Device: st.Device, Inode: st.Inode,
			Modified: st.Modified, Changed: st.Changed,
		},
		links: st.Links, regular: st.Mode.IsRegular(),
	}, nil
}

func (e entry) inode() sys.ID { return sys.ID{Device: e.Device, Inode: e.Inode} }

// files passes on the files of a folder in batches, the named ones first, and each name to note. A folder can have
// millions.
func (r *search) files(ctx context.Context, f *folder, note func(name string), use func(list []entry) error) error {
	if f.context && !slices.ContainsFunc(f.only, func(e entry) bool { return e.regular }) {
		return use(f.only) // nothing belongs to a device or a pipe
	}
	list, own := slices.Clone(f.only), map[string]bool{}
	for _, e := range f.only {
		own[e.Name] = true
	}
	var failed, broken error // of a file that could not be looked at, and of use
	err := eachEntry(ctx, f.path, func(d fs.DirEntry) error {
		note(d.Name())
		if !d.Type().IsRegular() || own[d.Name()] {
			return nil
		}
		e, err := stat(filepath.Join(f.path, d.Name()), d.Name())
		switch {
		case errors.Is(err, fs.ErrNotExist) || (err == nil && !e.regular):
			return nil // gone meanwhile, or another thing by now
		case err != nil:
			failed = err // the folder may be listed but not entered: reported once
			return nil   //nolint:nilerr // the next file may be another case
		}
		e.shown, e.rel = join(f.shown, d.Name()), path.Join(f.rel, d.Name())
		if list = append(list, e); len(list) == batch {
			broken = use(list)
			list = list[:0]
		}
		return broken
	})
	if broken != nil {
		return broken
	}
	for _, err := range []error{err, failed} {
		if err != nil && ctx.Err() == nil && !f.reported {
			f.reported = true
			r.unreadable(f.shown, err)
		}
	}
	if ctx.Err() != nil || len(list) == 0 {
		return ctx.Err()
	}
	return use(list)
}
