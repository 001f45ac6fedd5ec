package vmdk

import (
	"fmt"
	"math"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// sparseHeader is the first sector of a sparse extent; counts and offsets are in sectors. Spec: Virtual Disk Format
// 1.1, "Hosted Sparse Extents".
type sparseHeader struct {
	Magic            [4]byte // "KDMV"
	Version          uint32
	Flags            uint32
	Capacity         uint64
	GrainSize        uint64
	DescriptorOffset uint64
	DescriptorSize   uint64
	NumGTEsPerGT     uint32
	RGDOffset        uint64
	GDOffset         uint64
	OverHead         uint64
	UncleanShutdown  uint8
	NewLine          [4]byte // "\n \r\n", damaged by a transfer in text mode
	CompressAlgo     uint16
	_                [433]byte
}

// Flags of the header.
const (
	flagNewLine    = 1 << 0  // NewLine is valid
	flagRedundant  = 1 << 1  // RGDOffset is valid
	flagZeroGrain  = 1 << 2  // entry 1 is a grain of zeros (version 2 and later)
	flagCompressed = 1 << 16 // streamOptimized
	flagMarkers    = 1 << 17 // streamOptimized
	flagsKnown     = flagNewLine | flagRedundant | flagZeroGrain | flagCompressed | flagMarkers
)

// Byte offsets of the fields in messages.
const (
	atVersion  = 4
	atFlags    = 8
	atCap      = 12
	atGrain    = 20
	atDesc     = 28
	atDescLen  = 36
	atGTEs     = 44
	atRGD      = 48
	atGD       = 56
	atOverHead = 64
	atUnclean  = 72
	atNewLine  = 73
	atCompress = 77
)

const (
	gtes       = 512 // entries of a grain table, fixed by the specification
	gtBytes    = 4 * gtes
	minGrain   = 8    // sectors
	maxGrain   = 2048 // sectors
	gdAtEnd    = math.MaxUint64
	deflate    = 1       // the only compressAlgorithm
	tableCache = 4 << 20 // bytes of tables kept in memory
)

func field(name string, at int64, got, want any) error {
	return ondisk.Field("vmdk sparse header", name, at, got, want)
}

// check validates the header. fileSize is in bytes.
func (h *sparseHeader) check(fileSize int64) error {
	const most = math.MaxInt64 / uint64(units.SectorSize)
	switch {
	case h.Version < 1 || h.Version > 3:
		return field("version", atVersion, h.Version, "1 to 3")
	case h.Flags&flagNewLine != 0 && h.NewLine != [4]byte{'\n', ' ', '\r', '\n'}:
		return field("newline test", atNewLine, h.NewLine[:], "0a 20 0d 0a (the file was damaged by a transfer "+
			"in text mode)")
	case h.Flags&^uint32(flagsKnown) != 0:
		return fmt.Errorf("vmdk sparse header at %#x: flags %#x: %w, known are %#x", atFlags, h.Flags,
			ondisk.ErrUnsupported, flagsKnown)
	case h.Capacity == 0 || h.Capacity > most:
		return field("capacity", atCap, h.Capacity, fmt.Sprintf("1 to %d sectors", most))
	case h.GrainSize < minGrain || h.GrainSize > maxGrain || !units.IsPowerOfTwo(ondisk.I64(h.GrainSize)):
		return field("grain size", atGrain, h.GrainSize,
			fmt.Sprintf("a power of two from %d to %d sectors", minGrain, maxGrain))
	case h.NumGTEsPerGT != gtes:
		return field("numGTEsPerGT", atGTEs, h.NumGTEsPerGT, gtes)
	}
	if err := h.checkCompression(); err != nil {
		return err
	}
	return h.checkPlaces(fileSize)
}

// checkCompression requires both flags of streamOptimized and the algorithm, or none of them.
func (h *sparseHeader) checkCompression() error {
	markers := h.Flags&flagMarkers != 0
	switch {
	case h.packed() && h.CompressAlgo != deflate:
		return field("compressAlgorithm", atCompress, h.CompressAlgo,
			"1 (deflate) while the compressed flag (bit 16 of flags) is set")
	case !h.packed() && h.CompressAlgo != 0:
		return field("compressAlgorithm", atCompress, h.CompressAlgo,
			"0 while the compressed flag (bit 16 of flags) is clear")
	case !h.packed() && markers:
		return field("flags", atFlags, fmt.Sprintf("%#x", h.Flags),
			"the compressed flag (bit 16) beside that of markers (bit 17)")
	case h.packed() && !markers:
		return unsupported("with compressed grains that have no markers (bit 17 of flags is clear)")
	case !h.packed() && h.GDOffset == gdAtEnd:
		return field("grain directory offset", atGD, h.GDOffset,
			"a sector: only a file of compressed grains (bit 16 of flags) has its directory at the end")
	}
	return nil
}

// checkPlaces checks that descriptor and directories lie inside the file without overlapping. The directory size
// follows from the capacity, so the file size bounds the capacity.
func (h *sparseHeader) checkPlaces(fileSize int64) error {
	p := newPlaces("vmdk sparse header", fileSize, units.SectorSize)
	if h.DescriptorOffset != 0 {
		if h.DescriptorSize > maxText/uint64(units.SectorSize) {
			return fmt.Errorf("vmdk sparse header at %#x: descriptor size of %d sectors: %w of %d bytes", atDescLen,
				h.DescriptorSize, ondisk.ErrLimit, maxText)
		}
		if err := p.add("descriptor offset", atDesc, h.DescriptorOffset,
			ondisk.I64(h.DescriptorSize)*units.SectorSize); err != nil {
			return err
		}
	}
	if h.redundant() {
		if err := p.add("redundant grain directory offset", atRGD, h.RGDOffset, h.gdBytes()); err != nil {
			return err
		}
	}
	if h.GDOffset == gdAtEnd {
		return nil // its offset is in the footer
	}
	return p.add("grain directory offset", atGD, h.GDOffset, h.gdBytes())
}

// packed reports whether grains are compressed, as in a streamOptimized file.
func (h *sparseHeader) packed() bool { return h.Flags&flagCompressed != 0 }

func (h *sparseHeader) subformat() string {
	if h.packed() {
		return streamOptimized
	}
	return monolithicSparse
}

// places collects the ranges of a file to which its header refers.
type places struct {
	what     string
	fileSize int64
	taken    []place
}

type place struct {
	name string
	disk.Range
}

// newPlaces returns the used ranges of a file that so far has only its header, of the given size in bytes.
func newPlaces(what string, fileSize, header int64) *places {
	return &places{what, fileSize, []place{{"header", disk.Range{Len: header}}}}
}

// add checks that n bytes from a sector on lie inside the file and do not overlap previous ranges. name and at are the
// header field and its byte offset.
func (p *places) add(name string, at int64, sector uint64, n int64) error {
	past := sector > ondisk.U64(p.fileSize/units.SectorSize) || n > p.fileSize-ondisk.I64(sector)*units.SectorSize
	bad := func(want string) error {
		return &ondisk.FormatError{What: p.what, Off: at, Field: name, Got: sector, Want: want, Past: past}
	}
	if sector == 0 || past {
		return bad(fmt.Sprintf("a sector from which %d bytes fit into the file of %d bytes", n, p.fileSize))
	}
	r := disk.Range{Off: ondisk.I64(sector) * units.SectorSize, Len: n}
	for _, o := range p.taken {
		if o.Overlaps(r) {
			return bad("a place apart from the " + o.name)
		}
	}
	p.taken = append(p.taken, place{name, r})
	return nil
}

func (h *sparseHeader) redundant() bool   { return h.Flags&flagRedundant != 0 && h.RGDOffset != 0 }
func (h *sparseHeader) grainBytes() int64 { return ondisk.I64(h.GrainSize) * units.SectorSize }

// grains returns the number of grains, of which the last may be partial.
func (h *sparseHeader) grains() int64 {
	return ondisk.I64((h.Capacity + h.GrainSize - 1) / h.GrainSize)
}

// gtes returns the number of entries of a grain table.
func (h *sparseHeader) gtes() int64 { return int64(h.NumGTEsPerGT) }

// gtBytes returns the size of a grain table.
func (h *sparseHeader) gtBytes() int64 { return 4 * h.gtes() }

// tables returns the number of grain tables, equal to the number of directory entries.
func (h *sparseHeader) tables() int64  { return (h.grains() + h.gtes() - 1) / h.gtes() }
func (h *sparseHeader) gdBytes() int64 { return 4 * h.tables() }
