package exchange

import (
	"errors"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/ova"
)

// NewPackage is New for a package. An archive is exchanged as a disk in one file is, an OVF as one whose first file
// names others.
func NewPackage(p *ova.Package) (*Source, error) {
	files := p.Opened()
	s := &Source{path: p.Path, dir: files.Dir}
	err := s.checkPath()
	for _, f := range files.Handles {
		if err == nil {
			err = s.add(files.Base, f)
		}
	}
	if err == nil && p.Kind == "ovf" {
		err = s.addTexts(p)
	}
	if err == nil {
		err = s.checkUsers()
	}
	if err == nil {
		s.plan.Old[0].Disks, err = packageShapes(p)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.path, err)
	}
	return s, nil
}

// maxTexts bounds the texts of a package, which the journal holds twice, bytes.
const maxTexts = 1 << 20

// addTexts notes what the texts of an OVF are by the names of the original. A certificate signs the old ones: it stays
// as it is, under a name that does not make it one.
func (s *Source) addTexts(p *ova.Package) error {
	texts, err := p.Renamed(func(n string) string { return OriginalOf(string(s.plan.Old[0].Name), n) })
	if err != nil {
		return err
	}
	total := 0
	for _, t := range texts {
		f := s.file(t.Name)
		f.Was, f.Kept = append([]byte{}, t.Was...), append([]byte{}, t.Renamed...)
		f.Inode, f.Seal = 0, f != &s.plan.Old[0]
		total += len(t.Was)
	}
	if total > maxTexts {
		return s.refuse("limit", fmt.Sprintf("the OVF and its manifest have %d bytes, at most %d are kept in a journal",
			total,
			maxTexts), "write a copy: trueup align SOURCE DEST.ova")
	}
	if f := s.file(p.Certificate()); f != nil {
		f.Seal, f.Other = true, append(f.Other, unsigned...)
		return s.mayTake(f.Other)
	}
	return nil
}

// unsigned ends the name of a certificate that does not fit the package beside it.
const unsigned = ".kept"

// file returns a file of the source, nil if it has none of that name.
func (s *Source) file(base string) *file {
	if i := slices.Index(names(s.plan.Old), base); i >= 0 {
		return &s.plan.Old[i]
	}
	return nil
}

// openPackage opens the package at a name of a folder, which is the package's from then on, and its disks. p is nil for
// another file.
func openPackage(dir *gate.Folder, base string) (p *ova.Package, disks []*image.Image, err error) {
	if p, err = ova.OpenIn(dir, base); err != nil {
		return nil, nil, err
	}
	disks, err = openDisks(p)
	return p, disks, err
}

// openDisks opens the disks of a package.
func openDisks(p *ova.Package) (disks []*image.Image, err error) {
	for _, x := range p.Disks() {
		img, bad := p.Open(x, image.Options{})
		if bad == nil {
			disks = append(disks, img)
		}
		err = errors.Join(err, bad)
	}
	return disks, err
}

// packageShapes returns the shapes of the disks of a package.
func packageShapes(p *ova.Package) ([]shape, error) {
	disks, err := openDisks(p)
	out, bad := shapesOf(disks, true)
	err = errors.Join(err, bad)
	for _, img := range disks {
		err = errors.Join(err, img.Close())
	}
	return out, err
}
