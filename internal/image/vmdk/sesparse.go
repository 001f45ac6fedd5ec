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

// seExtent is an opened space-efficient sparse extent. Places are in bytes.
type seExtent struct {
	file             driver.File
	tabs             *ondisk.Pages
	bytes            int64 // of the disk
	gd, gts, grains0 int64 // begin of the directory, of the grain tables, of the grains
	holed
}

func (x *seExtent) size() int64            { return x.bytes }
func (x *seExtent) unclean() *ondisk.Issue { return nil } // refused when it is opened

// tables returns the number of grain tables that the directory has entries for.
func (x *seExtent) tables() int64 { return (x.bytes + seCovers - 1) / seCovers }

// run returns the map: directory entry, table entry, grain.
func (x *seExtent) run(off int64) (disk.Run, error) {
	loc, zeros, err := x.table(off / seCovers)
	if err != nil {
		return disk.Run{}, err
	}
	if loc == 0 {
		return x.hole(off, zeros*seCovers-off%seCovers), nil
	}
	first := off % seCovers / seGrainBytes
	entries := make([]byte,
		8*min(seGTEs-first, (x.bytes+seGrainBytes-1-off/seGrainBytes*seGrainBytes)/seGrainBytes, maxEntries))
	if err := x.tabs.Read(entries, loc+8*first); err != nil {
		return disk.Run{}, err
	}
	return x.join(entries, loc+8*first, off)
}

// table returns the byte offset of a grain table, or 0 and the number of absent tables from there on.
func (x *seExtent) table(i int64) (loc, zeros int64, err error) {
	at := x.gd + 8*i
	entry, err := x.tabs.U64(at)
	if err != nil {
		return 0, 0, err
	}
	if entry != 0 {
		loc, err = x.tableAt(entry, at)
		return loc, 0, err
	}
	n := 8 * min(gdScan, x.tables()-i)
	zeros, err = x.tabs.Zeros(at, n)
	if err == nil && zeros == n {
		zeros += 8 * emptyEntries(x.file, at+n, x.gd+8*x.tables(), 8)
	}
	return 0, zeros / 8, err
}

// tableAt finds the grain table that a directory entry names by its number. at is the byte offset of the entry.
func (x *seExtent) tableAt(entry uint64, at int64) (int64, error) {
	loc := x.gts + int64(entry&math.MaxUint32)*seTableBytes
	gd := disk.Range{Off: x.gd, Len: 8 * x.tables()}
	end := x.file.Size()
	if x.grains0 > x.gts {
		end = min(end, x.grains0)
	}
	if entry>>32 != seGTAllocated || loc > end-seTableBytes || gd.Overlaps(disk.Range{Off: loc, Len: seTableBytes}) {
		return 0, ondisk.Field("vmdk grain directory", "entry", at, fmt.Sprintf("%#x", entry),
			fmt.Sprintf("0, or 0x10000000 and the number of a grain table that ends before byte %d and outside "+
				"of the directory", end))
	}
	return loc, nil
}

// place returns the byte offset of the grain that an entry names; stored is false when it is zeros, or a hole. at is
// the byte offset of the entry.
func (x *seExtent) place(entry uint64, at int64) (off int64, stored bool, err error) {
	kind := entry & seTop
	switch {
	case entry == seAbsent, kind == seUnmapped, kind == seZero:
		return 0, false, nil
	case kind == seStored:
		// The upper 12 bits of the number stand below the lower 48.
		n := entry&0x0fff000000000000>>48 | entry&0x0000ffffffffffff<<12
		if n < ondisk.U64(max(0, x.file.Size()-x.grains0)/seGrainBytes) {
			return x.grains0 + ondisk.I64(n)*seGrainBytes, true, nil
		}
	}
	return 0, false, ondisk.Field("vmdk grain table", "entry", at, fmt.Sprintf("%#x", entry),
		fmt.Sprintf("0, a mark of zeros (0x1… or 0x2…), or 0x3… and a grain inside the file of %d bytes",
			x.file.Size()))
}

// join makes one run of the entries that continue the first. at is the byte offset of the first entry.
func (x *seExtent) join(entries []byte, at, off int64) (disk.Run, error) {
	entry := func(i int64) uint64 { return binary.LittleEndian.Uint64(entries[8*i:]) }
	into := off % seGrainBytes
	first, stored, err := x.place(entry(0), at)
	if err != nil {
		return disk.Run{}, err
	}
	isHole := entry(0) == seAbsent
	n := int64(1)
	for ; int(8*n) < len(entries); n++ {
		// An entry that is malformed does not spoil those in front of it.
		next, more, err := x.place(entry(n), at+8*n)
		follows := stored && next == first+n*seGrainBytes ||
			!stored && (x.below == nil || (entry(n) == seAbsent) == isHole)
		if err != nil || more != stored || !follows {
			break
		}
	}
	size := n*seGrainBytes - into
	switch {
	case stored:
		return disk.Run{Len: size, Src: x.file, Off: first + into}, nil
	case isHole:
		return x.hole(off, size), nil
	}
	return disk.Run{Len: size}, nil
}

// seHeader is the constant header of a space-efficient sparse extent, which ESXi 6.5 and later writes for snapshots.
// Counts and offsets are in sectors. VMware has not published the format; this is what QEMU found (block/vmdk.c,
// vmdk_open_se_sparse).
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

// seVolatile is the header that changes while the extent is in use.
type seVolatile struct {
	Magic         uint64
	FreeGTNumber  uint64
	NextTxnSeqNo  uint64
	ReplayJournal uint64
	Pad           [480]byte
}

// Values that the format has always.
const (
	seMagic         = uint64(0xcafebabe)
	seVolatileMagic = uint64(0xcafecafe)
	seVersion       = 0x0000000200000001
	seGrain         = 8 // sectors
	seGrainBytes    = seGrain * 512
	seTable         = 64 // sectors
	seTableBytes    = seTable * 512
	seGTEs          = seTableBytes / 8      // entries of a grain table
	seCovers        = seGTEs * seGrainBytes // bytes of the disk that a grain table describes
	seMost          = math.MaxInt64 / 1024  // sectors: products with 512 stay far from the end of 63 bits
	seTop           = uint64(0xf) << 60     // kind of an entry
	seGTAllocated   = uint64(0x10000000)    // upper half of a directory entry
)

// Kinds of an entry of a grain table.
const (
	seAbsent   = uint64(0) << 60
	seUnmapped = uint64(1) << 60 // given back by the guest: reads as zero
	seZero     = uint64(2) << 60
	seStored   = uint64(3) << 60
)

// Byte offsets of the fields that messages name.
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
	return &seExtent{
		file: f, tabs: tabs, bytes: at(h.Capacity), gd: at(h.GrainDirOffset), gts: at(h.GrainTablesOffset),
		grains0: at(h.GrainsOffset),
	}, nil
}

// check is as strict as QEMU's: what a flag or a reserved field means is not known.
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

// checkPlaces makes sure that what is read lies inside the file and apart. The directory's size follows from the
// capacity, which is bounded by the file this way.
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
	// Tables and grains are there only as far as the disk was written; how far is seen at every entry.
	if err := p.add("grain tables offset", atSEGTs, h.GrainTablesOffset, 0); err != nil {
		return err
	}
	return p.add("grains offset", atSEGrains, h.GrainsOffset, 0)
}

// checkVolatile refuses an extent whose journal has more than the tables.
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
			"cleanly: %w yet; start and stop the machine on its host, or consolidate its snapshots there",
			at+atSEReplay, v.ReplayJournal, ondisk.ErrUnsupported)
	case !ondisk.IsZero(v.Pad[:]):
		return fmt.Errorf("vmdk seSparse volatile header at %#x: data behind the known fields: %w", at,
			ondisk.ErrUnsupported)
	}
	return nil
}

// seFaults looks for faults in one space-efficient sparse extent.
type seFaults struct {
	*faults
	x      *seExtent
	tables *ondisk.PlaceSet // by number
	grains *ondisk.PlaceSet // by number
	holes  *ondisk.Holes
	buf    []byte // the table in work
}

// check walks every grain table once.
func (x *seExtent) check(f *faults) error {
	c := &seFaults{
		faults: f, x: x, tables: ondisk.NewPlaceSet(1), grains: ondisk.NewPlaceSet(1), holes: ondisk.NewHoles(x.file),
		buf: make([]byte, seTableBytes),
	}
	if err := c.eachTable(x.tables(), x.table, c.table); err != nil {
		return err
	}
	f.partial = f.partial || c.tables.Full() || c.grains.Full()
	return nil
}

// table checks table i, which lies at loc.
func (c *seFaults) table(i, loc int64) error {
	number := (loc - c.x.gts) / seTableBytes
	if c.tables.Add(ondisk.U64(number)) {
		c.Add(takenTable, "grain directory entry %d names table %d", i, number)
		return nil
	}
	if c.holes.Has(loc, seTableBytes) {
		return nil
	}
	if err := c.x.tabs.Read(c.buf, loc); err != nil {
		return err
	}
	c.entries(i, loc)
	return nil
}

// entries looks at the entries of the table in the buffer.
func (c *seFaults) entries(table, loc int64) {
	grains := (c.x.bytes + seGrainBytes - 1) / seGrainBytes
	for j := range min(seGTEs, grains-table*seGTEs) {
		entry := binary.LittleEndian.Uint64(c.buf[8*j:])
		off, stored, err := c.x.place(entry, loc+8*j)
		switch {
		case err != nil:
			c.Add(badGrain, "%v", err)
		case stored && c.grains.Add(ondisk.U64((off-c.x.grains0)/seGrainBytes)):
			c.Add(takenGrain, "grain table entry at %#x names grain %d", loc+8*j, (off-c.x.grains0)/seGrainBytes)
		}
	}
}
