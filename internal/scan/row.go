package scan

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/image/unpack"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/sys"
)

// judge makes the row of one image and hands it over.
func (r *search) judge(ctx context.Context, f *folder, c *contents, x *found) error {
	i, err := r.rowOf(ctx, f, c, x)
	if err != nil {
		return err
	}
	if i == nil { // a doubt that came to nothing
		r.earlier.noImage(x)
		r.count(&r.summary.Skipped, 1)
		r.more(-1)
		return nil
	}
	x.silent = i.State == results.Failed && len(i.Disks) == 0 && !x.bundle
	if r.Replace && i.Priority != nil {
		i.NoExchange = c.noExchange(f, x, i)
	}
	readAll(i, x.shown)
	return r.row(i)
}

func (r *search) rowOf(ctx context.Context, f *folder, c *contents, x *found) (*results.Image, error) {
	path := filepath.Join(f.path, x.Name)
	switch lone := len(c.owners[x.Name]) == 0; {
	case x.failed != nil:
		return r.complete(path, x, x.failed, "")
	case x.id.Kind == image.Companion:
		return r.complete(path, x, x.companion(x.id.Format), "")
	case x.isExtent() && lone:
		return r.complete(path, x, x.orphan(), "")
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
	if kind := image.CompanionKind(x.Name); kind != "" && namedCompanion(i) {
		aside = x.companion(kind)
	} else if (j.Packed || i.Format == unpack.Tar) && i.State == results.Failed && !fleeting(i) {
		aside = x.unjudged(i)
	}
	if aside != nil {
		aside.Read = read
		return r.complete(path, x, aside, key)
	}
	i.SetPath(x.shown)
	if i.Format == "" { // it could not be opened
		i.Format = x.id.Format
	}
	if len(i.Files) == 0 {
		i.Files, i.Stored = []results.File{x.File}, x.Allocated
	}
	i.Findings = append(i.Findings, c.borrowed(x)...)
	i.Read = read
	i.Files[0].Name = x.Name // its bytes, which JSON may not have kept
	i.Settle(results.BoundaryFlags(r.Boundary))
	return r.complete(path, x, i, key)
}

// doubted reports whether a file has a row only if an image is found in it.
func (x *found) doubted() bool {
	if x.named || image.Named(x.Name, x.Size) {
		return false
	}
	return x.id.Kind == image.Bare && !x.id.Table || x.id.Kind == image.Packed && !image.NamedPacked(x.Name) ||
		x.id.Kind == image.Pack && ova.KindOf(x.Name) == "" // a tar archive may be anything
}

// namedCompanion reports whether an image has nothing that is known, and the name and place of a companion.
func namedCompanion(i *results.Image) bool {
	return slices.ContainsFunc(i.Disks, func(d results.Disk) bool {
		return d.Content == align.UnknownContent && saysCompanion(d)
	})
}

func saysCompanion(d results.Disk) bool {
	return slices.ContainsFunc(d.Findings, func(f align.Finding) bool { return f.Code == image.CodeCompanion })
}

// fleeting reports whether the error of a packed image is not one of its bytes.
func fleeting(i *results.Image) bool { return slices.Contains([]string{"io", "changed"}, i.Error.Code) }

// noExchange returns what trueup replace would refuse of an image that can be copied; empty if nothing is known
// against it. The files are looked at from outside only: align looks again.
func (c *contents) noExchange(f *folder, x *found, i *results.Image) string {
	_, open := c.journals[x.Name]
	_, kept := c.journals[exchange.DiskOf(x.Name)]
	shown, err := sys.Lstat(x.shown)
	switch {
	case !x.regular:
		return "it is no regular file, and has no name to exchange"
	case err != nil || !shown.Mode.IsRegular():
		return "its path is a link"
	case kept:
		return fmt.Sprintf("it is the original that is kept of %q", exchange.DiskOf(x.Name))
	case open:
		return fmt.Sprintf("an earlier run has left %q", journal.PathOf(x.Name))
	case len(i.Parents) > 0:
		return "it is a snapshot"
	case x.id.Kind == image.Pack && ova.KindOf(x.Name) == "":
		return "it is a package, and its name does not end in .ova or .ovf"
	}
	for _, file := range i.Files {
		if filepath.IsAbs(file.Name) {
			return fmt.Sprintf("its file %q is in another folder", file.Name)
		}
		if st, err := stat(filepath.Join(f.path, file.Name), file.Name); err == nil && st.links > 1 {
			return fmt.Sprintf("%q has %d hard links", file.Name, st.links)
		}
		if orig := exchange.OriginalOf(x.Name, file.Name); exists(filepath.Join(f.path, orig)) {
			return fmt.Sprintf("the original would be kept as %q, and that exists", orig)
		}
		if long := exchange.TooLong(x.Name, file.Name); long != "" {
			return fmt.Sprintf("its names are too long: %d bytes are needed for a while, and %d are allowed", len(long),
				journal.MaxName)
		}
		for _, o := range c.owners[file.Name] {
			if o != x {
				return fmt.Sprintf("%q names files of it too", o.Name)
			}
		}
	}
	return ""
}

// ask has a worker judge an image. Nil: a doubt came to nothing.
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
	x.fail(r.pool.judge.Classify(err))
	return x.failed, nil
}

// besideKey returns a hash of the files around an image that its row depends on; empty if there are none. work are
// those that runs have left open.
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

// beside returns the files beside x that concern it.
func (r *search) beside(c *contents, x *found) *image.Beside {
	if !x.regular {
		return nil
	}
	return &image.Beside{Locks: c.beside.Locks(c.family(x)), Children: c.snapshots(x)}
}

// takeOver returns the row of the earlier scan, without the fields of a single run.
func (r *search) takeOver(path string, x *found) *results.Image {
	i := x.known
	i.SetPath(x.shown)
	i.Files[0].Name = x.Name
	i.FileSystem = r.fileSystem(path, x)
	i.Settle(results.BoundaryFlags(r.Boundary))
	i.Change, i.Read, i.Accepted, i.Joined = results.Same, 0, nil, nil
	return i
}

// fileSystem returns the UUID of the file system of a file. It is asked for once for each device.
func (r *search) fileSystem(path string, x *found) string {
	if !x.regular {
		return ""
	}
	if id, ok := r.systems.Load(x.Device); ok {
		return id.(string)
	}
	folder := filepath.Dir(path)
	if st, err := stat(folder, ""); err != nil || st.Device != x.Device {
		return "" // the file is mounted there
	}
	id := sys.FileSystem(folder)
	r.systems.Store(x.Device, id)
	return id
}

// complete adds to a new row what only this process knows.
func (r *search) complete(path string, x *found, i *results.Image, beside string) (*results.Image, error) {
	i.FileSystem = r.fileSystem(path, x)
	var err error
	i.Reuse, err = r.reusable(x, i, beside)
	return i, err
}

// unjudged returns the row of a packed file in place of one that failed.
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

// readAll has the notes on a packed image name the command that reads all of it.
func readAll(i *results.Image, shown string) {
	remedy := "to read all of it: trueup inspect --spool DIR " + shell.Quote(shown)
	for d := range i.Disks {
		remedied(i.Disks[d].Findings, "head", remedy)
	}
	if i.State == results.Packed && unpack.Reads(i.Format) {
		remedied(i.Findings, "packed", remedy)
	}
}

// remedied gives the findings of a code another remedy.
func remedied(all []align.Finding, code, remedy string) {
	for f := range all {
		if all[f].Code == code {
			all[f].Remedy = remedy
		}
	}
}

// companion returns the row of a file that belongs to a disk whose row does not cover it.
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
