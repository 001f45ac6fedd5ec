package scan

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
)

// found is a file that may have a row.
type found struct {
	entry
	id     image.Identity
	read   int64          // bytes, to identify it
	known  *results.Image // the row of the earlier scan, if the file has not changed since
	failed *results.Image
	wanted bool // it may have a row
	second bool // another link to the same file stands for it
	rowed  bool // it has a row
	silent bool // its row failed, and does not cover its parts
	bundle bool // it describes a folder, and its row covers that
	chunk  bool // a part of a file that an OVF names
}

// folder judges the images of one folder. All of its files are identified first: which of them are parts of an image is
// known only then.
func (r *search) folder(ctx context.Context, f *folder) error {
	defer r.turns.finish(f.turn)
	c := newContents()
	identify := func(list []entry) error { return r.identify(ctx, f, c, list) }
	if err := r.files(ctx, f, c.beside.Add, identify); err != nil {
		return err
	}
	c.relate()
	r.claim(f, c)
	rows := r.shared(f, c, c.images())
	r.more(len(rows))
	r.announce()
	for len(rows) > 0 {
		if err := r.judgeAll(ctx, f, c, rows); err != nil {
			return err
		}
		// An image that cannot be judged hides none of its parts.
		rows = c.images()
		r.more(len(rows))
	}
	for _, x := range c.sorted() {
		if !x.rowed && c.hidden(x) {
			r.earlier.noImage(x)
		}
	}
	return nil
}

// claim finds which files were seen by another name. Of the links of a file the first in the order of the walk counts,
// whichever folder is ready first; in a folder a part of an image before an image.
func (r *search) claim(f *folder, c *contents) {
	linked := slices.DeleteFunc(c.sorted(), func(x *found) bool { return x.links < 2 || !x.regular || !x.wanted })
	if len(linked) > 0 {
		r.turns.wait(f.turn)
	}
	for _, parts := range []bool{true, false} {
		for _, x := range linked {
			if parts == (len(c.owners[x.Name]) > 0) && !x.named { // those that were named have been claimed
				x.second = !r.seen.first(x.inode())
			}
		}
	}
	r.turns.finish(f.turn)
}

func (r *search) judgeAll(ctx context.Context, f *folder, c *contents, rows []*found) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(max(1, r.Jobs))
	for _, x := range rows {
		if gctx.Err() != nil {
			break
		}
		g.Go(func() error { return r.judge(gctx, f, c, x) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// wants reports whether a file may have a row at all.
func (r *search) wants(f *folder, e entry) bool {
	return e.named || (!f.context && (r.Wanted == nil || r.Wanted(e.rel, e.shown)))
}

// identify finds the kinds of the files of a batch, and keeps those that matter.
func (r *search) identify(ctx context.Context, f *folder, c *contents, list []entry) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(max(1, r.Jobs))
	for _, e := range list {
		if gctx.Err() != nil {
			break
		}
		if r.spared[e.inode()] {
			continue
		}
		if !e.named && journal.Temporary(e.Name, e.Size) { // it is no image yet, or none any more
			if !f.context {
				r.left(e.shown)
			}
			continue
		}
		c.open(e)
		g.Go(func() error {
			x, err := r.identifyOne(gctx, f, e)
			if err == nil && x != nil && !c.add(x) {
				x.fail(r.pool.judge.Classify(fmt.Errorf("the images of its folder name other files: %w of %d names; move some to "+
					"another folder", ondisk.ErrLimit, maxFolderNames)))
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// identifyOne identifies a file, by its row of the earlier scan or by a worker. It returns nil if the file does not
// matter.
func (r *search) identifyOne(ctx context.Context, f *folder, e entry) (*found, error) {
	x := &found{entry: e, wanted: r.wants(f, e)}
	path := filepath.Join(f.path, e.Name)
	if !e.regular {
		x.id.Kind = image.Disk // a device: it is identified when it is opened
		return x, nil
	}
	known, id, err := r.earlier.known(x)
	switch {
	case err != nil:
		return nil, err
	case known != nil:
		x.known, x.id = known, *id
	case e.Size > 0:
		a, err := r.pool.do(ctx, Request{Job: Job{Path: path}})
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil: // the worker died of it: that is worth a row
			x.fail(r.pool.judge.Classify(err))
			return x, nil
		case a.Error != nil:
			return r.unidentified(f, x, a), nil
		}
		x.id, x.read = a.Identity, a.Identity.Read
		x.id.Read = 0 // it is not read again to identify it
	}
	m := r.matters(f, x)
	if m == nil {
		r.earlier.noImage(x)
	}
	return m, nil
}

// unidentified makes a row of an unreadable file that has the name of an image. Any other is reported as unreadable.
func (r *search) unidentified(f *folder, x *found, a Answer) *found {
	switch {
	case x.named || image.Named(x.Name, x.Size):
		x.fail(*a.Error)
		return x
	case x.wanted && exists(filepath.Join(f.path, x.Name)):
		r.report(results.Unreadable{Path: x.shown, Error: *a.Error})
	}
	return nil
}

// exists reports whether a file was not removed meanwhile.
func exists(path string) bool {
	_, err := stat(path, "")
	return err == nil
}

// fail makes the row of a file that could not be read. The next run tries again.
func (x *found) fail(e report.Error) {
	x.failed = results.NewImage(x.shown)
	x.failed.Format, x.failed.Stored, x.failed.Files = x.id.Format, x.Allocated, []results.File{x.File}
	x.failed.Fail(e.Code, e.Message)
	x.failed.Fleeting = true
}

// matters drops a file that is no image, and counts it.
func (r *search) matters(f *folder, x *found) *found {
	switch {
	case x.named:
		return x
	case x.id.Kind == image.Medium: // whatever its name is
	case x.id.Kind == image.Packed && x.doubted() && !archive(x):
	case x.id.Kind == image.Companion && !image.Named(x.Name, x.Size):
	case x.id.Kind == image.Bare && strings.HasSuffix(x.Name, journal.Suffix): // a journal can be as large as a disk
	case x.id.MayBeDisk(x.Size), image.Named(x.Name, x.Size), image.NamedEmpty(x.Name, x.Size):
		return x
	case x.id.Kind != image.Other && x.id.Kind != image.Bare:
		return x
	}
	if !f.context {
		r.count(&r.summary.Skipped, 1)
	}
	return nil
}

// tarNames are extensions of compressed tar archives.
var tarNames = regexp.MustCompile(`(?i)\.(tar\.(gz|xz|zst|bz2)|tgz|txz|tzst|tbz2?)$`)

// archive reports whether a packed file may be an archive, by its content or by its name.
func archive(x *found) bool { return x.id.Format == "zip" || tarNames.MatchString(x.Name) }

// bare reports whether a file has no format. An empty one is not opened to see that.
func (x *found) bare() bool { return x.id.Kind == image.Bare || x.Size == 0 }

// isExtent reports whether a file has no meaning alone.
func (x *found) isExtent() bool {
	return x.id.Kind == image.Extent || x.id.Kind == image.Companion ||
		(x.bare() && image.IsFlatName(x.Name))
}

// takes reports whether a file that x names can be a part of it. An image with a format of its own is never hidden by a
// descriptor that names it, only by the package around it.
func (x *found) takes(part *found) bool {
	switch {
	case part.failed != nil || part == x:
		return false
	case x.id.Kind == image.Pack:
		return part.id.Kind != image.Pack
	}
	return x.id.Kind == image.Disk && (part.isExtent() || (part.bare() && x.covers(part)))
}

// covers reports whether a file without a header is an extent of x by its name, or all of it is claimed: a line about
// the first sectors of a disk must not hide it.
func (x *found) covers(part *found) bool {
	const sector = 512
	return image.IsFlatName(part.Name) || x.id.Claimed(part.Name) >= part.Size-part.Size%sector
}

// alike returns a key that names share if some systems take them for equal.
func alike(name string) string { return strings.ToLower(name) }
