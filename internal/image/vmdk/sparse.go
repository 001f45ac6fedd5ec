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

func (x *sparse) readHeader() error {
	if n := x.file.Size(); n < units.SectorSize {
		return field("file size", 0, n, "at least 512 bytes, the size of the header")
	}
	_, err := ondisk.Decode(x.file, 0, &x.h)
	return err
}

func openSparse(s *driver.Source) (*driver.Image, error) {
	x := &sparse{grains: grains{file: s.File}}
	if err := x.readHeader(); err != nil {
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
	img.Check = func() ([]ondisk.Issue, error) {
		f := &faults{}
		err := x.check(f)
		return f.issues(), err
	}
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

// seExtent is an opened space-efficient sparse (seSparse) extent.
type seExtent struct {
	grains
	gts, grains0 int64 // byte offsets of the grain tables and of the grains
}

func (x *seExtent) unclean() *ondisk.Issue { return nil } // refused on opening

// tablePlace returns the byte offset of the grain table whose number is in a directory entry.
func (x *seExtent) tablePlace(entry uint64, at int64) (int64, error) {
	loc := x.gts + int64(entry&math.MaxUint32)*seTableBytes
	end := x.file.Size()
	if x.grains0 > x.gts {
		end = min(end, x.grains0)
	}
	if entry>>32 != seGTAllocated || loc > end-seTableBytes ||
		x.directory().Overlaps(disk.Range{Off: loc, Len: seTableBytes}) {
		return 0, ondisk.Field("vmdk grain directory", "entry", at, fmt.Sprintf("%#x", entry),
			fmt.Sprintf("0, or 0x10000000 and the number of a grain table that ends before byte %d and outside "+
				"of the directory", end))
	}
	return loc, nil
}

// state decodes a table entry.
func (x *seExtent) state(entry uint64, _, at int64) (grainState, error) {
	kind := entry & seTop
	switch {
	case entry == seAbsent:
		return grainState{}, nil
	case kind == seUnmapped, kind == seZero:
		return grainState{kind: zeroGrain}, nil
	case kind == seStored:
		// The upper 12 bits of the number are stored below the lower 48.
		n := entry&0x0fff000000000000>>48 | entry&0x0000ffffffffffff<<12
		if n < ondisk.U64(max(0, x.file.Size()-x.grains0)/seGrainBytes) {
			return grainState{storedGrain, x.grains0 + ondisk.I64(n)*seGrainBytes}, nil
		}
	}
	return grainState{}, ondisk.Field("vmdk grain table", "entry", at, fmt.Sprintf("%#x", entry),
		fmt.Sprintf("0, a mark of zeros (0x1… or 0x2…), or 0x3… and a grain inside the file of %d bytes",
			x.file.Size()))
}

// seHeader is the constant header of an seSparse extent, the snapshot format of ESXi 6.5 and later. Counts and offsets
// are in sectors. VMware has not published the format. Source: QEMU, block/vmdk.c, vmdk_open_se_sparse.
type seHeader struct {
	Magic                uint64
	Version              uint64
	Capacity             uint64
	GrainSize            uint64
	GrainTableSize       uint64
	Flags                uint64
	Reserved             [4]uint64
	VolatileHeaderOffset uint64
	VolatileHeaderSize   uint64
	JournalHeaderOffset  uint64
	JournalHeaderSize    uint64
	JournalOffset        uint64
	JournalSize          uint64
	GrainDirOffset       uint64
	GrainDirSize         uint64
	GrainTablesOffset    uint64
	GrainTablesSize      uint64
	FreeBitmapOffset     uint64
	FreeBitmapSize       uint64
	BackmapOffset        uint64
	BackmapSize          uint64
	GrainsOffset         uint64
	GrainsSize           uint64
	Pad                  [304]byte
}

// seVolatile is the header that changes during use.
type seVolatile struct {
	Magic         uint64
	FreeGTNumber  uint64
	NextTxnSeqNo  uint64
	ReplayJournal uint64
	Pad           [480]byte
}

// Fixed values of the format.
const (
	seMagic         = uint64(0xcafebabe)
	seVolatileMagic = uint64(0xcafecafe)
	seVersion       = 0x0000000200000001
	seGrain         = 8 // sectors
	seGrainBytes    = seGrain * 512
	seTable         = 64 // sectors
	seTableBytes    = seTable * 512
	seGTEs          = seTableBytes / 8      // entries of a grain table
	seCovers        = seGTEs * seGrainBytes // bytes of the disk in a grain table
	seMost          = math.MaxInt64 / 1024  // sectors; products with 512 fit into 63 bits
	seTop           = uint64(0xf) << 60     // mask of the kind of an entry
	seGTAllocated   = uint64(0x10000000)    // upper half of a directory entry
)

// Kinds of a grain table entry.
const (
	seAbsent   = uint64(0) << 60
	seUnmapped = uint64(1) << 60 // discarded by the guest, reads as zeros
	seZero     = uint64(2) << 60
	seStored   = uint64(3) << 60
)

// Byte offsets of the fields in messages.
const (
	atSEVersion   = 8
	atSECapacity  = 16
	atSEGrain     = 24
	atSETable     = 32
	atSEFlags     = 40
	atSEVolatile  = 80
	atSEGD        = 128
	atSEGDSize    = 136
	atSEGTs       = 144
	atSEGrains    = 192
	atSEReplay    = 24
	atSEReserved  = 48
	atSEHeaderEnd = 208
)

func seField(name string, at int64, got, want any) error {
	return ondisk.Field("vmdk seSparse header", name, at, got, want)
}

func openSESparse(f driver.File, tabs *ondisk.Pages) (*seExtent, error) {
	var h seHeader
	if n := f.Size(); n < units.SectorSize {
		return nil, seField("file size", 0, n, "at least 512 bytes, the size of the header")
	}
	if _, err := ondisk.Decode(f, 0, &h); err != nil {
		return nil, err
	}
	if err := h.check(); err != nil {
		return nil, err
	}
	if err := h.checkPlaces(f.Size()); err != nil {
		return nil, err
	}
	if err := checkVolatile(f, ondisk.I64(h.VolatileHeaderOffset)*units.SectorSize); err != nil {
		return nil, err
	}
	at := func(sector uint64) int64 { return ondisk.I64(sector) * units.SectorSize }
	x := &seExtent{gts: at(h.GrainTablesOffset), grains0: at(h.GrainsOffset)}
	x.grains = grains{
		file: f, tabs: tabs, entries: x, bytes: at(h.Capacity), grain: seGrainBytes, width: 8, perTable: seGTEs,
		gd: at(h.GrainDirOffset), data: noData,
	}
	return x, nil
}

// check is as strict as QEMU, since the flags and the reserved fields are undocumented.
func (h *seHeader) check() error {
	switch {
	case h.Magic != seMagic:
		return seField("magic number", 0, fmt.Sprintf("%#x", h.Magic), fmt.Sprintf("%#x", seMagic))
	case h.Version != seVersion:
		return seField("version", atSEVersion, fmt.Sprintf("%#x", h.Version), fmt.Sprintf("%#x", uint64(seVersion)))
	case h.Capacity == 0 || h.Capacity > seMost:
		return seField("capacity", atSECapacity, h.Capacity, fmt.Sprintf("1 to %d sectors", int64(seMost)))
	case h.GrainSize != seGrain:
		return seField("grain size", atSEGrain, h.GrainSize, fmt.Sprintf("%d sectors", seGrain))
	case h.GrainTableSize != seTable:
		return seField("grain table size", atSETable, h.GrainTableSize, fmt.Sprintf("%d sectors", seTable))
	case h.Flags != 0:
		return fmt.Errorf("vmdk seSparse header at %#x: flags %#x: %w, known are none", atSEFlags, h.Flags,
			ondisk.ErrUnsupported)
	case h.Reserved != [4]uint64{}:
		return fmt.Errorf("vmdk seSparse header at %#x: reserved fields %#x: %w, known are zeros", atSEReserved,
			h.Reserved, ondisk.ErrUnsupported)
	case !ondisk.IsZero(h.Pad[:]):
		return fmt.Errorf("vmdk seSparse header at %#x: data behind the known fields: %w", atSEHeaderEnd,
			ondisk.ErrUnsupported)
	}
	return nil
}

// checkPlaces checks that headers and tables lie inside the file without overlapping. The directory size follows from
// the capacity, so the file size bounds the capacity.
func (h *seHeader) checkPlaces(fileSize int64) error {
	tables := units.AlignUp(ondisk.I64(h.Capacity)*units.SectorSize, seCovers) / seCovers
	if need := sectorsFor(8 * tables); h.GrainDirSize < ondisk.U64(need) {
		return seField("grain directory size", atSEGDSize, h.GrainDirSize,
			fmt.Sprintf("at least %d sectors for %d tables", need, tables))
	}
	p := newPlaces("vmdk seSparse header", fileSize, units.SectorSize)
	if err := p.add("volatile header offset", atSEVolatile, h.VolatileHeaderOffset, units.SectorSize); err != nil {
		return err
	}
	if err := p.add("grain directory offset", atSEGD, h.GrainDirOffset, 8*tables); err != nil {
		return err
	}
	// The file holds tables and grains only up to the last write, so each entry is checked on its own.
	if err := p.add("grain tables offset", atSEGTs, h.GrainTablesOffset, 0); err != nil {
		return err
	}
	return p.add("grains offset", atSEGrains, h.GrainsOffset, 0)
}

// checkVolatile returns an error for an extent with unreplayed journal entries.
func checkVolatile(f driver.File, at int64) error {
	var v seVolatile
	if _, err := ondisk.Decode(f, at, &v); err != nil {
		return err
	}
	switch {
	case v.Magic != seVolatileMagic:
		return ondisk.Field("vmdk seSparse volatile header", "magic number", at, fmt.Sprintf("%#x", v.Magic),
			fmt.Sprintf("%#x", seVolatileMagic))
	case v.ReplayJournal != 0:
		return fmt.Errorf("vmdk seSparse volatile header at %#x: replay_journal is %d, the extent was not closed "+
			"cleanly: %w; start and stop the machine on its host, or consolidate its snapshots there",
			at+atSEReplay, v.ReplayJournal, ondisk.ErrUnsupported)
	case !ondisk.IsZero(v.Pad[:]):
		return fmt.Errorf("vmdk seSparse volatile header at %#x: data behind the known fields: %w", at,
			ondisk.ErrUnsupported)
	}
	return nil
}
