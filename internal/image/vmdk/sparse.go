package vmdk

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// sparse is an opened sparse extent of a hosted product. It is also used for COWD extents of ESX, with the header
// converted.
type sparse struct {
	grains
	h sparseHeader
}

// layOut sets offsets and sizes from a validated header.
func (x *sparse) layOut() {
	x.entries, x.width, x.perTable = x, 4, x.h.gtes()
	x.bytes, x.grain = ondisk.I64(x.h.Capacity)*units.SectorSize, x.h.grainBytes()
	x.gd = ondisk.I64(x.h.GDOffset) * units.SectorSize
	x.data = min(ondisk.I64(min(x.h.OverHead, math.MaxUint32))*units.SectorSize, x.file.Size())
	if x.h.redundant() {
		x.mirror = ondisk.I64(x.h.RGDOffset) * units.SectorSize
	}
}

// tablePlace returns the byte offset of the grain table whose sector is in a directory entry.
func (x *sparse) tablePlace(entry uint64, at int64) (int64, error) {
	loc := ondisk.I64(entry) * units.SectorSize
	if loc > x.file.Size()-x.h.gtBytes() || x.directory().Overlaps(disk.Range{Off: loc, Len: x.h.gtBytes()}) {
		return 0, ondisk.Field("vmdk grain directory", "entry", at, entry,
			fmt.Sprintf("0, or the sector of a grain table inside the file of %d bytes and outside the directory",
				x.file.Size()))
	}
	return loc, nil
}

// state decodes the table entry of a grain.
func (x *sparse) state(entry uint64, grain, at int64) (grainState, error) {
	switch {
	case entry == 0:
		return grainState{}, nil
	case entry == 1 && x.h.Flags&flagZeroGrain != 0:
		return grainState{kind: zeroGrain}, nil
	}
	return grainState{storedGrain, ondisk.I64(entry) * units.SectorSize}, x.checkGrain(entry, grain, at)
}

// checkGrain checks that a grain at a sector lies in the file behind the metadata. The last grain may be cut at the
// capacity.
func (x *sparse) checkGrain(sector uint64, grain, at int64) error {
	size := x.h.cut(grain)
	if x.h.packed() {
		size = grainMarker // the size of the data is in the marker
	}
	off := ondisk.I64(sector) * units.SectorSize
	past := size > x.file.Size()-off
	if !past && sector >= x.h.OverHead {
		return nil // avoid building a message for millions of valid grains
	}
	want := fmt.Sprintf("0, or at least %d, behind the metadata", x.h.OverHead)
	if past {
		want = fmt.Sprintf("a grain of %d bytes that ends inside the file (%d bytes)", size, x.file.Size())
	}
	return &ondisk.FormatError{
		What: "vmdk grain table", Off: at, Field: "entry", Got: sector, Past: past, Want: want,
	}
}

func openSparse(s *driver.Source) (*driver.Image, error) {
	x := &sparse{grains: grains{file: s.File}}
	if n := s.File.Size(); n < units.SectorSize {
		return nil, field("file size", 0, n, "at least 512 bytes, the size of the header")
	}
	if _, err := ondisk.Decode(s.File, 0, &x.h); err != nil {
		return nil, err
	}
	if x.h.Capacity == 0 && x.h.DescriptorOffset != 0 {
		// A header without data, whose descriptor lists extents, follows the rules of a descriptor file.
		d, err := x.descriptor()
		if err != nil {
			return nil, err
		}
		return openDescriptor(s, d)
	}
	if err := x.h.check(s.File.Size()); err != nil {
		return nil, err
	}
	if err := x.readFooter(); err != nil {
		return nil, err
	}
	x.layOut()
	if x.tabs = ondisk.NewPages(s.File, s.Memory(tableCache)); x.h.packed() {
		x.unpacked, x.data = driver.NewUnpacked(s.Memory(unpackedCache), x.grain, x.unpack), noData
		x.marker = x.grainAt
	}
	d, err := x.ownDescriptor()
	if err != nil {
		return nil, err
	}
	parent, err := d.openParent(s)
	if err != nil {
		return nil, err
	}
	x.below = over(parent, 0)
	d = d.inherit(parent)
	img, err := x.h.image(d, disk.New(x.size(), d.sectorSize(), x.run))
	if err != nil {
		return nil, err
	}
	img.Check = x.checkTables
	return img, nil
}

// image returns the image of a sparse file with header and descriptor.
func (h *sparseHeader) image(d *descriptor, dk disk.Disk) (*driver.Image, error) {
	img, err := image(d, h.subformat(), dk)
	if err != nil {
		return nil, err
	}
	img.Details = append(img.Details, driver.Detail{Name: "grain size", Value: units.Format(h.grainBytes())})
	img.Template, img.ReadOnly = &template{d, ondisk.I64(h.GrainSize)}, h.packed()
	if h.UncleanShutdown != 0 {
		img.Issues = append(img.Issues, unclean("the sparse VMDK", atUnclean, h.UncleanShutdown))
	}
	return img, nil
}

// unclean returns the issue of a file that was not closed cleanly.
func unclean(name string, at int64, mark any) ondisk.Issue {
	return ondisk.Issue{
		Code: "vmdk-unclean", Effect: ondisk.Refuse, Err: ondisk.ErrBusy,
		Text: fmt.Sprintf("%s was not closed cleanly (uncleanShutdown at %#x is %d): its tables may be stale", name,
			at, mark),
		Remedy: "close the program that has it open, or repair it with vmware-vdiskmanager -R",
	}
}

func (x *sparse) descriptor() (*descriptor, error) {
	if x.h.DescriptorSize > maxText/uint64(units.SectorSize) {
		return nil, fmt.Errorf("vmdk sparse header at %#x: descriptor size of %d sectors: %w of %d bytes", atDescLen,
			x.h.DescriptorSize, ondisk.ErrLimit, maxText)
	}
	if x.h.DescriptorOffset > ondisk.U64(x.file.Size()/units.SectorSize) {
		return nil, field("descriptor offset", atDesc, x.h.DescriptorOffset,
			fmt.Sprintf("a sector of the file of %d bytes", x.file.Size()))
	}
	text, err := ondisk.Bytes(x.file, ondisk.I64(x.h.DescriptorOffset)*units.SectorSize,
		ondisk.I64(x.h.DescriptorSize)*units.SectorSize)
	if err != nil {
		return nil, err
	}
	return parseDescriptor(text)
}

// ownDescriptor parses the embedded descriptor and checks it against the header. It ignores the file name in the extent
// line, which is outdated after users rename the file.
func (x *sparse) ownDescriptor() (*descriptor, error) {
	if x.h.DescriptorOffset == 0 {
		return nil, lone("sparse extent of a split disk (no descriptor inside)")
	}
	d, err := x.descriptor()
	if err != nil {
		return nil, err
	}
	return d, x.h.checkText(d)
}

// checkText checks the embedded descriptor against the header.
func (h *sparseHeader) checkText(d *descriptor) error {
	kind, no := d.get("createtype")
	if want := h.subformat(); kind != want {
		if kind == "" && len(d.extents) == 0 {
			return lone("sparse extent of a split disk (its descriptor is empty)")
		}
		if kind == vsanSparse {
			return unsupported(kind)
		}
		return textErr(no, ondisk.ErrFormat, "createType %.64q, want %s in the descriptor of this sparse file", kind,
			want)
	}
	if len(d.extents) != 1 || d.extents[0].kind != "SPARSE" {
		return ondisk.Field(descriptorName, "extents", 0, len(d.extents), "one SPARSE extent")
	}
	if got := d.extents[0].size; got != ondisk.I64(h.Capacity)*units.SectorSize {
		return textErr(d.extents[0].line, ondisk.ErrFormat,
			"extent of %d sectors, but the capacity in the header is %d", got/units.SectorSize, h.Capacity)
	}
	return nil
}

// cowdHeader is the header of a sparse extent of ESX (COWD), also used by Workstation 3. Counts and offsets are in
// sectors. Spec: Virtual Disk Format 1.1, "ESX Server Sparse Extents".
type cowdHeader struct {
	Magic           [4]byte // "COWD"
	Version         uint32
	Flags           uint32
	NumSectors      uint32
	GrainSize       uint32
	GDOffset        uint32
	NumGDEntries    uint32
	FreeSector      uint32
	_               [1028]byte // geometry of a root, or name and generation of the parent of a child
	_               uint32     // generation
	_               [60]byte   // name
	_               [512]byte  // description
	SavedGeneration uint32
	_               [8]byte
	UncleanShutdown uint32
	_               [396]byte
}

// Byte offsets of the fields in messages.
const (
	atCOWDGrain   = 16
	atCOWDGD      = 20
	atCOWDNumGDE  = 24
	atCOWDUnclean = 1648
)

const (
	cowdGTEs   = 4096 // entries of a grain table
	cowdRoot   = 1 << 0
	cowdChecks = 1 << 1 // the other flag set by ESX
)

func cowdField(name string, at int64, got, want any) error {
	return ondisk.Field("vmdk COWD header", name, at, got, want)
}

// openCOWD opens an extent of ESX. It differs from a hosted extent in its header and table size, and its tables lie
// between the grains.
func openCOWD(f driver.File, tabs *ondisk.Pages) (*sparse, error) {
	var h cowdHeader
	size := int64(binary.Size(h))
	if f.Size() < size {
		return nil, cowdField("file size", 0, f.Size(), fmt.Sprintf("at least %d bytes, the size of the header", size))
	}
	if _, err := ondisk.Decode(f, 0, &h); err != nil {
		return nil, err
	}
	x := &sparse{grains: grains{file: f, tabs: tabs, mixed: true}}
	x.h = sparseHeader{
		Capacity: uint64(h.NumSectors), GrainSize: uint64(h.GrainSize), NumGTEsPerGT: cowdGTEs,
		GDOffset: uint64(h.GDOffset),
	}
	if err := h.check(); err != nil {
		return nil, err
	}
	if int64(h.NumGDEntries) < x.h.tables() {
		return nil, cowdField("numGDEntries", atCOWDNumGDE, h.NumGDEntries,
			fmt.Sprintf("at least %d for %d sectors", x.h.tables(), h.NumSectors))
	}
	gdBytes := 4 * int64(h.NumGDEntries)
	if err := newPlaces("vmdk COWD header", f.Size(), size).add("gdOffset", atCOWDGD, x.h.GDOffset,
		gdBytes); err != nil {
		return nil, err
	}
	x.h.OverHead = x.h.GDOffset + ondisk.U64(sectorsFor(gdBytes))
	if h.UncleanShutdown != 0 {
		x.h.UncleanShutdown = 1
	}
	x.layOut()
	x.data = noData // ESX allocates space in advance
	return x, nil
}

func (h *cowdHeader) check() error {
	switch {
	case string(h.Magic[:]) != magicCOWD:
		return cowdField("magic number", 0, h.Magic[:], fmt.Sprintf("%q", magicCOWD))
	case h.Version != 1:
		return cowdField("version", atVersion, h.Version, 1)
	case h.Flags&^uint32(cowdRoot|cowdChecks) != 0:
		return fmt.Errorf("vmdk COWD header at %#x: flags %#x: %w, known are 0x3", atFlags, h.Flags,
			ondisk.ErrUnsupported)
	case h.Flags&cowdRoot == 0:
		return fmt.Errorf("vmdk COWD header at %#x: flags %#x of a child with its parent in the header: %w, the "+
			"descriptor must name the parent", atFlags, h.Flags, ondisk.ErrUnsupported)
	case h.NumSectors == 0:
		return cowdField("numSectors", atCap, h.NumSectors, "at least 1")
	case h.GrainSize < 1 || h.GrainSize > maxGrain || !units.IsPowerOfTwo(int64(h.GrainSize)):
		return cowdField("grainSize", atCOWDGrain, h.GrainSize,
			fmt.Sprintf("a power of two from 1 to %d sectors", maxGrain))
	}
	return nil
}
