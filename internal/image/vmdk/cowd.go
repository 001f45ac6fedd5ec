package vmdk

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// cowdHeader is the start of a sparse extent of ESX; counts and offsets are in sectors. Spec: Virtual Disk Format
// 1.1, "ESX Server Sparse Extents". The disks of Workstation 3 have the same header.
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

// Byte offsets of the fields that messages name.
const (
	atCOWDGrain   = 16
	atCOWDGD      = 20
	atCOWDNumGDE  = 24
	atCOWDUnclean = 1648
)

const (
	cowdGTEs   = 4096 // entries of a grain table
	cowdRoot   = 1 << 0
	cowdChecks = 1 << 1 // the other flag that ESX sets
)

func cowdField(name string, at int64, got, want any) error {
	return ondisk.Field("vmdk COWD header", name, at, got, want)
}

// openCOWD opens an extent of ESX. Beside the header it differs from the hosted kind in the size of its tables, which
// lie among the grains.
func openCOWD(f driver.File, tabs *ondisk.Pages) (*sparse, error) {
	var h cowdHeader
	size := int64(binary.Size(h))
	if f.Size() < size {
		return nil, cowdField("file size", 0, f.Size(), fmt.Sprintf("at least %d bytes, the size of the header", size))
	}
	if _, err := ondisk.Decode(f, 0, &h); err != nil {
		return nil, err
	}
	x := &sparse{file: f, tabs: tabs, cowd: true, gd: int64(h.GDOffset) * units.SectorSize}
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
		return fmt.Errorf("vmdk COWD header at %#x: flags %#x of a child whose parent stands in the header: %w, want "+
			"the descriptor to name the parent",
			atFlags, h.Flags, ondisk.ErrUnsupported)
	case h.NumSectors == 0:
		return cowdField("numSectors", atCap, h.NumSectors, "at least 1")
	case h.GrainSize < 1 || h.GrainSize > maxGrain || !units.IsPowerOfTwo(int64(h.GrainSize)):
		return cowdField("grainSize", atCOWDGrain, h.GrainSize,
			fmt.Sprintf("a power of two from 1 to %d sectors", maxGrain))
	}
	return nil
}
