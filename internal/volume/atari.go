package volume

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// atariRootSector finds the root sector of AHDI. It has no mark: sector 0 has no magic number, and its checksum need
// not be right.
var atariRootSector = Prober{
	Kinds: []Traits{{Kind: Atari, Slices: "Atari root sector", Foreign: true}},
	Probe: probeAtari,
}

// atariRoot is the root sector of AHDI. Big-endian. Spec: Atari, "AHDI 3.00 Release Notes"; Linux,
// block/partitions/atari.h.
type atariRoot struct {
	_       [atariSectors]byte
	Sectors uint32 // of the disk
	Parts   [4]atariPart
	_       [10]byte
}

type atariPart struct {
	Flag    uint8 // bit 0: it exists
	ID      [3]byte
	Start   uint32 // sectors
	Sectors uint32
}

// atariIDs are the types that identify a root sector. Three letters are weak evidence, so that others are not accepted.
var atariIDs = []string{"GEM", "BGM", "XGM", "RAW", "LNX", "SWP", "MIX", "UNX", "F32", "MAC", "QWA"}

const (
	atariWhat    = "atari root sector"
	atariSectors = 0x1c2
	atariMap     = 0x1c6
	atariMore    = "XGM" // a chain of further partitions
)

func probeAtari(d disk.Disk) (*Volume, error) {
	sectors := ondisk.U64(d.Size() / units.SectorSize)
	b, err := ReadBlock(d, atariSectors, 4)
	if err != nil {
		return nil, err
	}
	if n := binary.BigEndian.Uint32(b); n == 0 || uint64(n) > sectors {
		return nil, ondisk.ErrNoMatch
	}
	r, err := readAtari(d, 0)
	if err != nil {
		return nil, err
	}
	v, used := newTable(Atari, d), false
	for i, p := range r.Parts {
		switch {
		case p.Flag&1 == 0:
			continue
		case !slices.Contains(atariIDs, string(p.ID[:])) || p.Sectors == 0 ||
			uint64(p.Start)+uint64(p.Sectors) > sectors ||
			p.Start == 0:
			return nil, ondisk.ErrNoMatch
		}
		used = true
		if string(p.ID[:]) != atariMore {
			atari(v, p, 0, i)
		} else if err := atariChain(v, d, p.Start); err != nil {
			return v, err
		}
	}
	if !used {
		return nil, ondisk.ErrNoMatch
	}
	return v, nil
}

func readAtari(d disk.Disk, sector int64) (*atariRoot, error) {
	r := &atariRoot{}
	_, err := Superblock(d, sector*units.SectorSize, binary.BigEndian, r)
	return r, err
}

// atari adds partition i of the root sector base, from which its start counts.
func atari(v *Volume, p atariPart, base int64, i int) {
	start := base*units.SectorSize + blocks(p.Start, units.SectorSize)
	entry(v, atariWhat, base*units.SectorSize+atariMap+12*int64(i), Part{
		Name: strconv.Itoa(len(v.Parts) + 1), Kind: fmt.Sprintf("%q", p.ID[:])[1:4],
		Start: start, Size: blocks(p.Sectors, units.SectorSize),
	})
}

// atariChain follows the further partitions. In each root sector a partition counts from that sector, and the next root
// sector from the first.
func atariChain(v *Volume, d disk.Disk, first uint32) error {
	var seen []int64
	for at := int64(first); ; {
		bad := func(got any) error {
			return ondisk.Field(atariWhat, "chain", at*units.SectorSize, got,
				fmt.Sprintf("one partition and at most one link in each of at most %d sectors", maxEntries))
		}
		if slices.Contains(seen, at) || len(seen) == maxEntries || at >= 1<<32 {
			return bad(at)
		}
		seen = append(seen, at)
		r, err := readAtari(d, at)
		if errors.Is(err, ondisk.ErrNoMatch) {
			return bad("no sector")
		}
		if err != nil {
			return err
		}
		next := int64(-1)
		for i, p := range r.Parts {
			switch {
			case p.Flag&1 == 0:
			case string(p.ID[:]) == atariMore:
				next = int64(first) + int64(p.Start)
			case slices.Contains(atariIDs, string(p.ID[:])):
				atari(v, p, at, i)
			default:
				return bad(fmt.Sprintf("%q", p.ID[:]))
			}
		}
		if next < 0 {
			return nil
		}
		at = next
	}
}
