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

// openFlat opens a disk of flat extents, in the order of the descriptor.
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
	img.Flat = !img.MapsDevice && len(viewFiles(d.extents, 0)) == 0 &&
		!slices.ContainsFunc(d.extents, func(e *extent) bool { return e.access != "RW" })
	if img.Flat {
		img.Around = d.around
	}
	return img, nil
}

// checkExtent checks that extent i is readable and that the total stays in range. size is the sum of the previous
// extents in bytes.
func checkExtent(i int, e *extent, size int64) error {
	switch {
	case e.size > math.MaxInt64-size:
		return textErr(e.line, ondisk.ErrFormat, "extents add up to more than %d bytes", int64(math.MaxInt64))
	case e.device():
		return textErr(e.line, ondisk.ErrUnsupported, "extent %d is the device %.64q: not supported; name the "+
			"device itself on its host, or a flat clone", i, e.name)
	case e.access == "NOACCESS":
		return textErr(e.line, ondisk.ErrUnsupported, "extent %d is NOACCESS: its data cannot be read", i)
	}
	return nil
}

// flatPiece is an extent with bytes of its file unchanged.
type flatPiece struct {
	file driver.File // nil for zeros
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

// addFlat appends an extent of a flat disk. Every extent line counts, unlike in qemu-img 7.2, which skips RDONLY and
// ZERO lines and so shifts the following extents.
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
	case sparseKinds[e.kind]: // read none of its own references
		if _, err := openOther(s, i, e); err != nil {
			return err
		}
		return textErr(e.line, ondisk.ErrFormat, "extent %d is %s, want FLAT, VMFS or ZERO in a flat disk", i, e.kind)
	default:
		return textErr(e.line, ondisk.ErrUnsupported, "extent type %.32q: not supported, want FLAT, VMFS or ZERO",
			e.kind)
	}
	m.add(e, x)
	return nil
}

// openFlat opens the file of an extent, which several extents may share.
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

// checkFits checks that a flat extent lies inside its file.
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

// open opens the file of an extent by its name in UTF-8, or else by the stored name.
func (e *extent) open(s *driver.Source) (driver.File, error) {
	f, err := s.Open(e.name)
	if e.stored != e.name && errors.Is(err, fs.ErrNotExist) {
		if raw, rawErr := s.Open(e.stored); rawErr == nil {
			return raw, nil
		}
	}
	return f, err
}

// shownMissing limits the missing files in a message.
const shownMissing = 16

// allMissing adds the names of all missing files to the error of the first, as a list for restoring them.
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

// openOther opens the file of an extent, which must differ from the descriptor file.
func openOther(s *driver.Source, i int, e *extent) (driver.File, error) {
	f, err := e.open(s)
	if err != nil {
		return nil, fmt.Errorf("%s line %d: extent %d: %w", descriptorName, e.line, i, err)
	}
	if f.ID() == s.File.ID() {
		return nil, textErr(e.line, ondisk.ErrFormat,
			"extent %d is the same file (%.256q): an extent can never be a descriptor", i, e.name)
	}
	return f, nil
}

// openExtent is openOther for reading: the file must not be another descriptor either.
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
			"extent %d (%.256q) is a descriptor, must be the data of a disk", i, e.name)
	}
	return f, nil
}

// checkOverlap rejects two extents that use the same range of a file: a write to one would change the other.
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

// openedExtent is an opened extent of any kind.
type openedExtent interface {
	size() int64 // on the disk, bytes
	run(off int64) (disk.Run, error)
	check(f *faults) error
	// over sets the function that maps holes to the parent.
	over(below func(off, n int64) disk.Run)
	// unclean returns the issue of an extent that was not closed cleanly, or nil.
	unclean() *ondisk.Issue
}

// extentMap is a disk of several extents, in disk order.
type extentMap struct {
	size   int64
	pieces []piece
	files  []driver.File
	named  map[string]driver.File // open files by name, in flat disks
	opened map[string]bool        // IDs of open files, in disks with grains
	tabs   *ondisk.PageCache      // shared, so that memory does not grow with the number of extents
}

// piece is an extent and its range on the disk.
type piece struct {
	disk.Range
	name string
	x    openedExtent
}

func newExtentMap(s *driver.Source) *extentMap {
	return &extentMap{
		named: map[string]driver.File{}, opened: map[string]bool{},
		tabs: ondisk.NewPageCache(s.Memory(tableCache)),
	}
}

// add appends an extent.
func (m *extentMap) add(e *extent, x openedExtent) {
	m.pieces = append(m.pieces, piece{disk.Range{Off: m.size, Len: e.size}, e.name, x})
	m.size += e.size
}

// openSplit opens a disk of sparse extents, in the order of the descriptor.
func openSplit(s *driver.Source, d *descriptor, kind string) (*driver.Image, error) {
	m := newExtentMap(s)
	for i, e := range d.extents {
		if err := m.addSparse(s, i, e, kind); err != nil {
			return nil, d.allMissing(s, err)
		}
	}
	parent, err := d.openParent(s)
	if err != nil {
		return nil, err
	}
	for _, p := range m.pieces {
		p.x.over(over(parent, p.Off))
	}
	d = d.inherit(parent)
	if kind == custom {
		kind = splitSparse
	}
	img, err := image(d, kind, disk.New(m.size, d.sectorSize(), m.run))
	if err != nil {
		return nil, err
	}
	img.Parts = m.files
	img.Check = m.check
	img.Issues = slices.Concat(img.Issues, m.unclean(), d.viewIssue())
	for _, p := range m.pieces {
		if x, ok := p.x.(*sparse); ok {
			img.Details = append(img.Details, driver.Detail{Name: "grain size", Value: units.Format(x.h.grainBytes())})
			if kind == splitSparse {
				img.Template = &template{d, ondisk.I64(x.h.GrainSize)}
			}
			break
		}
	}
	return img, nil
}

// addSparse appends an extent of a disk with grains. In a custom disk, some extents are flat.
func (m *extentMap) addSparse(s *driver.Source, i int, e *extent, kind string) error {
	if err := checkExtent(i, e, m.size); err != nil {
		return err
	}
	switch want := cmp.Or(sparseTypes[kind], "SPARSE"); {
	case e.kind == want, e.kind == "SPARSE" && kind == vmfsSparse: // QEMU accepts both words
	case kind == custom && (e.flat() || e.kind == "ZERO"):
	case sparseKinds[e.kind], e.flat(), e.kind == "ZERO":
		return textErr(e.line, ondisk.ErrFormat, "extent %d is %s, want %s in a disk of the createType %s", i, e.kind,
			want, kind)
	default:
		return textErr(e.line, ondisk.ErrUnsupported, "extent type %.32q: not supported, want %s", e.kind, want)
	}
	x, err := m.extent(s, i, e, kind)
	if err != nil {
		return err
	}
	m.add(e, x)
	return nil
}

// extent opens an extent whose kind is valid for the disk.
func (m *extentMap) extent(s *driver.Source, i int, e *extent, kind string) (openedExtent, error) {
	if e.kind == "ZERO" {
		return flatPiece{extent: e}, nil
	}
	f, err := m.open(s, i, e)
	if err != nil {
		return nil, err
	}
	if e.flat() {
		return flatPiece{f, e}, e.checkFits(i, f)
	}
	x, err := openGrains(f, m.tabs.Of(f), kind)
	if err != nil {
		return nil, fmt.Errorf("extent %d (%.256q): %w", i, e.name, err)
	}
	if x.size() != e.size {
		return nil, textErr(e.line, ondisk.ErrFormat, "extent %d of %d sectors, but the capacity in the header "+
			"of %.256q is %d", i, e.size/units.SectorSize, e.name, x.size()/units.SectorSize)
	}
	return x, nil
}

// open opens the file of an extent, which no other extent may use.
func (m *extentMap) open(s *driver.Source, i int, e *extent) (driver.File, error) {
	if e.off != 0 && !e.flat() {
		return nil, textErr(e.line, ondisk.ErrFormat, "extent %d at offset %d of its file, want none for %s", i, e.off,
			e.kind)
	}
	f, err := openExtent(s, i, e)
	if err != nil {
		return nil, err
	}
	if m.opened[f.ID()] {
		class, remedy := ondisk.ErrFormat, ""
		if e.flat() { // valid in the format
			class = ondisk.ErrUnsupported
			remedy = "; together with sparse extents trueup cannot read that; convert it first: vmware-vdiskmanager -r"
		}
		return nil, textErr(e.line, class, "extent %d (%.256q) is the same file as another extent%s", i, e.name, remedy)
	}
	m.files, m.opened[f.ID()] = append(m.files, f), true
	return f, nil
}

// openGrains opens a sparse extent of the given kind.
func openGrains(f driver.File, tabs *ondisk.Pages, kind string) (openedExtent, error) {
	switch kind {
	case vmfsSparse:
		return openCOWD(f, tabs)
	case seSparse:
		return openSESparse(f, tabs)
	}
	return openHosted(f, tabs)
}

// openHosted opens an extent of a split disk. It has the header of a single-file disk, without a descriptor.
func openHosted(f driver.File, tabs *ondisk.Pages) (*sparse, error) {
	x := &sparse{grains: grains{file: f, tabs: tabs}}
	if err := x.readHeader(); err != nil {
		return nil, err
	}
	if string(x.h.Magic[:]) != magicSparse {
		return nil, field("magic number", 0, x.h.Magic[:], fmt.Sprintf("%q", magicSparse))
	}
	if x.h.Flags&(flagCompressed|flagMarkers) != 0 {
		return nil, field("flags", atFlags, fmt.Sprintf("%#x", x.h.Flags),
			"no compressed grains in an extent of a split disk")
	}
	if err := x.h.check(f.Size()); err != nil {
		return nil, err
	}
	x.layOut()
	return x, x.refuseOwnText()
}

// refuseOwnText returns an error for an extent with its own descriptor, which is a disk in itself, perhaps with a
// parent. qemu-img reserves space for a descriptor in every extent, and leaves it empty.
func (x *sparse) refuseOwnText() error {
	if x.h.DescriptorOffset == 0 || x.h.DescriptorSize == 0 {
		return nil
	}
	head, err := ondisk.Bytes(x.file, ondisk.I64(x.h.DescriptorOffset)*units.SectorSize, units.SectorSize)
	if err == nil && isDescriptor(head) {
		err = field("descriptor offset", atDesc, x.h.DescriptorOffset, "no descriptor inside an extent of a split disk")
	}
	return err
}

func (x *sparse) unclean() *ondisk.Issue {
	if x.h.UncleanShutdown == 0 {
		return nil
	}
	at := int64(atUnclean)
	if x.mixed {
		at = atCOWDUnclean
	}
	return new(unclean(fmt.Sprintf("the extent %.256q", x.file.Name()), at, x.h.UncleanShutdown))
}

// run maps a disk offset to the extent and to the grain in it.
func (m *extentMap) run(off int64) (disk.Run, error) {
	p := m.pieces[disk.Behind(m.pieces, off)]
	run, err := p.x.run(off - p.Off)
	if err != nil {
		return run, fmt.Errorf("extent %.256q: %w", p.name, err)
	}
	run.Len = min(run.Len, p.End()-off)
	return run, nil
}

func (m *extentMap) check() ([]ondisk.Issue, error) {
	f := &faults{}
	for _, p := range m.pieces {
		f.File = p.name
		if err := p.x.check(f); err != nil {
			return nil, fmt.Errorf("extent %.256q: %w", p.name, err)
		}
	}
	return f.issues(), nil
}

// unclean returns one issue for all extents that were not closed cleanly.
func (m *extentMap) unclean() []ondisk.Issue {
	var first *ondisk.Issue
	n := 0
	for _, p := range m.pieces {
		if i := p.x.unclean(); i != nil {
			if n++; n == 1 {
				first = i
			}
		}
	}
	if n == 0 {
		return nil
	}
	if n > 1 {
		first.Text += fmt.Sprintf("; so were %d more of its extents", n-1)
	}
	return []ondisk.Issue{*first}
}
