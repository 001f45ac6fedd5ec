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

// folder is a folder with files to inspect.
type folder struct {
	path     string // absolute, no links
	shown    string // as the user would write it
	rel      string // from the root, with slashes; "" for the root itself
	only     []entry
	context  bool // only files named by the user have rows; the others may be their parts or parents
	turn     int  // its place in the walk
	reported bool // it was reported as unreadable
	met      bool // below a root, where its named files are inspected
}

// under returns the subfolder of f with a name.
func (f *folder) under(name string) *folder {
	return &folder{path: filepath.Join(f.path, name), shown: join(f.shown, name), rel: path.Join(f.rel, name)}
}

// join appends a name to a displayed path.
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

// inodes is the set of files and folders seen.
type inodes struct{ seen sync.Map }

// first adds an inode and reports whether it is new.
func (s *inodes) first(id sys.ID) bool {
	_, again := s.seen.LoadOrStore(id, true)
	return !again
}

// resolve resolves the symlinks of a path given by the user, and returns the path and the mode of the file.
func resolve(path string) (string, fs.FileMode, error) {
	if path == "" {
		return "", 0, sys.ErrNotExist // it would mean the working directory
	}
	real, err := gate.RealPath(path)
	if err != nil {
		if _, system := errors.AsType[*fs.PathError](err); system || sys.NotFolder(err) {
			return "", 0, sys.Cause(err)
		}
		return "", 0, sys.ErrLoop // the only error of EvalSymlinks itself
	}
	st, err := os.Lstat(real)
	if err != nil {
		return "", 0, sys.Cause(err)
	}
	return real, st.Mode(), nil
}

// walker visits folders, each once. Its memory grows with the names of the folders on its way, not with their paths.
type walker struct {
	*search
	use     func(f *folder)
	visited inodes
	named   map[sys.ID]*folder // folders of files named by the user, by inode
	turn    int
}

// walk passes the folders below the paths to use, then the folders of named files outside of them. It follows no
// symlinks except the paths given by the user.
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

// give numbers a folder and passes it to use.
func (w *walker) give(f *folder) {
	f.turn = w.turn
	w.turn++
	w.use(f)
}

// below visits a folder and all below it, in name order.
func (w *walker) below(ctx context.Context, f *folder) error {
	for _, name := range w.visit(ctx, f) {
		if err := w.below(ctx, f.under(name)); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// visit passes a folder with files to use, and returns the names of its subfolders.
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
		case d.IsDir() && journal.OfJob(d.Name()): // unfinished output of a job
		case d.IsDir():
			below = append(below, d.Name())
		case d.Type().IsRegular():
			files = true
		case d.Type()&fs.ModeSymlink != 0 &&
			w.wants(f, entry{rel: path.Join(f.rel, d.Name()), shown: join(f.shown, d.Name())}):
			w.count(&w.summary.Links, 1)
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		f.reported = true // the entries found so far count
		w.unreadable(f.shown, err)
	}
	if files && ctx.Err() == nil {
		w.give(f)
	}
	slices.Sort(below)
	return below
}

// roots splits the paths into folders to walk and folders of named files.
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

// addNamed records a file named by the user. It returns the folder of the file if this is the first named file in it.
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

// missing makes a failed row for a path of the user that cannot be found.
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

// batch is the number of directory entries read at once.
const batch = 1024

// eachEntry passes the entries of a folder to use, in directory order, until use returns an error.
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

// turns lets concurrently inspected folders do something in the order of the walk. Each turn must be finished.
type turns struct {
	mu    sync.Mutex
	cond  *sync.Cond
	next  int // the first unfinished turn
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

// finish ends a turn. It may be called again.
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
	named   bool // named by the user
	shown   string
	rel     string // from the root, with slashes
}

// stat returns the metadata of a file without opening it.
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

// files passes the files of a folder to use in batches, named files first, and each name to note. A folder can have
// millions of files.
func (r *search) files(ctx context.Context, f *folder, note func(name string), use func(list []entry) error) error {
	if f.context && !slices.ContainsFunc(f.only, func(e entry) bool { return e.regular }) {
		return use(f.only) // a device or a pipe has no parts
	}
	list, own := slices.Clone(f.only), map[string]bool{}
	for _, e := range f.only {
		own[e.Name] = true
	}
	var failed, broken error // the last error of stat, and the error of use
	err := eachEntry(ctx, f.path, func(d fs.DirEntry) error {
		note(d.Name())
		if !d.Type().IsRegular() || own[d.Name()] {
			return nil
		}
		e, err := stat(filepath.Join(f.path, d.Name()), d.Name())
		switch {
		case errors.Is(err, fs.ErrNotExist) || (err == nil && !e.regular):
			return nil // removed or replaced meanwhile
		case err != nil:
			failed = err // the folder may be listed but not entered: reported once
			return nil   //nolint:nilerr // the next file may be readable
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
