// Package store checks where files may be written, and creates, locks and publishes them: copies of images, packages
// and reports.
package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
)

// Parts holds the files of DEST under construction, of an image or a package. Until Publish, each is named
// .NAME.partial in its final folder.
type Parts struct {
	path  string // of DEST, as typed
	dir   *gate.Folder
	base  string
	force bool
	dense bool           // no file may be sparse
	parts []*partialFile // the file named by the user first
	old   []string       // files of the replaced image
	mode  fs.FileMode    // permissions of the source, an upper bound for the copy
	stale bool           // a killed run left a partial file of DEST
	// unreadable is set if DEST exists and cannot be opened as an image.
	unreadable bool
	hidden     []string // see Without
	swaps      bool     // the copy gets the names of the source, and Publish is not called
	caseless   bool     // the folder is case-insensitive, as far as DEST shows
	limits     limits
	notes      notes
	replace    []string // the extent files in old, to be removed at the end
}

// Output is an image under construction. Publish gives its files their final names.
type Output struct {
	Format, Subformat string
	driver.Target
	*Parts

	room int64 // see Room
	bios driver.Geometry
	// again opens the written image.
	again func() (*image.Image, error)
}

// Create starts an image at path of size bytes, as a copy of src.
func Create(path string, size int64, src *image.Image, o CreateOptions) (*Output, error) {
	if _, err := (Place{Flag: "DEST", Path: path, Copy: true}).Resolve(); err != nil {
		return nil, err
	}
	format, sub, err := target(src, o)
	switch {
	case err != nil:
		return nil, err
	case o.Swap && sub != src.Subformat:
		return nil, &ondisk.Refusal{
			Code:   "unsupported",
			Reason: fmt.Sprintf("replace keeps the format, but trueup cannot write %s %s", format.Name, src.Subformat),
			Remedy: "write a copy in another format: trueup align --to FORMAT SOURCE DEST",
		}
	case o.Format == "" && !o.Swap:
		if err := checkSuffix(path, format.Name); err != nil {
			return nil, err
		}
	}
	parts, err := openParts(path, &src.Opened, o.Force, o.Swap)
	if err != nil {
		return nil, err
	}
	parts.dense = hyperV[format.Name]
	out := &Output{Format: format.Name, Subformat: sub, Parts: parts, bios: Reports(src, size, o)}
	out.again = func() (*image.Image, error) { return parts.image(format.Name, src.Disk.SectorSize(), o.Offset) }
	if err := out.start(format, size, src, o); err != nil {
		return nil, errors.Join(err, parts.Discard())
	}
	return out, nil
}

// openParts opens the folder of DEST, a copy of src. With swap, the copy will get the names of src; see CreateOptions.
func openParts(path string, src *gate.Opened, force, swap bool) (*Parts, error) {
	o := &Parts{path: path, base: filepath.Base(path), force: force, swaps: swap, mode: 0o666}
	if files := src.Local(); len(files) > 0 {
		o.mode = files[0].Info.Mode.Perm()
	}
	var err error
	if o.dir, err = gate.OpenFolder(filepath.Dir(path)); err != nil {
		return nil, ondisk.In(ondisk.ErrOutput, "folder of DEST, %s: %w", filepath.Dir(path), err)
	}
	return o, nil
}

// first creates the file with the name of DEST, unless that name must not be written.
func (o *Parts) first(src *gate.Opened) (*partialFile, error) {
	if err := o.checkDest(src); err != nil {
		return nil, err
	}
	o.stale = o.dir.Exists(partialName(o.base))
	return o.newPart(o.base)
}

// start creates the first file, and writes the start of the format.
func (o *Output) start(format driver.Format, size int64, src *image.Image, opts CreateOptions) error {
	if opts.Over != nil {
		if err := o.checkBeside(&src.Opened); err != nil {
			return err
		}
	}
	main, err := o.first(&src.Opened)
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
		Subformat: o.Subformat, Name: o.base, Seed: opts.Seed, SectorSize: src.Disk.SectorSize(), BIOS: opts.BIOS,
		Over: opts.Over, Offset: opts.Offset,
	}
	do.Beside = func(suffix string) (driver.WriteFile, string, error) { return o.createExtent(src, suffix) }
	if src.Format == format.Name {
		do.Template = src.Template
	}
	o.Target, err = format.Create(main, size, do)
	return err
}

// Kind returns the format and the subformat.
func (o *Output) Kind() (format, subformat string) { return o.Format, o.Subformat }

// BIOS returns the geometry that a BIOS reports for the disk, or zero if the format leaves it to the machine.
func (o *Output) BIOS() driver.Geometry { return o.bios }

// Pack returns the function that compresses units, or nil if the target stores them as they are.
func (o *Output) Pack() func(unit []byte, off int64) ([]byte, error) {
	if p, ok := o.Target.(driver.Packer); ok {
		return p.Pack
	}
	return nil
}

// Pass makes the kernel drop written data from memory once the storage has it.
func (o *Parts) Pass() {
	for _, p := range o.parts {
		p.passing = true
	}
}

// shown returns the path of a file of the output, in the folder as the user typed it.
func (o *Parts) shown(name string) string { return strings.TrimSuffix(o.path, o.base) + name }

// checkDest refuses a DEST that is the source, that other images need, or that exists and must not be replaced. The
// last check is the one that --force overrides, so that messages never advise --force in vain.
func (o *Parts) checkDest(src *gate.Opened) error {
	if o.swaps {
		return cmp.Or(o.checkOpen(o.base), o.checkPartialNames(src))
	}
	if f := sourceFile(o.dir, o.base, src); f != "" {
		return ondisk.In(ondisk.ErrUsage, "DEST %s and the file %s of SOURCE are the same file, and SOURCE is never "+
			"written; name another DEST", o.path, f)
	}
	if err := o.checkOpen(o.base); err != nil {
		return err
	}
	if err := o.checkPartialNames(src); err != nil {
		return err
	}
	if err := o.findReplaced(src); err != nil {
		return err
	}
	if !o.dir.Exists(o.base) {
		return nil
	}
	if user, err := image.ExtentOf(o.dir, o.base, partialName(o.base)); err != nil || user != "" {
		return cmp.Or(err, ondisk.In(ondisk.ErrUsage,
			"DEST %s belongs to %s, as its data or disk; name another file", o.path, user))
	}
	if o.force {
		return nil
	}
	return ondisk.In(ondisk.ErrOutput, "%s exists; choose another name, or --force to replace it", o.path)
}

// checkOpen refuses a file of DEST with unfinished work, or one that such work needs. Otherwise its partial file would
// be taken for a stale one, and a kept original for an unused file.
func (o *Parts) checkOpen(name string) error {
	return journal.MayWrite(o.dir, name, o.shown(name), "DEST "+o.shown(name)+" cannot be written")
}

// checkBeside refuses a view in another folder than the files it needs: an image references files in its own folder
// only, and no links. Their names must not belong to DEST, because they would be removed with DEST.
func (o *Parts) checkBeside(src *gate.Opened) error {
	for _, f := range src.Handles {
		st, _ := o.dir.At.Lstat(f.Name()) // a missing file is not the same one
		bad := gate.CheckName(f.Name())
		switch {
		case bad != nil:
			return ondisk.In(ondisk.ErrUsage, "DEST %s cannot be a view of SOURCE: %w", o.path, bad)
		case !f.Info.Same(st) || !st.Mode.IsRegular():
			return ondisk.In(ondisk.ErrUsage, "DEST %s is a view and must be in the folder of the file %s of "+
				"SOURCE; name a DEST there, or make a copy (trueup align)", o.path, f.Name())
		case o.owns(f.Name()):
			return ondisk.In(ondisk.ErrUsage, "the source's file %s has a name that DEST %s needs; name another DEST",
				f.Name(), o.path)
		}
	}
	return nil
}

// sourceFile returns the name of the source file at a path, or behind a loop device there. It returns an empty string
// for other files.
func sourceFile(d *gate.Folder, name string, src *gate.Opened) string {
	st, err := d.At.Stat(name)
	if err != nil {
		return ""
	}
	for _, f := range src.Local() {
		switch {
		case f.Info.Same(st):
			return f.Name()
		case f.Is(st):
			return "behind " + f.Name()
		}
	}
	return ""
}

// checkPartialNames refuses a DEST whose partial names are source files: they would be taken for leftovers of a killed
// run. It ignores case, because the folder may be case-insensitive.
func (o *Parts) checkPartialNames(src *gate.Opened) error {
	taken := func(inner string) bool {
		return strings.EqualFold(inner, o.base) || isExtentName(strings.ToLower(o.base), strings.ToLower(inner))
	}
	reserved, err := o.dir.Names(func(n string) bool {
		inner, mark := cutMark(n)
		return mark != "" && taken(inner)
	})
	if err != nil {
		return err
	}
	for _, name := range reserved {
		if f := sourceFile(o.dir, name, src); f != "" {
			return ondisk.In(ondisk.ErrUsage, "the source's file %s has the temporary name of DEST %s; rename it "+
				"or choose another DEST", f, o.path)
		}
	}
	return nil
}

// findReplaced examines the image that --force replaces. The image must not be in use. Its extent file is removed with
// it, so it must not be the source: an extent can be opened without its descriptor.
func (o *Parts) findReplaced(src *gate.Opened) error {
	if !o.dir.Exists(o.base) {
		return nil
	}
	if err := o.findCase(); err != nil {
		return err
	}
	old, err := image.OpenIn(gate.NewFolder(o.dir.At), o.base, image.Options{})
	if err != nil {
		o.unreadable = true // its files are unknown, so no other file is removed
		switch old, err = image.Unread(gate.NewFolder(o.dir.At), o.base, ondisk.ErrUnsupported); {
		case errors.Is(err, ondisk.ErrBusy):
			return fmt.Errorf("DEST %s cannot be replaced: %w", o.path, err)
		case err != nil:
			return nil // a link, or a file of another user: only the name is taken
		}
	}
	defer old.CloseFiles() //nolint:errcheck // read-only
	if err := unused(old, o.path); err != nil || o.unreadable {
		return err
	}
	for _, f := range old.Handles {
		if f.Level == 0 {
			o.old = append(o.old, f.Name())
		}
	}
	for _, n := range o.old {
		if f := sourceFile(o.dir, n, src); f != "" {
			return ondisk.In(ondisk.ErrUsage, "DEST %s is the image of the source's file %s; name another file", o.path,
				f)
		}
		if o.owns(n) {
			o.replace = append(o.replace, n)
		}
	}
	return nil
}

// unused returns an error if a program or a snapshot needs an image that is to be replaced.
func unused(img *image.Image, shown string) error {
	for _, look := range []func() ([]ondisk.Issue, error){img.InUse, img.Children} {
		issues, err := look()
		if err != nil {
			return err
		}
		for _, i := range issues {
			if i.Code != image.CodeUnseen { // --force overrides unseen files of other users
				return &ondisk.Refusal{
					Code: "busy", Reason: "DEST " + shown + " cannot be replaced: " + i.Text, Remedy: i.Remedy,
				}
			}
		}
	}
	return nil
}

// extentSuffix matches the part that formats add between stem and extension: for a flat extent, the extents of a split
// disk (2 GB each), and the head of a view.
var extentSuffix = ondisk.LazyPattern(`^(-1)?-(flat|head|[fs][0-9]{3,4})$`)

// isExtentName reports whether name is a possible name of a further file of the image base.
func isExtentName(base, name string) bool {
	ext := filepath.Ext(base)
	rest, ok := strings.CutPrefix(name, strings.TrimSuffix(base, ext))
	rest, ends := strings.CutSuffix(rest, ext)
	return ok && ends && extentSuffix().MatchString(rest)
}

// createExtent creates a further file of the image: NAME-flat.vmdk. With --force, the current extent of DEST must exist
// until the descriptor is replaced, so the new one gets the other of two names.
func (o *Parts) createExtent(src *image.Image, suffix string) (driver.WriteFile, string, error) {
	ext := filepath.Ext(o.base)
	stem := strings.TrimSuffix(o.base, ext)
	name, other := stem+suffix+ext, stem+"-1"+suffix+ext
	if err := gate.CheckName(other); err != nil {
		return nil, "", ondisk.In(ondisk.ErrUsage, "DEST would need a second file: %w", err)
	}
	if o.uses(name) {
		name = other
	}
	switch f := sourceFile(o.dir, name, &src.Opened); {
	case f != "" && o.swaps:
	case f != "":
		return nil, "", ondisk.In(ondisk.ErrUsage, "DEST %s needs the name %s, but that is the source's file %s; "+
			"name another file", o.path, o.shown(name), f)
	case o.dir.Exists(name):
		return nil, "", ondisk.In(ondisk.ErrOutput,
			"%s exists and does not belong to %s; move it away, or choose another name for DEST", o.shown(name), o.path)
	}
	p, err := o.newPart(name)
	return p, name, err
}

// uses reports whether the replaced image has a file of this name.
func (o *Parts) uses(name string) bool {
	return slices.ContainsFunc(o.old, func(n string) bool {
		return n == name || o.caseless &&
			strings.EqualFold(n, name)
	})
}

// owns reports whether name is a possible name of a further file of DEST.
func (o *Parts) owns(name string) bool {
	if o.caseless {
		return isExtentName(strings.ToLower(o.base), strings.ToLower(name))
	}
	return isExtentName(o.base, name)
}

// findCase detects a case-insensitive folder: DEST exists, but the folder lists it only in another case.
func (o *Parts) findCase() error {
	alike, err := o.dir.Names(func(n string) bool { return strings.EqualFold(n, o.base) })
	o.caseless = len(alike) == 1 && alike[0] != o.base && o.dir.SameFile(alike[0], o.base)
	return err
}

// replacedName returns the name of the second link to an extent that will be removed after DEST got a new one.
func replacedName(name string) string { return "." + name + journal.Replaced }

// cutMark splits a leftover name of a killed run into the file name and the mark, ".partial" or ".replaced". mark is
// empty for other names.
func cutMark(name string) (inner, mark string) {
	rest, ok := strings.CutPrefix(name, ".")
	for _, mark := range []string{journal.Partial, journal.Replaced} {
		if inner, ends := strings.CutSuffix(rest, mark); ok && ends {
			return inner, mark
		}
	}
	return "", ""
}

// removeLeft removes further files that killed runs left, recognized by a second link as a mark. This run must hold the
// lock of DEST's partial file. If a file could be in use, only its mark is removed.
func (o *Parts) removeLeft() error {
	left, err := o.dir.Names(func(n string) bool {
		inner, mark := cutMark(n)
		return mark != "" && o.owns(inner)
	})
	if err != nil {
		return err
	}
	for _, n := range left {
		if err := o.removeMarked(cutMark(n)); err != nil {
			return err
		}
	}
	return nil
}

// removeMarked removes a mark, and its file unless that is in use.
func (o *Parts) removeMarked(n, mark string) error {
	if err := o.checkOpen(n); err != nil {
		if _, refused := errors.AsType[*ondisk.Refusal](err); refused {
			return nil // another DEST has a file of this name
		}
		return err
	}
	// The file got its name, and DEST did not: DEST's partial file existed when this run began.
	unpublished := mark == journal.Partial && o.stale && o.dir.SameFile(n, partialName(n))
	// DEST got another extent, and the old one was not removed.
	replaced := mark == journal.Replaced && len(o.old) > 0 && o.dir.SameFile(n, replacedName(n))
	if unpublished || replaced {
		if err := o.removeUnused(n); err != nil {
			return err
		}
	}
	if mark == journal.Partial {
		return o.removeStale(partialName(n))
	}
	return ondisk.OutputError(o.dir.At.Remove(replacedName(n)), "remove %s", replacedName(n))
}

// removeUnused removes a file of a killed run, unless DEST or any VMDK in the folder uses it.
func (o *Parts) removeUnused(name string) error {
	if o.uses(name) || o.unreadable {
		return nil
	}
	if named, err := image.IsNamed(o.dir, name); named || err != nil {
		return err // a descriptor renamed later may use it
	}
	return ondisk.OutputError(o.dir.At.Remove(name), "remove unfinished %s", name)
}

// CreateOptions holds the options of Create. The zero value creates an image in the format of the source.
type CreateOptions struct {
	Format    string // the source's by default
	Subformat string // the source's by default, or the default of the format
	Force     bool   // replace DEST
	Swap      bool   // the copy gets the names of its source, by EachFile and Release
	Seed      []byte // of derived identifiers
	Offset    int64  // of the disk in each file of a raw or flat format
	// Over lists the ranges of the disk that stay in files of the source. The Src of each piece is such a file.
	Over []disk.Piece
	// BIOS has the heads and sectors that the BIOS of the machine must report, or is zero if nothing depends on them.
	BIOS driver.Geometry
}

// target returns the format and subformat of a copy.
func target(src *image.Image, o CreateOptions) (driver.Format, string, error) {
	name := cmp.Or(o.Format, src.Format)
	f, known := image.ByName(name)
	if !known {
		return f, "", ondisk.In(ondisk.ErrUsage, "format %q cannot be written; must be one of %s%s", name,
			strings.Join(image.Names(), ", "), ondisk.DidYouMean(name, image.Names()...))
	}
	if err := src.HoldsSectors(name, src.Disk.SectorSize()); err != nil {
		return f, "", err
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
		return f, "", ondisk.In(ondisk.ErrUsage, "%s has no subformats, so %q is not possible", name, sub)
	}
	return f, "", ondisk.In(ondisk.ErrUsage, "%s has no writable subformat %q; must be one of %s%s", name, sub,
		strings.Join(f.Subformats, ", "), ondisk.DidYouMean(sub, f.Subformats...))
}

// Reports returns the geometry that a BIOS reports for a copy of size bytes. It is zero if the format states none, or
// cannot be written.
func Reports(src *image.Image, size int64, o CreateOptions) driver.Geometry {
	f, sub, err := target(src, o)
	if err != nil || f.Reports == nil {
		return driver.Geometry{}
	}
	do := driver.Options{Subformat: sub, BIOS: o.BIOS}
	if src.Format == f.Name {
		do.Template = src.Template
	}
	return f.Reports(size, do)
}

// checkSuffix returns an error if the extension of DEST belongs to another format than the copy.
func checkSuffix(path, format string) error {
	named := image.SuffixFormat(path)
	if named == "" || named == format {
		return nil
	}
	if _, known := image.ByName(named); !known {
		return ondisk.In(ondisk.ErrUsage, "DEST %s has the file extension of %s, a format that trueup cannot "+
			"write, and the copy would be %s like SOURCE; choose another name, or add --to %s to keep that format "+
			"under this name", path, named, format, format)
	}
	return ondisk.In(ondisk.ErrUsage, "DEST %s has the file extension of %s, but the copy would be %s like SOURCE; "+
		"add --to %s, or --to %s to keep that format under this name", path, named, format, named, format)
}

// Rewritable returns an error if an image of a package cannot be rewritten in its present form.
func Rewritable(img *image.Image) error {
	_, sub, err := target(img, CreateOptions{})
	switch {
	case err != nil:
		return err
	case sub != img.Subformat:
		return fmt.Errorf("a disk of the subformat %s inside of a package: %w for writing", img.Subformat,
			ondisk.ErrUnsupported)
	case len(img.Parts) > 0:
		return errSeveral
	}
	return nil
}

// CreateFiles starts the file of a package at path, as a copy of src. With swap, the copy will get the names of src;
// see CreateOptions.
func CreateFiles(path string, src *image.FileSet, force, swap bool) (*Parts, driver.WriteFile, error) {
	o, err := openParts(path, &src.Opened, force, swap)
	if err != nil {
		return nil, nil, err
	}
	first, err := o.first(&src.Opened)
	if err != nil {
		return nil, nil, errors.Join(err, o.Discard())
	}
	return o, first, nil
}

// AddFile creates a further file. It removes an existing one if its partial name is a second link: a run was killed
// while it published.
func (o *Parts) AddFile(name string) (driver.WriteFile, error) {
	if err := gate.CheckName(name); err != nil {
		return nil, err
	}
	if o.swaps {
		return o.newPart(name)
	}
	if o.dir.Exists(name) && o.stale && o.dir.SameFile(name, partialName(name)) {
		if err := o.removeUnused(name); err != nil {
			return nil, err
		}
	}
	if o.dir.Exists(name) {
		return nil, ondisk.In(ondisk.ErrOutput, "%s exists; choose another folder", o.shown(name))
	}
	return o.newPart(name)
}

// Without hides an existing file from ReadBack and Reopen, because the output has no file of this name.
func (o *Parts) Without(name string) { o.hidden = append(o.hidden, name) }

// ReadBack opens the written files under their final names, through handles of its own.
func (o *Parts) ReadBack() (*image.FileSet, error) {
	d, err := o.reader()
	if err != nil {
		return nil, err
	}
	return image.NewFileSet(d, o.base)
}

// CreateDisk starts the data of a disk in w, replacing the data of src. The disk is part of w, so the result is neither
// published nor discarded. again opens the written disk.
func (o *Parts) CreateDisk(
	w driver.WriteFile, name string, size int64, src *image.Image, opts CreateOptions,
	again func() (*image.Image, error),
) (*Output, error) {
	format, sub, err := target(src, CreateOptions{})
	if err != nil {
		return nil, err
	}
	d := &Output{Format: format.Name, Subformat: sub, Parts: o, again: again}
	if d.room, err = d.Free(); err != nil {
		return nil, err
	}
	d.Target, err = format.Create(w, size, driver.Options{
		Subformat: sub, Name: path.Base(name), Seed: opts.Seed, SectorSize: src.Disk.SectorSize(), BIOS: opts.BIOS,
		Template: src.Template,
		Beside:   func(string) (driver.WriteFile, string, error) { return nil, "", errSeveral },
	})
	return d, err
}

var errSeveral = fmt.Errorf("a disk of several files inside of a package: %w for writing; convert it to one file",
	ondisk.ErrUnsupported)
