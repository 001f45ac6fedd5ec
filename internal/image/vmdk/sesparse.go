package vmdk

import (
	"fmt"
	"math"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

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

// checkVolatile rejects an extent with unreplayed journal entries.
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
