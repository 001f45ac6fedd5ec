package vmdk

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// openFlat opens the extents of a descriptor one behind the other.
func openFlat(s *driver.Source, d *descriptor, kind string) (*driver.Image, error) {
	if err := d.refuseParent(kind); err != nil {
		return nil, err
	}
	m := newExtentMap(s)
	for i, e := range d.extents {
		if err := m.addFlat(s, i, e); err != nil {
			return nil, d.allMissing(s, err)
		}
	}
	if err := m.checkOverlap(); err != nil {
		return nil, err
	}
	img, err := image(d, kind, disk.New(m.size, d.sectorSize(), m.run))
	if err != nil {
		return nil, err
	}
	img.Parts = m.files
	img.Issues = append(img.Issues, d.viewIssue()...)
	img.Flat = !img.MapsDevice && len(viewed(d.extents)) == 0 &&
		!slices.ContainsFunc(d.extents, func(e *extent) bool { return e.access != "RW" })
	if img.Flat {
		img.Around = d.around
	}
	return img, nil
}

// checkExtent makes sure that extent i can be read and that the disk, of size bytes before it, does not get too large.
func checkExtent(i int, e *extent, size int64) error {
	switch {
	case e.size > math.MaxInt64-size:
		return textErr(e.line, ondisk.ErrFormat, "extents add up to more than %d bytes", int64(math.MaxInt64))
	case e.device():
		return textErr(e.line, ondisk.ErrUnsupported, "extent %d is the device %.64q: not supported; take the device "+
			"itself, on the machine that has it, or a flat clone", i, e.name)
	case e.access == "NOACCESS":
		return textErr(e.line, ondisk.ErrUnsupported, "extent %d is NOACCESS: its data cannot be read", i)
	}
	return nil
}

// flatPiece is an extent that shows bytes of its file as they are.
type flatPiece struct {
	file driver.File // nil: zero
	*extent
}

func (x flatPiece) size() int64                      { return x.extent.size }
func (x flatPiece) check(*faults) error              { return nil }
func (x flatPiece) unclean() *ondisk.Issue           { return nil }
func (x flatPiece) over(func(off, n int64) disk.Run) {}
func (x flatPiece) run(off int64) (disk.Run, error) {
	run := disk.Run{Len: x.size() - off, Off: x.off + off}
	if x.file != nil {
		run.Src = x.file
	}
	return run, nil
}

// addFlat appends an extent of a flat disk. Every line of a descriptor counts: qemu-img 7.2 skips RDONLY and ZERO
// lines, which shifts what follows.
func (m *extentMap) addFlat(s *driver.Source, i int, e *extent) error {
	if err := checkExtent(i, e, m.size); err != nil {
		return err
	}
	x := flatPiece{extent: e}
	switch {
	case e.kind == "ZERO":
	case e.flat():
		var err error
		if x.file, err = m.openFlat(s, i, e); err != nil {
			return err
		}
	case sparseKinds[e.kind]:
		return refuseSparse(s, i, e)
	default:
		return textErr(e.line, ondisk.ErrUnsupported, "extent type %.32q: not supported, want FLAT, VMFS or ZERO",
			e.kind)
	}
	m.add(e, x)
	return nil
}

// refuseSparse ends at the first level: a sparse extent of a flat disk is a contradiction, whatever it names itself.
func refuseSparse(s *driver.Source, i int, e *extent) error {
	if _, err := openOther(s, i, e); err != nil {
		return err
	}
	return textErr(e.line, ondisk.ErrFormat, "extent %d is %s, want FLAT, VMFS or ZERO in a flat disk", i, e.kind)
}

// openFlat opens the file of an extent, which others may use too.
func (m *extentMap) openFlat(s *driver.Source, i int, e *extent) (driver.File, error) {
	f := m.named[e.name]
	if f == nil {
		var err error
		if f, err = openExtent(s, i, e); err != nil {
			return nil, err
		}
		m.named[e.name] = f
		m.files = append(m.files, f)
	}
	return f, e.checkFits(i, f)
}

// checkFits makes sure that the file of a flat extent has all of it.
func (e *extent) checkFits(i int, f driver.File) error {
	switch short := e.off > f.Size() || e.size > f.Size()-e.off; {
	case short && e.mapsDevice():
		return textErr(e.line, ondisk.ErrUnsupported, "extent %d maps a device, and its file %.256q has %d of %d "+
			"bytes: not supported; clone the disk with vmkfstools -i", i, e.name, f.Size(), e.size)
	case short:
		return textErr(e.line, ondisk.ErrFormat,
			"extent %d takes %d bytes at offset %d, but the file %.256q has %d bytes",
			i, e.size, e.off, e.name, f.Size())
	}
	return nil
}

// open opens the file of an extent by its name in UTF-8, or by the bytes in the descriptor.
func (e *extent) open(s *driver.Source) (driver.File, error) {
	f, err := s.Open(e.name)
	if e.stored != e.name && errors.Is(err, fs.ErrNotExist) {
		if raw, rawErr := s.Open(e.stored); rawErr == nil {
			return raw, nil
		}
	}
	return f, err
}

// shownMissing is how many missing files a message lists.
const shownMissing = 16

// allMissing adds the names of all missing files to the error of the first: who restores them needs the list.
func (d *descriptor) allMissing(s *driver.Source, err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	seen := map[string]bool{}
	var missing []string
	for _, e := range d.extents {
		if e.name == "" || e.kind == "ZERO" || seen[e.name] {
			continue
		}
		seen[e.name] = true
		if _, opening := e.open(s); errors.Is(opening, fs.ErrNotExist) {
			missing = append(missing, fmt.Sprintf("%.256q", e.name))
		}
	}
	if len(missing) < 2 {
		return err
	}
	list := strings.Join(missing[:min(len(missing), shownMissing)], ", ")
	if more := len(missing) - shownMissing; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Errorf("%w; %d of its %d files are missing: %s", err, len(missing), len(seen), list)
}

// openOther opens the file of an extent, which cannot be that of the descriptor.
func openOther(s *driver.Source, i int, e *extent) (driver.File, error) {
	f, err := e.open(s)
	if err != nil {
		return nil, fmt.Errorf("%s line %d: extent %d: %w", what, e.line, i, err)
	}
	if f.ID() == s.File.ID() {
		return nil, sameFile(i, e)
	}
	return f, nil
}

// openExtent is openOther for an extent that is read: it cannot be another descriptor either.
func openExtent(s *driver.Source, i int, e *extent) (driver.File, error) {
	f, err := openOther(s, i, e)
	if err != nil {
		return nil, err
	}
	head := make([]byte, min(f.Size(), units.SectorSize))
	if err := ondisk.ReadFull(f, head, 0); err != nil {
		return nil, err
	}
	if e.off == 0 && isDescriptor(head) {
		return nil, textErr(e.line, ondisk.ErrFormat,
			"extent %d (%.256q) is a descriptor itself, want the bytes of a disk", i, e.name)
	}
	return f, nil
}

// checkOverlap refuses two extents that show one range of a file: a write to one would change the other.
func (m *extentMap) checkOverlap() error {
	var flat []flatPiece
	for _, p := range m.pieces {
		if x, ok := p.x.(flatPiece); ok && x.file != nil {
			flat = append(flat, x)
		}
	}
	slices.SortFunc(flat, func(a, b flatPiece) int {
		return cmp.Or(cmp.Compare(a.file.ID(), b.file.ID()), cmp.Compare(a.off, b.off))
	})
	for i := 1; i < len(flat); i++ {
		a, b := flat[i-1], flat[i]
		if a.file.ID() == b.file.ID() && b.off < a.off+a.size() {
			return textErr(b.line, ondisk.ErrFormat,
				"extent overlaps that of line %d: bytes %d to %d of one file are used twice",
				a.line, b.off, min(a.off+a.size(), b.off+b.size()))
		}
	}
	return nil
}
