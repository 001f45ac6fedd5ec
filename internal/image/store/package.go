package store

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
)

// CreateFiles starts the file of a package at path, which is a copy of src. The output has no disk of its own. swap:
// the names are those of src, see CreateOptions.
func CreateFiles(path string, src *image.FileSet, force, swap bool) (*Output, driver.WriteFile, error) {
	o := &Output{
		path: path, base: filepath.Base(path), force: force, swaps: swap, notes: &notes{},
		mode: src.Handles[0].Info.Mode.Perm(),
	}
	var err error
	if o.dir, err = gate.OpenFolder(filepath.Dir(path)); err != nil {
		return nil, nil, ondisk.In(ondisk.ErrOutput, "folder of DEST, %s: %w", filepath.Dir(path), err)
	}
	err = o.checkDest(&src.Opened)
	var first *partialFile
	if err == nil {
		o.stale = o.dir.Exists(partialName(o.base))
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
func (o *Output) Without(name string) { o.hidden = append(o.hidden, name) }

// ReadBack opens what was written under the names that it will have, through handles of its own.
func (o *Output) ReadBack() (*image.FileSet, error) {
	d, err := o.reader()
	if err != nil {
		return nil, err
	}
	return image.NewFileSet(d, o.base)
}

// CreateDisk starts the bytes of a disk in w, in place of those of src. They get no name of their own: the result is
// neither published nor discarded. again opens what was written.
func (o *Output) CreateDisk(
	w driver.WriteFile, name string, size int64, src *image.Image, opts CreateOptions,
	again func() (*image.Image, error),
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
		Subformat: sub, Name: path.Base(name), Seed: opts.Seed, SectorSize: src.Disk.SectorSize(), BIOS: opts.BIOS,
		Template: src.Template,
		Beside:   func(string) (driver.WriteFile, string, error) { return nil, "", errSeveral },
	})
	return d, err
}

var errSeveral = fmt.Errorf("a disk of several files inside of a package: %w for writing; convert it to one file",

	ondisk.ErrUnsupported)
