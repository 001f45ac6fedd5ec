package scan

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/image/unpack"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/sys"
)

// found is a file that may have a row.
type found struct {
	entry
	id     image.Identity
	read   int64          // bytes read to identify it
	known  *results.Image // the row of the earlier scan, if the file has not changed since
	failed *results.Image
	wanted bool // it may have a row
	second bool // another hard link to the same file has the row
	rowed  bool // it has a row
	silent bool // its row failed, and does not cover its parts
	bundle bool // it is a descriptor whose row covers its folder
	chunk  bool // a chunk of a file that an OVF references
}

// folder judges the images of one folder. It identifies all files first, to find out which of them are parts of an
// image.
func (r *search) folder(ctx context.Context, f *folder) error {
	defer r.turns.finish(f.turn)
	c := newContents()
	identify := func(list []entry) error { return r.identify(ctx, f, c, list) }
	if err := r.files(ctx, f, c.beside.Add, identify); err != nil {
		return err
	}
	c.relate()
	r.claim(f, c)
	all := c.images()
	rows := r.shared(f, c, all)
	r.count(&r.summary.Others, len(all)-len(rows))
	r.more(len(rows))
	r.announce()
	for len(rows) > 0 {
		judge := func(ctx context.Context, x *found) error { return r.judge(ctx, f, c, x) }
		if err := atOnce(ctx, r.pool.jobs, rows, judge); err != nil {
			return err
		}
		// An image that cannot be judged hides none of its parts.
		rows = r.shared(f, c, c.images())
		r.more(len(rows))
	}
	for _, x := range c.sorted() {
		if !x.rowed && c.hidden(x) {
			r.earlier.noImage(x)
		}
	}
	return nil
}

// claim finds hard links to files that have a row under another name. The first link in the order of the walk has the
// row, regardless of which folder is ready first. Within a folder, parts of an image come before images.
func (r *search) claim(f *folder, c *contents) {
	linked := slices.DeleteFunc(c.sorted(), func(x *found) bool { return x.links < 2 || !x.regular || !x.wanted })
	if len(linked) > 0 {
		r.turns.wait(f.turn)
	}
	for _, parts := range []bool{true, false} {
		for _, x := range linked {
			if parts == (len(c.owners[x.Name]) > 0) && !x.named { // addNamed has claimed the named files
				x.second = !r.seen.first(x.inode())
			}
		}
	}
	r.turns.finish(f.turn)
}

// atOnce calls do for each item of a list, for at most jobs items concurrently, until an error or the end of ctx.
func atOnce[T any](ctx context.Context, jobs int, list []T, do func(ctx context.Context, one T) error) error {
	g := newGroup(ctx, max(1, jobs))
	for _, one := range list {
		if g.ctx.Err() != nil {
			break
		}
		g.Go(func() error { return do(g.ctx, one) })
	}
	return g.wait()
}

// group runs functions concurrently until the first error.
type group struct {
	ctx    context.Context //nolint:containedctx // of the functions, which the first error ends
	end    context.CancelCauseFunc
	places chan struct{} // its capacity limits the concurrent functions
	all    sync.WaitGroup
}

func newGroup(ctx context.Context, most int) *group {
	g := &group{places: make(chan struct{}, most)}
	g.ctx, g.end = context.WithCancelCause(ctx)
	return g
}

// Go starts a function as soon as a place is free.
func (g *group) Go(do func() error) {
	g.places <- struct{}{}
	g.all.Go(func() {
		defer func() { <-g.places }()
		if err := do(); err != nil {
			g.end(err)
		}
	})
}

// wait waits for all functions and returns the first error, which may be of the context.
func (g *group) wait() error {
	g.all.Wait()
	defer g.end(nil)
	return context.Cause(g.ctx)
}

// wants reports whether a file may have a row at all.
func (r *search) wants(f *folder, e entry) bool {
	return e.named || (!f.context && (r.Wanted == nil || r.Wanted(e.rel, e.shown)))
}

// identify identifies the files of a batch, and adds the relevant ones to c.
func (r *search) identify(ctx context.Context, f *folder, c *contents, list []entry) error {
	var files []entry
	for _, e := range list {
		switch {
		case r.spared[e.inode()]:
		case e.named || !journal.Temporary(e.Name, e.Size):
			c.addJournal(e)
			files = append(files, e)
		case !f.context: // not yet an image, or no longer one
			r.left(e.shown)
		}
	}
	return atOnce(ctx, r.pool.jobs, files, func(ctx context.Context, e entry) error {
		x, err := r.identifyOne(ctx, f, e)
		if err == nil && x != nil && !c.add(x) {
			x.fail(classify(fmt.Errorf("the images of its folder name other files: %w of %d names; move some to "+
				"another folder", ondisk.ErrLimit, maxFolderNames)))
		}
		return err
	})
}

// identifyOne identifies a file, from its row of the earlier scan or by a worker. It returns nil for an irrelevant
// file.
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
		case err != nil: // the file killed the worker, and gets a row
			x.fail(classify(err))
			return x, nil
		case a.Error != nil:
			return r.unidentified(f, x, a), nil
		}
		x.id, x.read = a.Identity, a.Identity.Read
		x.id.Read = 0 // counted in x.read; these bytes are not read again
	}
	m := r.relevant(f, x)
	if m == nil {
		r.earlier.noImage(x)
	}
	return m, nil
}

// unidentified makes a row for an unreadable file if it is named by the user or has the name of an image. It reports
// any other file as unreadable.
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

// exists reports whether a file still exists.
func exists(path string) bool {
	_, err := stat(path, "")
	return err == nil
}

// fail makes the row of an unreadable file. The next run reads the file again.
func (x *found) fail(e report.Error) {
	x.failed = results.NewImage(x.shown)
	x.failed.Format, x.failed.Stored, x.failed.Files = x.id.Format, x.Allocated, []results.File{x.File}
	x.failed.Fail(e.Code, e.Message)
	x.failed.Fleeting = true
}

// relevant returns x if it is named by the user, or may be an image or a part of one. Otherwise it counts the file as
// skipped and returns nil.
func (r *search) relevant(f *folder, x *found) *found {
	switch {
	case x.named:
		return x
	case x.id.Kind == image.Medium: // regardless of its name
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

// tarNames matches the extensions of compressed tar archives.
var tarNames = ondisk.LazyPattern(`(?i)\.(tar\.(gz|xz|zst|bz2)|tgz|txz|tzst|tbz2?)$`)

// archive reports whether a packed file may be an archive, by its content or by its name.
func archive(x *found) bool { return x.id.Format == "zip" || tarNames().MatchString(x.Name) }

// bare reports whether a file has no known format. An empty file has none, and is not opened to find out.
func (x *found) bare() bool { return x.id.Kind == image.Bare || x.Size == 0 }

// isExtent reports whether a file is only a part of a disk: an extent or a companion.
func (x *found) isExtent() bool {
	return x.id.Kind == image.Extent || x.id.Kind == image.Companion ||
		(x.bare() && image.IsFlatName(x.Name))
}

// canOwn reports whether a file that x names can be a part of x. Only a package hides an image with a format of its
// own; a descriptor that names the image does not.
func (x *found) canOwn(part *found) bool {
	switch {
	case part.failed != nil || part == x:
		return false
	case x.id.Kind == image.Pack:
		return part.id.Kind != image.Pack
	}
	return x.id.Kind == image.Disk && (part.isExtent() || (part.bare() && x.covers(part)))
}

// covers reports whether a file without a header is an extent of x: it has the name of a flat extent, or x claims all
// of its sectors. A descriptor line for only the first sectors of a disk must not hide that disk.
func (x *found) covers(part *found) bool {
	const sector = 512
	return image.IsFlatName(part.Name) || x.id.Claimed(part.Name) >= part.Size-part.Size%sector
}

// judge makes the row of one image and passes it to row.
func (r *search) judge(ctx context.Context, f *folder, c *contents, x *found) error {
	i, err := r.rowOf(ctx, f, c, x)
	if err != nil {
		return err
	}
	if i == nil { // a doubtful file without an image
		r.earlier.noImage(x)
		r.count(&r.summary.Skipped, 1)
		r.more(-1)
		return nil
	}
	x.silent = i.State == results.Failed && len(i.Disks) == 0 && !x.bundle
	i.Copied = copied(i)
	readAll(i, x.shown)
	return r.row(i)
}

func (r *search) rowOf(ctx context.Context, f *folder, c *contents, x *found) (*results.Image, error) {
	path := filepath.Join(f.path, x.Name)
	switch lone := len(c.owners[x.Name]) == 0; {
	case x.failed != nil:
		return r.complete(path, x, x.failed, ""), nil
	case x.id.Kind == image.Companion:
		return r.complete(path, x, x.companion(x.id.Format), ""), nil
	case x.isExtent() && lone:
		return r.complete(path, x, x.orphan(), ""), nil
	}
	j := Job{
		Path: path, Package: x.id.Kind == image.Pack, Packed: x.id.Kind == image.Packed, Doubt: x.doubted(),
		Beside: r.beside(c, x),
	}
	key := besideKey(j.Beside, c.work(x))
	if x.known != nil && x.known.Reuse.Beside == key && unchanged(f.path, x.known) {
		return r.takeOver(path, x), nil
	}
	i, err := r.ask(ctx, x, j)
	if i == nil || err != nil {
		return nil, err
	}
	read := i.Read + c.read(x)
	var aside *results.Image
	if kind, _ := image.CompanionOf(x.Name); kind != "" && namedCompanion(i) {
		aside = x.companion(kind)
	} else if (j.Packed || i.Format == unpack.Tar) && i.State == results.Failed && !fleeting(i) {
		aside = x.unjudged(i)
	}
	if aside != nil {
		aside.Read = read
		return r.complete(path, x, aside, key), nil
	}
	i.SetPath(x.shown)
	if i.Format == "" { // it could not be opened
		i.Format = x.id.Format
	}
	if len(i.Files) == 0 {
		i.Files, i.Stored = []results.File{x.File}, x.Allocated
	}
	i.Read = read
	i.Files[0].Name = x.Name // the exact bytes of the name, which JSON may have changed
	i.Assess(results.BoundaryFlags(r.Boundary))
	return r.complete(path, x, i, key), nil
}

// doubted reports whether a file gets a row only if an image is found in it.
func (x *found) doubted() bool {
	if x.named || image.Named(x.Name, x.Size) {
		return false
	}
	return x.id.Kind == image.Bare && !x.id.Table || x.id.Kind == image.Packed && !image.NamedPacked(x.Name) ||
		x.id.Kind == image.Pack && ova.KindOf(x.Name) == "" // a tar archive may contain anything
}

// namedCompanion reports whether an image has unknown content, and the name and place of a companion.
func namedCompanion(i *results.Image) bool {
	return slices.ContainsFunc(i.Disks, func(d results.Disk) bool {
		return d.Content == align.UnknownContent && hasCompanionFinding(d)
	})
}

func hasCompanionFinding(d results.Disk) bool {
	return slices.ContainsFunc(d.Findings, func(f align.Finding) bool { return f.Code == image.CodeCompanion })
}

// fleeting reports whether the error of a packed image has a cause other than its bytes.
func fleeting(i *results.Image) bool { return slices.Contains([]string{"io", "changed"}, i.Error.Code) }

// copied returns the path of the file that seems to be the aligned copy of an image, else an empty string. A file of
// that name prevents another copy, but only verify proves that it is one. A file older than the image does not count,
// since it lacks later writes.
func copied(i *results.Image) string {
	name := i.CopyName()
	if name == "" {
		return ""
	}
	st, err := sys.Lstat(name)
	older := func(f results.File) bool { return st.Modified < f.Modified }
	if err != nil || !st.Mode.IsRegular() || slices.ContainsFunc(i.Files, older) {
		return ""
	}
	return name
}

// ask sends an image to a worker to be judged. It returns nil for a doubtful file without an image.
func (r *search) ask(ctx context.Context, x *found, j Job) (*results.Image, error) {
	a, err := r.pool.do(ctx, Request{Job: j, Judge: true})
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err == nil && a.Image != nil:
		a.Image.Fleeting = a.Fleeting
		return a.Image, nil
	case err == nil && j.Doubt:
		return nil, nil
	case err == nil:
		err = errors.New("the worker gave no answer; please report it")
	}
	x.fail(classify(err))
	return x.failed, nil
}

// besideKey returns a hash of the locks, children and open journals that the row of an image depends on, or an empty
// string without any. work is the text of the journals.
func besideKey(b *image.Beside, work string) string {
	if b != nil && len(b.Locks)+len(b.Children) > 0 {
		work = fmt.Sprintf("%q %q%s", b.Locks, b.Children, work)
	}
	if work == "" {
		return ""
	}
	key := sumOf(work)
	return hex.EncodeToString(key[:])
}

// beside returns the locks and the snapshots of x in its folder.
func (r *search) beside(c *contents, x *found) *image.Beside {
	if !x.regular {
		return nil
	}
	return &image.Beside{Locks: c.beside.Locks(c.family(x)), Children: c.snapshots(x)}
}

// takeOver returns the row of the earlier scan, with the fields of a single run reset.
func (r *search) takeOver(path string, x *found) *results.Image {
	i := x.known
	i.SetPath(x.shown)
	i.Files[0].Name = x.Name
	i.FileSystem = r.fileSystem(path, x)
	i.Assess(results.BoundaryFlags(r.Boundary))
	i.Change, i.Read, i.Accepted, i.Joined = results.Same, 0, nil, nil
	return i
}

// fileSystem returns the UUID of the file system of a file. It is looked up once per device.
func (r *search) fileSystem(path string, x *found) string {
	if !x.regular {
		return ""
	}
	if id, ok := r.systems.Load(x.Device); ok {
		return id.(string)
	}
	folder := filepath.Dir(path)
	if st, err := stat(folder, ""); err != nil || st.Device != x.Device {
		return "" // the file is a mount point
	}
	id := sys.FileSystem(folder)
	r.systems.Store(x.Device, id)
	return id
}

// complete adds the fields of a new row that only this process can fill: FileSystem and Reuse.
func (r *search) complete(path string, x *found, i *results.Image, beside string) *results.Image {
	i.FileSystem, i.Reuse = r.fileSystem(path, x), r.reusable(x, i, beside)
	return i
}

// unjudged returns a Packed row for a packed file, in place of its failed row.
func (x *found) unjudged(failed *results.Image) *results.Image {
	format, how := cmp.Or(failed.Format, x.id.Format), "compressed"
	if format == unpack.Tar {
		how = "packed"
	}
	return x.aside(results.Packed, format, ondisk.Issue{
		Code: "packed", Effect: ondisk.Warn, Err: ondisk.ErrUnsupported,
		Text:   fmt.Sprintf("it is %s with %s, and not judged: %s", how, format, failed.Error.Message),
		Remedy: x.id.Remedy,
	})
}

// aside returns the row of a file that is not judged.
func (x *found) aside(s results.State, format string, why ondisk.Issue) *results.Image {
	i := results.NewImage(x.shown)
	i.State, i.Format, i.Stored, i.Files = s, format, x.Allocated, []results.File{x.File}
	i.Findings = append(i.Findings, align.FromIssue(why))
	return i
}

// readAll adds the command that reads all of a packed image to its findings, as their remedy.
func readAll(i *results.Image, shown string) {
	remedy := "to read all of it: " + shell.Command("inspect", []string{"--spool", "DIR"}, shown)
	for d := range i.Disks {
		remedied(i.Disks[d].Findings, "head", remedy)
	}
	if i.State == results.Packed && unpack.Reads(i.Format) {
		remedied(i.Findings, "packed", remedy)
	}
}

// remedied replaces the remedy of all findings with a code.
func remedied(all []align.Finding, code, remedy string) {
	for f := range all {
		if all[f].Code == code {
			all[f].Remedy = remedy
		}
	}
}

// companion returns the row of a companion file that is not covered by the row of its disk.
func (x *found) companion(kind string) *results.Image {
	text, remedy := image.CompanionText(kind, x.Name)
	return x.aside(results.Orphan, kind, ondisk.Issue{
		Code: image.CodeCompanion, Effect: ondisk.Note, Text: text, Remedy: remedy,
	})
}

// orphan returns the row of an extent that no image names. Alone it has no verdict, since its place on a disk is
// unknown.
func (x *found) orphan() *results.Image {
	format := x.id.Format
	if x.bare() {
		format = "vmdk"
	}
	return x.aside(results.Orphan, format, ondisk.Issue{
		Code: "orphan", Effect: ondisk.Warn, Err: ondisk.ErrReference,
		Text:   fmt.Sprintf("it is an extent of a VMDK, and no descriptor in its folder names %.256q", x.Name),
		Remedy: "find its descriptor, or remove it when the machine is gone",
	})
}
