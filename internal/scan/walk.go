package scan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/library"
)

// entry is a file of a folder.
type entry struct {
	library.File

	links   uint64
	regular bool
	named   bool // the user named it itself
	shown   string
	rel     string // from the root
}

// folder is one folder with files to look at. Its files come in batches: a folder can have millions.
type folder struct {
	path    string // absolute, no links
	shown   string // as the user would write it
	rel     string // from the root; "" for the root itself
	only    []entry
	context bool // only files that the user named have rows; the others say what belongs to them
}

// inodes are files and folders that were seen.
type inodes struct {
	mu   sync.Mutex
	seen map[[2]uint64]bool
}

// first tells whether an inode was not seen before.
func (s *inodes) first(device, inode uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = map[[2]uint64]bool{}
	}
	k := [2]uint64{device, inode}
	if s.seen[k] {
		return false
	}
	s.seen[k] = true
	return true
}

// resolve follows the links of a path that the user wrote, and tells what it leads to.
func resolve(path string) (string, fs.FileMode, error) {
	real, err := filepath.EvalSymlinks(path)
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return "", 0, plain(err)
	}
	st, err := os.Lstat(real)
	if err != nil {
		return "", 0, plain(err)
	}
	return real, st.Mode(), nil
}

// plain drops the path from an error of a system call: the report has it.
func plain(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}

// walk finds the folders below the paths, those of files that are named themselves first, and gives each to use. Links are not
// followed, but those that the user's own paths are.
func (r *run) walk(ctx context.Context, use func(f *folder)) error {
	named, roots := r.roots()
	for _, f := range named {
		if err := ctx.Err(); err != nil {
			return err
		}
		use(f)
	}
	var visited inodes
	for len(roots) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		f := roots[len(roots)-1]
		roots = roots[:len(roots)-1]
		below, files, err := r.list(f, &visited)
		if err != nil {
			r.unreadable(f.shown, err)
			continue
		}
		roots = append(roots, below...)
		if files {
			use(f)
		}
	}
	return nil
}

// roots divides the paths into folders to walk and folders of files that are named themselves.
func (r *run) roots() (named, roots []*folder) {
	by := map[string]*folder{}
	for _, p := range r.Paths {
		real, mode, err := resolve(p)
		if err != nil {
			r.missing(p, err)
			continue
		}
		if mode.IsDir() {
			roots = append(roots, &folder{path: real, shown: p})
			continue
		}
		dir := filepath.Dir(real)
		f := by[dir]
		if f == nil {
			f = &folder{path: dir, shown: filepath.Dir(p), context: true}
			by[dir] = f
			named = append(named, f)
		}
		e, err := stat(real, filepath.Base(real))
		if err != nil {
			r.missing(p, err)
			continue
		}
		e.named, e.shown, e.rel = true, p, filepath.Base(p)
		if r.seen.first(e.Device, e.Inode) {
			f.only = append(f.only, e)
		}
	}
	slices.Reverse(roots) // they are taken from the end
	return named, roots
}

// missing makes a row of a path that leads nowhere: the user named it.
func (r *run) missing(path string, err error) {
	i := library.NewImage(path)
	e := r.classify(fmt.Errorf("%w; check the path", err))
	i.Fail(e.Code, e.Message)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.more(1)
	_ = r.Row(i) // the next row meets the same error
}

// stat looks at a file without opening it.
func stat(path, name string) (entry, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return entry{}, err
	}
	return entryOf(&st, name), nil
}

func entryOf(st *unix.Stat_t, name string) entry {
	return entry{
		File: library.File{
			Name: name, Size: st.Size, Allocated: st.Blocks * 512, Device: st.Dev, Inode: st.Ino,
			Modified: st.Mtim.Nano(), Changed: st.Ctim.Nano(),
		},
		links: uint64(st.Nlink), regular: st.Mode&unix.S_IFMT == unix.S_IFREG, //nolint:unconvert // the type differs between machines
	}
}

// batch is how many names of a folder are taken at once.
const batch = 1024

// list finds the folders in a folder, and tells whether it has files.
func (r *run) list(f *folder, visited *inodes) (below []*folder, files bool, err error) {
	e, err := stat(f.path, "")
	if err != nil {
		return nil, false, err
	}
	if !visited.first(e.Device, e.Inode) {
		return nil, false, nil // reached by another path, or a bind mount into itself
	}
	err = eachEntry(f.path, func(d fs.DirEntry) {
		switch {
		case d.IsDir():
			below = append(below, &folder{path: filepath.Join(f.path, d.Name()), shown: join(f.shown, d.Name()), rel: filepath.Join(f.rel, d.Name())})
		case d.Type().IsRegular():
			files = true
		}
	})
	slices.SortFunc(below, func(a, b *folder) int { return strings.Compare(b.path, a.path) })
	return below, files, err
}

// join makes a path as the user would write it.
func join(shown, name string) string {
	if shown == "." {
		return name
	}
	return strings.TrimSuffix(shown, "/") + "/" + name
}

// eachEntry gives what a folder holds, in the order of the folder.
func eachEntry(path string, use func(d fs.DirEntry)) error {
	dir, err := os.Open(path)
	if err != nil {
		return plain(err)
	}
	defer dir.Close()
	for {
		list, err := dir.ReadDir(batch)
		for _, d := range list {
			use(d)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return plain(err)
		}
	}
}

// files gives the files of a folder in batches, and notes the names that concern its images.
func (r *run) files(f *folder, beside *image.Folder, use func(list []entry) error) error {
	list := slices.Clone(f.only)
	own := map[string]bool{}
	for _, e := range f.only {
		own[e.Name] = true
	}
	var failed error
	err := eachEntry(f.path, func(d fs.DirEntry) {
		beside.Add(d.Name())
		if failed != nil || !d.Type().IsRegular() || own[d.Name()] || (f.context && !image.MayName(d.Name())) {
			return
		}
		e, err := stat(filepath.Join(f.path, d.Name()), d.Name())
		if err != nil {
			return // gone meanwhile
		}
		e.shown, e.rel = join(f.shown, d.Name()), filepath.Join(f.rel, d.Name())
		if list = append(list, e); len(list) >= batch {
			failed, list = use(list), list[:0]
		}
	})
	if err = errors.Join(err, failed); err != nil || len(list) == 0 {
		return err
	}
	return use(list)
}
