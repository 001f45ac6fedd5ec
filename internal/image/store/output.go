// Package store decides where files may be written, and creates, locks and publishes them: copies of images, packages
// and reports.
package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
)

// Parts are the files of DEST under construction: those of an image, or of a package. All stand beside their final
// places as .NAME.partial until Publish.
type Parts struct {
	path  string // of DEST, as typed
	dir   *gate.Folder
	base  string
	force bool
	dense bool           // no file may be sparse
	parts []*partialFile // the named file first
	old   []string       // files of the image that is replaced
	mode  fs.FileMode    // permissions of the source: the copy has no others
	stale bool           // a killed run left the partial file of DEST
	// unreadable marks a DEST that exists and cannot be opened as an image.
	unreadable bool
	hidden     []string // see Without
	swaps      bool     // the names are those of the source, and Publish is not called
	caseless   bool     // the folder finds DEST by its name in another case
	limits     limits
	notes      notes
	replace    []string // the extent files among them, removed at the end
}

// Output is an image under construction.
type Output struct {
	Format, Subformat string
	driver.Target
	*Parts

	room int64 // see Room
	bios driver.Geometry
	// again opens what was written.
	again func() (*image.Image, error)
}

// Create starts an image at path of size bytes. src is the image it is a copy of.
func Create(path string, size int64, src *image.Image, o CreateOptions) (*Output, error) {
	if _, err := (Place{Flag: "DEST", Path: path, Role: Copy}).Settle(); err != nil {
		return nil, err
	}
	format, sub, err := target(src, o)
	switch {
	case err != nil:
		return nil, err
	case o.Swap && sub != src.Subformat:
		return nil, &ondisk.Refusal{
			Code:   "unsupported",
			Reason: fmt.Sprintf("replace keeps the format, and no %s %s is written", format.Name, src.Subformat),
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
	out.again = func() (*image.Image, error) { return parts.image(format.Name, src.Disk.SectorSize()) }
	if err := out.start(format, size, src, o); err != nil {
		return nil, errors.Join(err, parts.Discard())
	}
	return out, nil
}

// openParts opens the folder of DEST, a copy of src. swap: the names are those of src, see CreateOptions.
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

// first creates the file that has the name of DEST, unless that may not be written.
func (o *Parts) first(src *gate.Opened) (*partialFile, error) {
	if err := o.checkDest(src); err != nil {
		return nil, err
	}
	o.stale = o.dir.Exists(partialName(o.base))
	return o.newPart(o.base)
}

// start creates the first file, and in it what the format begins with.
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
		Over: opts.Over,
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

// BIOS returns the geometry that a BIOS reports of the disk, zero where the format leaves that to the machine.
func (o *Output) BIOS() driver.Geometry { return o.bios }

// Pack returns how the target packs its units, nil when it stores them as they are.
func (o *Output) Pack() func(unit []byte, off int64) ([]byte, error) {
	if p, ok := o.Target.(driver.Packer); ok {
		return p.Pack
	}
	return nil
}

// Pass has what is written dropped from memory as soon as the storage has it.
func (o *Parts) Pass() {
	for _, p := range o.parts {
		p.passing = true
	}
}

// shown returns the name of a file of the output with the folder, as the user typed that.
func (o *Parts) shown(name string) string { return strings.TrimSuffix(o.path, o.base) + name }

// checkDest refuses a DEST that is the source, that others need, and one that is there unless it may be replaced. What
// --force could not help comes first, so that it is never advised in vain.
func (o *Parts) checkDest(src *gate.Opened) error {
	if o.swaps {
		return cmp.Or(o.checkUnfinished(), o.checkPartialNames(src))
	}
	if f := sourceFile(o.dir, o.base, src); f != "" {
		return ondisk.In(ondisk.ErrUsage, "DEST %s and the file %s of SOURCE are the same file, and SOURCE is never "+
			"written; name another DEST", o.path, f)
	}
	if err := o.checkUnfinished(); err != nil {
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
			"DEST %s belongs to %s, which names it as its data or disk; name another file", o.path, user))
	}
	return o.mayReplace(o.base)
}

// checkUnfinished refuses a DEST on which a run has left work open: its partial files would be taken for stale ones,
// and its original for an unused file.
func (o *Parts) checkUnfinished() error {
	who := "DEST " + o.path + " cannot be written"
	w, err := journal.Beside(o.dir, o.base)
	if err != nil {
		return err
	}
	if w == nil || w.Kind == "" && !w.Blocks {
		c, err := journal.Claiming(o.dir, o.base)
		if c != nil {
			return c.Refusal(who, o.path)
		}
		return err
	}
	w.Path = o.path
	i := w.Issue()
	if w.AtWork() {
		i.Code = "busy"
	}
	return &ondisk.Refusal{Code: i.Code, Reason: who + ": " + i.Text, Remedy: i.Remedy}
}

// checkBeside refuses a view that lies elsewhere than the files that it needs: an image names files of its own folder
// only, and no links. Their names may not be those that belong to DEST, with which they would be removed.
func (o *Parts) checkBeside(src *gate.Opened) error {
	for _, f := range src.Handles {
		st, _ := o.dir.At.Lstat(f.Name()) // what is not there is not the file
		bad := gate.CheckName(f.Name())
		switch {
		case bad != nil:
			return ondisk.In(ondisk.ErrUsage, "DEST %s cannot be a view of SOURCE: %w", o.path, bad)
		case !f.Info.Same(st) || !st.Mode.IsRegular():
			return ondisk.In(ondisk.ErrUsage, "DEST %s is a view, which needs the file %s of SOURCE in the same "+
				"folder; name a DEST there, or make a copy (trueup align)", o.path, f.Name())
		case o.owns(f.Name()):
			return ondisk.In(ondisk.ErrUsage, "the source's file %s has a name that belongs to DEST %s; "+
				"name another DEST",
				f.Name(), o.path)
		}
	}
	return nil
}

// mayReplace refuses a name that is there, unless it may be replaced.
func (o *Parts) mayReplace(name string) error {
	if o.force {
		return nil
	}
	return ondisk.In(ondisk.ErrOutput, "%s exists; choose another name, or --force to replace it", o.shown(name))
}

// sourceFile returns the name of the source's file that a name leads to, also of one behind a loop device; empty when
// it leads to none.
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

// checkPartialNames refuses a DEST whose partial names are files of the source: they would be taken for what a killed
// run left. The folder can be one that finds a file by its name in another case.
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
			return ondisk.In(ondisk.ErrUsage, "the source's file %s has the name that DEST %s has while it is "+
				"written; rename it or choose another DEST", f, o.path)
		}
	}
	return nil
}

// findReplaced looks at the image that --force replaces. It may not be in use, and its extent file, which goes with it,
// must not be the source's: an extent can be opened without its descriptor.
func (o *Parts) findReplaced(src *gate.Opened) error {
	if !o.dir.Exists(o.base) {
		return nil
	}
	if err := o.findCase(); err != nil {
		return err
	}
	old, err := image.OpenIn(gate.NewFolder(o.dir.At), o.base, image.Options{})
	if err != nil {
		o.unreadable = true // what it uses is not known, so nothing beside it is removed
		switch old, err = unopened(gate.NewFolder(o.dir.At), o.base); {
		case errors.Is(err, ondisk.ErrBusy):
			return fmt.Errorf("DEST %s cannot be replaced: %w", o.path, err)
		case err != nil:
			return nil // a link, or a file of another user: it is only the name that is taken
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

// unopened stands for an image that cannot be read, such as a snapshot whose parent is missing: it can be in use all
// the same.
func unopened(dir *gate.Folder, base string) (*image.Image, error) {
	f, err := dir.OpenAny(base, ondisk.ErrUnsupported)
	if err != nil {
		return nil, err
	}
	return &image.Image{Image: &driver.Image{}, Opened: gate.Opened{Dir: dir, Base: base, Handles: []*gate.File{f}}},
		nil
}

// unused refuses an image that is to be replaced while a program or a snapshot needs it.
func unused(img *image.Image, shown string) error {
	for _, look := range []func() ([]ondisk.Issue, error){img.InUse, img.Children} {
		issues, err := look()
		if err != nil {
			return err
		}
		for _, i := range issues {
			if i.Code != image.CodeUnseen { // files of other users are no reason: --force says that DEST may go
				return &ondisk.Refusal{
					Code: "busy", Reason: "DEST " + shown + " cannot be replaced: " + i.Text, Remedy: i.Remedy,
				}
			}
		}
	}
	return nil
}
