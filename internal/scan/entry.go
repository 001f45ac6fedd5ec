package scan

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"path/filepath"
	"slices"

	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/sys"
)

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

// files passes on the files of a folder in batches, the named ones first, and each name to note. A folder can have
// millions.
func (r *search) files(ctx context.Context, f *folder, note func(name string), use func(list []entry) error) error {
	if f.context && !slices.ContainsFunc(f.only, func(e entry) bool { return e.regular }) {
		return use(f.only) // nothing belongs to a device or a pipe
	}
	l := &listing{folder: f, list: slices.Clone(f.only), own: map[string]bool{}, use: use}
	for _, e := range f.only {
		l.own[e.Name] = true
	}
	err := eachEntry(ctx, f.path, func(d fs.DirEntry) error {
		note(d.Name())
		return l.add(d)
	})
	if l.broken != nil {
		return l.broken
	}
	for _, err := range []error{err, l.failed} {
		if err != nil && ctx.Err() == nil && !f.told {
			f.told = true
			r.unreadable(f.shown, err)
		}
	}
	if ctx.Err() != nil || len(l.list) == 0 {
		return ctx.Err()
	}
	return use(l.list)
}

// listing is a folder while its files are listed.
type listing struct {
	*folder
	list   []entry
	own    map[string]bool // files that were named, which come anyway
	use    func(list []entry) error
	broken error // of use
	failed error // of a file that could not be looked at
}

func (l *listing) add(d fs.DirEntry) error {
	if !d.Type().IsRegular() || l.own[d.Name()] {
		return nil
	}
	e, err := stat(filepath.Join(l.path, d.Name()), d.Name())
	switch {
	case errors.Is(err, fs.ErrNotExist) || (err == nil && !e.regular):
		return nil // gone meanwhile, or another thing by now
	case err != nil:
		l.failed = err // the folder may be listed but not entered: reported once
		return nil     //nolint:nilerr // the next file may be another case
	}
	e.shown, e.rel = join(l.shown, d.Name()), path.Join(l.rel, d.Name())
	if l.list = append(l.list, e); len(l.list) < batch {
		return nil
	}
	list := l.list
	l.list = l.list[:0]
	l.broken = l.use(list)
	return l.broken
}
