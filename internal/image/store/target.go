package store

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
)

// CreateOptions of Create. The zero value makes an image of the source's own format.
type CreateOptions struct {
	Format    string // empty: the source's
	Subformat string // empty: the source's, or the format's default
	Force     bool   // replace DEST
	Swap      bool   // the copy is to get the names of its source, by EachFile and Release
	Seed      []byte // identifiers are derived from it
	// Over are stretches of the disk that stay in files of the source, which are the Src of the pieces.
	Over []disk.Piece
	// BIOS has the heads and sectors that the BIOS of the machine is to report; zero when nothing depends on them.
	BIOS driver.Geometry
}

// target chooses format and subformat of a copy.
func target(src *image.Image, o CreateOptions) (driver.Format, string, error) {
	name := o.Format
	if name == "" {
		name = src.Format
	}
	f, names := writable(name)
	if f.Create == nil {
		return f, "", ondisk.In(ondisk.ErrUsage, "format %q cannot be written, want one of %s%s", name,
			strings.Join(names, ", "), ondisk.DidYouMean(name, names...))
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
		return f, "", ondisk.In(ondisk.ErrUsage, "%s has no subformats, but %q was asked for", name, sub)
	}
	return f, "", ondisk.In(ondisk.ErrUsage, "%s has no subformat %q that can be written, want one of %s%s", name, sub,
		strings.Join(f.Subformats, ", "), ondisk.DidYouMean(sub, f.Subformats...))
}

// Reports returns the geometry that a BIOS reports of a copy of size bytes, zero where its format states none, or it
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

// writable returns the format of a name, the zero value for one that is not written, and the names of all that are.
func writable(name string) (found driver.Format, names []string) {
	for _, f := range image.Writable() {
		if names = append(names, f.Name); f.Name == name {
			found = f
		}
	}
	return found, names
}

// checkSuffix refuses a DEST that would have the format of SOURCE under the name of another.
func checkSuffix(path, format string) error {
	named := image.SuffixFormat(path)
	if named == "" || named == format {
		return nil
	}
	if f, _ := writable(named); f.Create == nil {
		return ondisk.In(ondisk.ErrUsage, "DEST %s has the name of the format %s, which is not written, and the copy "+
			"would be %s as SOURCE is; choose another name, "+
			"or say --to %s to keep that format under this name", path, named, format, format)
	}
	return ondisk.In(ondisk.ErrUsage, "DEST %s has the name of the format %s, and the copy would be %s as SOURCE is; "+
		"say --to %s, or --to %s to keep that format under this name",
		path, named, format, named, format)
}

// Rewritable refuses an image in a package that could not be written as it was.
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

// CreateFiles starts the file of a package at path, which is a copy of src. swap: the names are those of src, see
// CreateOptions.
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

// AddFile creates a further file. One of a run that was killed while it published has its partial name as a second
// link, and goes.
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

// Without hides a file from those that read back what was written: it has the name of one that the output lacks.
func (o *Parts) Without(name string) { o.hidden = append(o.hidden, name) }

// ReadBack opens what was written under the names that it will have, through handles of its own.
func (o *Parts) ReadBack() (*image.FileSet, error) {
	d, err := o.reader()
	if err != nil {
		return nil, err
	}
	return image.NewFileSet(d, o.base)
}

// CreateDisk starts the bytes of a disk in w, in place of those of src. They get no name of their own: the result is
// neither published nor discarded. again opens what was written.
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
