package image

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// CreateFiles starts the file of a package at path, which is a copy of src. The output has no disk of its own.
func CreateFiles(path string, src *FileSet, force bool) (*Output, driver.WriteFile, error) {
	o := &Output{path: path, base: filepath.Base(path), force: force, notes: &notes{}, mode: src.files[0].stat.Mode.Perm()}
	var err error
	if o.dir, err = openFolder(filepath.Dir(path)); err != nil {
		return nil, nil, ondisk.In(ErrOutput, "folder of DEST, %s: %w", filepath.Dir(path), err)
	}
	err = o.checkDest(&src.opened)
	var first *part
	if err == nil {
		o.stale = o.dir.exists(partialName(o.base))
		first, err = o.newPart(o.base)
	}
	if err != nil {
		return nil, nil, errors.Join(err, o.Discard())
	}
	return o, first, nil
}

// AddFile creates a further file. One of a run that was killed while it published has its partial name as a second
// link, and goes.
func (o *Output) AddFile(name string) (driver.WriteFile, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if o.dir.exists(name) && o.stale && o.dir.sameFile(name, partialName(name)) {
		if err := o.removeUnused(name); err != nil {
			return nil, err
		}
	}
	if o.dir.exists(name) {
		return nil, ondisk.In(ErrOutput, "%s exists; choose another folder", o.shown(name))
	}
	return o.newPart(name)
}

// ReadBack opens what was written under the names that it will have, through handles of its own.
func (o *Output) ReadBack() (*FileSet, error) {
	d, err := o.reader()
	if err != nil {
		return nil, err
	}
	return newFileSet(d, o.base)
}

// CreateDisk starts the bytes of a disk in w, in place of those of src. They get no name of their own: the result is
// neither published nor discarded. again opens what was written.
func (o *Output) CreateDisk(
	w driver.WriteFile, name string, size int64, src *Image, opts CreateOptions, again func() (*Image, error),
) (*Output, error) {
	format, sub, err := target(src, CreateOptions{})
	if err != nil {
		return nil, err
	}
	d := &Output{Format: format.Name, Subformat: sub, dir: o.dir, base: name, notes: o.notes, again: again}
	if d.room, err = d.Free(); err != nil {
		return nil, err
	}
	d.Target, err = format.Create(w, size, driver.Options{
		Subformat: sub, Name: path.Base(name), Seed: opts.Seed, SectorSize: src.Disk.SectorSize(), Heads: opts.Heads,
		Sectors: opts.Sectors, Template: src.Template,
		Beside: func(string) (driver.WriteFile, string, error) { return nil, "", errSeveral },
	})
	return d, err
}

var errSeveral = fmt.Errorf("a disk of several files inside of a package: %w for writing; convert it to one file",
	ondisk.ErrUnsupported)

// Rewritable refuses an image in a package that could not be written as it was.
func (img *Image) Rewritable() error {
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
