package image

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/ondisk"
)

// ErrOutput marks problems with the place where the copy goes: it exists, there is no room, no permission.
var ErrOutput = errors.New("output")

// ErrUsage marks a DEST that can never be right, such as the source itself.
var ErrUsage = errors.New("usage")

// CreateOptions of Create. The zero value makes an image of the source's own format.
type CreateOptions struct {
	Format    string // empty: the source's
	Subformat string // empty: the source's, or the format's default
	Force     bool   // replace DEST
	Seed      []byte // identifiers are derived from it
	// Heads and Sectors are the geometry by which the disk is partitioned, 0 when nothing is known of it.
	Heads, Sectors int
}

// Output is an image under construction. All its files stand beside their final places as .NAME.partial until Publish.
type Output struct {
	Format, Subformat string
	driver.Target

	path   string // of DEST, as typed
	dir    *folder
	base   string
	sector int64 // size of the disk's sectors, bytes
	force  bool
	parts  []*part     // the named file first
	old    []string    // files of the image that is replaced
	mode   fs.FileMode // permissions of the source: the copy has no others
	stale  bool        // a killed run left the partial file of DEST
	// unreadable: DEST exists and is no image that can be opened.
	unreadable bool
	caseless   bool // the folder finds DEST by its name in another case
	manners    manners
	notes      *notes
	room       int64    // see Room
	replace    []string // the extent files among them, removed at the end
	// again opens what was written where that is no file of its own; nil otherwise.
	again func() (*Image, error)
}

// Create starts an image at path of size bytes. src is the image it is a copy of.
func Create(path string, size int64, src *Image, o CreateOptions) (*Output, error) {
	if _, err := (Place{Flag: "DEST", Path: path, Role: Copy}).Settle(); err != nil {
		return nil, err
	}
	out := &Output{path: path, base: filepath.Base(path), force: o.Force, notes: &notes{}}
	var err error
	if out.dir, err = openFolder(filepath.Dir(path)); err != nil {
		return nil, ondisk.In(ErrOutput, "folder of DEST, %s: %w", filepath.Dir(path), err)
	}
	if err := out.start(size, src, o); err != nil {
		return nil, errors.Join(err, out.Discard())
	}
	return out, nil
}

func (o *Output) start(size int64, src *Image, opts CreateOptions) error {
	format, sub, err := target(src, opts)
	if err != nil {
		return err
	}
	if opts.Format == "" {
		if err := checkSuffix(o.path, format.Name); err != nil {
			return err
		}
	}
	o.Format, o.Subformat, o.sector = format.Name, sub, src.Disk.SectorSize()
	o.mode = 0o666
	if len(src.files) > 0 {
		o.mode = src.files[0].stat.Mode.Perm()
	}
	if err := o.checkDest(&src.opened); err != nil {
		return err
	}
	o.stale = o.dir.exists(partialName(o.base))
	main, err := o.newPart(o.base)
	if err != nil {
		return err
	}
	if err := o.removeLeft(); err != nil {
		return err
	}
	if o.room, err = o.Free(); err != nil {
		return err
	}
	do := driver.Options{
		Subformat: sub, Name: o.base, Seed: opts.Seed, SectorSize: o.sector, Heads: opts.Heads, Sectors: opts.Sectors,
	}
	do.Beside = func(suffix string) (driver.WriteFile, string, error) { return o.beside(src, suffix) }
	if src.Format == format.Name {
		do.Template = src.Template
	}
	o.Target, err = format.Create(main, size, do)
	return err
}

// Pack is how the target packs its units, nil when it stores them as they are.
func (o *Output) Pack() func(unit []byte, off int64) ([]byte, error) {
	if p, ok := o.Target.(driver.Packer); ok {
		return p.Pack
	}
	return nil
}

// target settles format and subformat of a copy.
func target(src *Image, o CreateOptions) (driver.Format, string, error) {
	name := o.Format
	if name == "" {
		name = src.Format
	}
	f, ok := byName(name)
	if !ok || f.Create == nil {
		var names []string
		for _, w := range Writable() {
			names = append(names, w.Name)
		}
		return f, "", ondisk.In(ErrUsage, "format %q cannot be written, want one of %s", name, strings.Join(names, ", "))
	}
	if n := src.Disk.SectorSize(); n != 512 && !f.SectorSizes && f.Name != raw.Format.Name && f.Name != src.Format {
		return f, "", &ondisk.Refusal{
			Code: "unsupported", Reason: fmt.Sprintf("the disk has sectors of %d bytes, and no %s can say so: a guest would not find its partitions", n, name),
			Remedy: "keep the format of the source, or choose --to raw and tell the hypervisor the sector size",
		}
	}
	sub := o.Subformat
	if sub == "" && name == src.Format && slices.Contains(f.Subformats, src.Subformat) {
		sub = src.Subformat
	}
	if sub == "" && len(f.Subformats) > 0 {
		sub = f.Subformats[0]
	}
	for _, s := range f.Subformats {
		if strings.EqualFold(s, sub) {
			return f, s, nil
		}
	}
	if sub == "" {
		return f, "", nil
	}
	if len(f.Subformats) == 0 {
		return f, "", ondisk.In(ErrUsage, "%s has no subformats, but %q was asked for", name, sub)
	}
	return f, "", ondisk.In(ErrUsage, "%s has no subformat %q that can be written, want one of %s", name, sub, strings.Join(f.Subformats, ", "))
}

// shown is the name of a file of the output with the folder, as the user typed that.
func (o *Output) shown(name string) string { return strings.TrimSuffix(o.path, o.base) + name }

// checkDest refuses a DEST that is the source, that others need, and one that is there unless it may be replaced. What --force could not
// help comes first, so that it is never advised in vain.
func (o *Output) checkDest(src *opened) error {
	if f := o.dir.sourceFile(o.base, src); f != "" {
		return ondisk.In(ErrUsage, "DEST %s and the file %s of SOURCE are the same file, and SOURCE is never written; name another DEST", o.path, f)
	}
	if err := o.spareSource(src); err != nil {
		return err
	}
	if err := o.findReplaced(src); err != nil {
		return err
	}
	if !o.dir.exists(o.base) {
		return nil
	}
	if user, err := o.dir.extentOf(o.base); err != nil || user != "" {
		return cmp.Or(err, ondisk.In(ErrUsage, "DEST %s belongs to %s, which names it as its data or disk; name another file", o.path, user))
	}
	return o.taken(o.base)
}

// taken refuses a name that is there, unless it may be replaced.
func (o *Output) taken(name string) error {
	if o.force {
		return nil
	}
	return ondisk.In(ErrOutput, "%s exists; choose another name, or --force to replace it", o.shown(name))
}

// sourceFile is the name of the source's file that a name leads to, empty when it leads to none.
func (d *folder) sourceFile(name string, src *opened) string {
	st, err := d.at.Stat(name)
	if err != nil {
		return ""
	}
	for _, f := range src.files {
		if f.stat.Same(st) {
			return f.name
		}
	}
	return ""
}

// spareSource refuses a DEST whose partial names are files of the source: they would be taken for what a killed run left. The
// folder can be one that finds a file by its name in another case.
func (o *Output) spareSource(src *opened) error {
	taken := func(inner string) bool {
		return strings.EqualFold(inner, o.base) || isBeside(strings.ToLower(o.base), strings.ToLower(inner))
	}
	reserved, err := o.dir.names(func(n string) bool {
		inner, mark := marked(n)
		return mark != "" && taken(inner)
	})
	if err != nil {
		return err
	}
	for _, name := range reserved {
		if f := o.dir.sourceFile(name, src); f != "" {
			return ondisk.In(ErrUsage, "the source's file %s has the name that DEST %s has while it is written; rename it or choose another DEST", f, o.path)
		}
	}
	return nil
}

// findReplaced looks at the image that --force replaces. It may not be in use, and its extent file, which goes with it,
// must not be the source's: an extent can be opened without its descriptor.
func (o *Output) findReplaced(src *opened) error {
	if !o.dir.exists(o.base) {
		return nil
	}
	if err := o.findCase(); err != nil {
		return err
	}
	old, err := openIn(newFolder(o.dir.at), o.base, Options{})
	if err != nil {
		o.unreadable = true // what it uses is not known, so nothing beside it is removed
		if old, err = unopened(newFolder(o.dir.at), o.base); err != nil {
			return nil // a link, or a file of another user: it is only the name that is taken
		}
	}
	defer old.closeFiles() //nolint:errcheck // read-only
	if err := old.unused(o.path); err != nil || o.unreadable {
		return err
	}
	for _, f := range old.files {
		if f.level == 0 {
			o.old = append(o.old, f.name)
		}
	}
	for _, n := range o.old {
		if f := o.dir.sourceFile(n, src); f != "" {
			return ondisk.In(ErrUsage, "DEST %s is the image of the source's file %s; name another file", o.path, f)
		}
		if o.owns(n) {
			o.replace = append(o.replace, n)
		}
	}
	return nil
}

// unopened stands for an image that cannot be read, such as a snapshot whose parent is missing: it can be in use all the same.
func unopened(dir *folder, base string) (*Image, error) {
	f, err := dir.openAny(base, ondisk.ErrUnsupported)
	if err != nil {
		return nil, err
	}
	return &Image{Image: &driver.Image{}, opened: opened{dir: dir, base: base, files: []*file{f}}}, nil
}

// unused refuses an image that is to be replaced while a program or a snapshot needs it.
func (img *Image) unused(shown string) error {
	for _, look := range []func() ([]ondisk.Issue, error){img.Busy, img.Children} {
		issues, err := look()
		if err != nil {
			return err
		}
		if len(issues) > 0 {
			return &ondisk.Refusal{Code: "busy", Reason: "DEST " + shown + " cannot be replaced: " + issues[0].Text, Remedy: issues[0].Remedy}
		}
	}
	return nil
}
