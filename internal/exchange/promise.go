package exchange

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
)

// side is one of the two disks of an exchange in its present state.
type side struct {
	what  string // name for messages
	base  string // file name for opening it
	alias map[string]string
	disks []shape // expected disks; nil in journals of earlier versions
	files []file  // files that keep their sizes and are never written by guests: all but a copy that guests run from
	again []file  // files, one of which must exist if the disk has no identifier
	exact bool    // no guest may have written it
}

// promised checks that a disk matches its description in the journal, and returns its files. The disk must open
// completely, be well-formed and not smaller, and have its table, volumes and identifiers. All data with checksums must
// be intact. o.Force permits another table, other identifiers and written files, and nothing else. The error is a plain
// reason.
func (s side) promised(ctx context.Context, d *folder, o Options) (files []*gate.File, err error) {
	if err := s.whole(d); err != nil || s.exact && s.disks == nil {
		return nil, err // journals of earlier versions have no more data on an original
	}
	if f := d.written(s.files); f != nil && !s.exact && !o.Force {
		return nil, fmt.Errorf("%s has changed: its file %v was written after the exchange, and guests do not "+
			"write to disks of this kind", s.what, f.Name)
	}
	at, err := s.open(d.Folder)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, at.close()) }()
	is, err := at.shapes()
	if err != nil {
		return nil, fmt.Errorf("%s %q cannot be read (%w)", s.what, s.base, err)
	}
	if err := s.as(is, o.Force); err != nil {
		return nil, err
	}
	if !o.Force && !s.found(d) {
		return nil, fmt.Errorf("%s %q is not the file that was written, and nothing on it identifies the disk", s.what,
			s.base)
	}
	if err := at.readChecked(ctx, o.Progress); err != nil {
		return nil, fmt.Errorf("%s %q is damaged (%w)", s.what, s.base, err)
	}
	return at.files(), nil
}

// as compares the disks of a side with their descriptions.
func (s side) as(is []shape, force bool) error {
	if s.disks == nil {
		return nil
	}
	if len(is) != len(s.disks) {
		return fmt.Errorf("%s %q has changed: it has %d disks, and had %d", s.what, s.base, len(is),
			len(s.disks))
	}
	for i, was := range s.disks {
		why := was.differs(is[i], s.exact, force)
		if why != "" && len(is) > 1 {
			why = fmt.Sprintf("disk %d: %s", i+1, why)
		}
		if why != "" {
			return fmt.Errorf("%s %q has changed: %s", s.what, s.base, why)
		}
	}
	return nil
}

// found reports whether the disk can be recognized by an identifier or by one of its files.
func (s side) found(d *folder) bool {
	return len(s.again) == 0 || slices.ContainsFunc(s.disks, shape.identified) ||
		slices.ContainsFunc(s.again, d.there)
}

// readJobs is the number of chunks of compressed data that are read concurrently.
const readJobs = 4

// readChecked reads all data with a checksum: the files in a manifest, and compressed data.
func (o *opened) readChecked(ctx context.Context, progress diskcopy.Progress) error {
	progress = cmp.Or(progress, diskcopy.Progress(diskcopy.Unwatched{}))
	if o.pkg != nil {
		if err := o.pkg.Check(ctx, progress); err != nil {
			return err
		}
	}
	for _, img := range o.images {
		if err := align.Decode(ctx, img.Disk, readJobs, progress); err != nil {
			return err
		}
	}
	return nil
}

// whole returns an error if a file is missing or has lost bytes.
func (s side) whole(d *folder) error {
	for _, f := range s.files {
		found := f.text()
		for _, n := range []name{f.Name, f.Other} {
			st, err := d.At.Lstat(string(n))
			if err == nil && d.is(n, f) && st.Size < f.Size {
				return fmt.Errorf("%s has changed: its file %v has %d bytes, and had %d", s.what, n, st.Size,
					f.Size)
			}
			found = found || err == nil
		}
		if !found {
			return fmt.Errorf("%s has changed: its file %v is missing", s.what, f.Name)
		}
	}
	return nil
}

// open opens the disk of a side.
func (s side) open(d *gate.Folder) (*opened, error) {
	o, err := openAt(d, s.base, s.alias, s.options())
	if err != nil {
		if o != nil {
			err = errors.Join(err, o.close())
		}
		return nil, fmt.Errorf("%s %q cannot be opened (%w)", s.what, s.base, err)
	}
	return o, nil
}

// opened is an open disk, or an open package with its disks.
type opened struct {
	pkg    *ova.Package // nil for a disk without a package
	images []*image.Image
}

// openAt opens a disk or package by its name in a folder. If disks of a package cannot be opened, it returns the others
// along with the errors.
func openAt(d *gate.Folder, base string, alias map[string]string, as image.Options) (*opened, error) {
	dir, err := d.Again()
	if err != nil {
		return nil, err
	}
	dir.Alias = alias
	p, err := ova.OpenIn(dir, base)
	if err == nil {
		return openDisks(p)
	}
	if !errors.Is(err, ondisk.ErrNoMatch) {
		return nil, err
	}
	if dir, err = d.Again(); err != nil {
		return nil, err
	}
	dir.Alias = alias
	img, err := image.OpenIn(dir, base, as)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return &opened{images: []*image.Image{img}}, nil
}

// openDisks opens the disks of a package.
func openDisks(p *ova.Package) (*opened, error) {
	o := &opened{pkg: p}
	var err error
	for _, x := range p.Disks() {
		img, bad := p.Open(x, image.Options{})
		if bad == nil {
			o.images = append(o.images, img)
		}
		err = errors.Join(err, bad)
	}
	return o, err
}

// files lists the files of a disk or a package.
func (o *opened) files() []*gate.File {
	if o.pkg != nil {
		return o.pkg.Opened().Handles
	}
	return o.images[0].Handles
}

// shapes returns the shapes of the disks.
func (o *opened) shapes() (out []shape, err error) {
	for _, img := range o.images {
		s, bad := shapeOf(img)
		s.Packed = o.pkg != nil
		out, err = append(out, s), errors.Join(err, bad)
	}
	return out, err
}

func (o *opened) close() (err error) {
	for _, img := range o.images {
		err = errors.Join(err, img.Close())
	}
	if o.pkg != nil {
		err = errors.Join(err, o.pkg.Close())
	}
	return err
}

// options returns the options with which the disk of a side was opened first.
func (s side) options() (o image.Options) {
	if len(s.disks) == 1 && !s.disks[0].Packed {
		o.Format = s.disks[0].Format
		if o.Format == raw.Format.Name {
			o.SectorSize = s.disks[0].Sector
		}
	}
	return o
}

// copySide returns the copy, whether its files have their final names or not.
func (p *plan) copySide(d *folder) side {
	s := side{what: "the aligned disk", base: string(p.New[0].Name), alias: map[string]string{}, disks: p.New[0].Disks}
	if slices.ContainsFunc(p.Old, d.there) {
		s.again = p.New // not in a copied folder: nothing of the exchange is removed there
	}
	if len(s.disks) > 0 && (s.disks[0].Packed || s.disks[0].Still) {
		s.files = p.New
	}
	for _, f := range p.New {
		if !d.is(f.Name, f) && d.is(f.Other, f) {
			s.alias[string(f.Name)] = string(f.Other)
		}
	}
	return s
}

// originalSide returns the original, whether its files have their own names, their second names, or some of both.
func (p *plan) originalSide(d *folder, phase journal.Phase) side {
	s := side{what: "the original", alias: map[string]string{}, disks: p.Old[0].Disks, files: p.Old, exact: true}
	o := p.Old[0]
	kept := phase == journal.Kept || d.is(o.Other, o) || o.text() && d.holds(o.Other, o.Kept)
	s.base = string(o.Name)
	if kept {
		s.base = string(o.Other)
	}
	for i, f := range p.Old {
		at, other := f.Name, f.Other
		if kept {
			at, other = other, at
		}
		switch {
		case f.text() || d.is(at, f):
		case d.is(other, f):
			s.alias[string(at)] = string(other)
		case i == 0 && d.is(p.New[0].Other, f): // names were exchanged, on a file system without links
			s.alias[string(at)] = string(p.New[0].Other)
		}
	}
	return s
}
