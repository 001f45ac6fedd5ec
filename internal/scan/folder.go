package scan

import (
	"context"
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/trueup/trueup/internal/catalog"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/library"
)

// found is a file that may have a row.
type found struct {
	entry
	id     image.Identity
	known  *catalog.Known // from an earlier run, as long as it holds
	failed *library.Image
}

// contents is what a folder holds that matters.
type contents struct {
	mu     sync.Mutex
	files  map[string]*found
	beside image.Folder
	// owners are the files that name a file as a part of theirs, and children those that name it as their parent.
	owners, children map[string][]string
	alike            map[string]string // names by their lower-case form
}

// folder judges the images of one folder. All of its files are identified first: which of them are parts of an image is known
// only then.
func (r *run) folder(ctx context.Context, f *folder) error {
	c := &contents{files: map[string]*found{}, owners: map[string][]string{}, children: map[string][]string{}}
	err := r.files(f, &c.beside, func(list []entry) error { return r.identify(ctx, f, c, list) })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		r.unreadable(f.shown, err)
	}
	c.relate()
	var rows []*found
	for _, x := range c.files {
		switch {
		case !c.isImage(x):
			if err := r.keepPart(f, x); err != nil {
				return err
			}
		case r.wants(f, x):
			rows = append(rows, x)
		}
	}
	r.more(len(rows))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(max(1, r.Jobs))
	for _, x := range rows {
		if gctx.Err() != nil {
			break
		}
		g.Go(func() error { return r.judge(gctx, f, c, x) })
	}
	return g.Wait()
}

// wants tells whether a file may have a row at all.
func (r *run) wants(f *folder, x *found) bool {
	return (x.named || !f.context) && (r.Wanted == nil || r.Wanted(x.rel, x.shown))
}

// identify tells what the files of a batch are, and keeps those that matter.
func (r *run) identify(ctx context.Context, f *folder, c *contents, list []entry) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(max(1, r.Jobs))
	for _, e := range list {
		if gctx.Err() != nil {
			break
		}
		if !r.once(e) {
			continue
		}
		g.Go(func() error {
			x, err := r.identifyOne(gctx, f, e)
			if err != nil || x == nil {
				return err
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.files[e.Name] = x
			return nil
		})
	}
	return g.Wait()
}

// once tells whether a file is to be looked at: not one that was seen under another name, and not what the run itself writes.
func (r *run) once(e entry) bool {
	if r.Spare != nil && r.Spare(e.Device, e.Inode) {
		return false
	}
	return e.named || e.links < 2 || r.seen.first(e.Device, e.Inode)
}

// identifyOne tells what a file is, from what is known of it or by a worker. Nil: it does not matter.
func (r *run) identifyOne(ctx context.Context, f *folder, e entry) (*found, error) {
	x := &found{entry: e}
	path := filepath.Join(f.path, e.Name)
	if !e.regular {
		x.id.Kind = image.Disk // a device: opening it says what it is
		return x, nil
	}
	if known, err := r.lookup(path, x); known || err != nil {
		m := r.matters(f, x)
		if m == nil && err == nil {
			_, err = r.Store.Reuse(path, *x.known) // what no run asks for is forgotten
		}
		return m, err
	}
	if e.Size > 0 {
		a, err := r.Pool.Do(ctx, Request{Path: []byte(path)})
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil: // the worker died of it: that is worth a row
			x.failed = library.NewImage(e.shown)
			failWith(x.failed, r.classify(err))
			return x, nil
		case a.Error != nil && (e.named || image.Named(e.Name, e.Size)):
			x.failed = library.NewImage(e.shown)
			failWith(x.failed, *a.Error)
			return x, nil
		case a.Error != nil:
			r.note(e.shown, a)
			return nil, nil
		}
		x.id = a.Identity
	}
	m := r.matters(f, x)
	if m == nil && r.Store != nil {
		return nil, r.keep(path, x, nil, "")
	}
	return m, nil
}

// note reports a file that cannot be read and that nobody would miss as an image.
func (r *run) note(shown string, a Answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Unreadable(library.Unreadable{Path: shown, Error: *a.Error})
}

// matters drops a file that is no image, and counts it.
func (r *run) matters(f *folder, x *found) *found {
	bare := x.id.Kind == image.Bare && image.MayBeBare(x.Size)
	if x.named || bare || image.Named(x.Name, x.Size) || (x.id.Kind != image.Other && x.id.Kind != image.Bare && x.id.Kind != image.Medium) {
		return x
	}
	if !f.context {
		r.skipped.Add(1)
	}
	return nil
}

// lookup asks the store about a file.
func (r *run) lookup(path string, x *found) (bool, error) {
	if r.Store == nil {
		return false, nil
	}
	k, ok, err := r.Store.Lookup(path, x.File)
	if err != nil || !ok {
		return false, err
	}
	var id image.Identity
	if json.Unmarshal(k.Ident, &id) != nil || checkIdentity(id) != nil || (k.Image != nil && k.Image.Check() != nil) {
		return false, nil // it is read again: the catalogue may be that of a stranger
	}
	x.id = id
	x.known = &k
	return true, nil
}

// keep gives the store a result.
func (r *run) keep(path string, x *found, i *library.Image, beside string) error {
	ident, err := json.Marshal(x.id)
	if err != nil {
		return err
	}
	change, err := r.Store.Save(path, x.File, catalog.Known{Ident: ident, Image: i, Beside: beside})
	if i != nil {
		i.Change = change
	}
	return err
}

// asPart is what a file depends on that is a part of an image: when its image is gone, what is known of it counts no more.
const asPart = "part"

// keepPart gives the store what a file is that has no row of its own, so that the next run need not open it.
func (r *run) keepPart(f *folder, x *found) error {
	switch {
	case r.Store == nil || !x.regular || x.failed != nil:
		return nil
	case x.known != nil && x.known.Image == nil && x.known.Beside == asPart:
		_, err := r.Store.Reuse(filepath.Join(f.path, x.Name), *x.known)
		return err
	}
	return r.keep(filepath.Join(f.path, x.Name), x, nil, asPart)
}

// relate finds out which files belong to which.
func (c *contents) relate() {
	for name, x := range c.files {
		for _, part := range x.id.Extents {
			if p := c.files[part]; p != nil && part != name && x.takes(p) {
				c.owners[part] = append(c.owners[part], name)
			}
		}
		if x.id.Kind != image.Disk {
			continue
		}
		for _, parent := range x.id.Parents {
			if at, ok := c.find(parent); ok && at != name {
				c.children[at] = append(c.children[at], name)
			}
		}
	}
}

// takes tells whether a file that x names can be a part of it. An image with a format of its own is never hidden by a descriptor that
// names it, only by the package around it.
func (x *found) takes(part *found) bool {
	switch {
	case part.failed != nil:
		return false
	case x.id.Kind == image.Pack:
		return part.id.Kind != image.Pack
	}
	return x.id.Kind == image.Disk && (part.id.Kind == image.Bare || part.id.Kind == image.Extent)
}

// find looks for a file by its name, and by its name in another case: what wrote it may not tell them apart.
func (c *contents) find(name string) (string, bool) {
	if c.files[name] != nil {
		return name, true
	}
	if c.alike == nil {
		c.alike = map[string]string{}
		for _, other := range slices.Sorted(maps.Keys(c.files)) {
			c.alike[strings.ToLower(other)] = other
		}
	}
	other, ok := c.alike[strings.ToLower(name)]
	return other, ok
}

// isImage tells whether a file has a row of its own: it is no part of an image that has one.
func (c *contents) isImage(x *found) bool {
	if x.id.Kind == image.Medium && !x.named {
		return false
	}
	for _, owner := range c.owners[x.Name] {
		if o := c.files[owner]; !x.named || o.named {
			return false
		}
	}
	return true
}

// isOrphan tells whether a file is an extent of nothing.
func (x *found) isOrphan() bool {
	return x.id.Kind == image.Extent || (x.id.Kind == image.Bare && image.IsFlatName(x.Name))
}

// snapshots are the images of the folder that complete x: they name it, or a part of it.
func (c *contents) snapshots(x *found) (out []string) {
	for _, name := range append([]string{x.Name}, x.id.Extents...) {
		out = append(out, c.children[name]...)
	}
	return out
}
