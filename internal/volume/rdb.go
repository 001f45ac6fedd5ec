package volume

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// rdb finds the rigid disk block of the Amiga.
var rdb = Prober{
	Kinds: []Traits{{Kind: RDB, Slices: "Amiga rigid disk block", Foreign: true, NeverStale: true}},
	Marks: rdbMarks(),
	Probe: probeRDB,
}

// amigaBlock begins the rigid disk block, which is one of the first 16 sectors, and each block of a partition, which
// are a list. Big-endian. Spec: AmigaOS, devices/hardblocks.h; Linux, block/partitions/amiga.c.
type amigaBlock struct {
	ID       uint32
	Longs    uint32 // that the checksum counts
	Checksum uint32
	_        uint32
	Word4    uint32 // of a rigid disk block the size of blocks in bytes, of a partition the next one
	_        [2]uint32
	Word7    uint32 // of a rigid disk block the first partition
	_        uint32
	Name     [32]byte // of a partition: its length, and so many characters
	_        [15]uint32
	Env      [20]uint32 // of a partition
}

const (
	rdbWhat   = "amiga rigid disk block"
	rdbMark   = "RDSK"
	rdbID     = 0x5244534b // the same
	partID    = 0x50415254 // "PART"
	rdbPlaces = 16         // sectors
	amigaEnd  = 0xffffffff // of a list

	envSurfaces = 3
	envSectors  = 5 // of a track
	envLow      = 9 // cylinders
	envHigh     = 10
	envType     = 16
)

func rdbMarks() (out []Mark) {
	for i := range rdbPlaces {
		out = append(out, Mark{Off: i * int(units.SectorSize), Bytes: rdbMark})
	}
	return out
}

func probeRDB(d disk.Disk) (*Volume, error) {
	for i := range int64(rdbPlaces) {
		h, err := readAmiga(d, i*units.SectorSize, rdbID)
		switch {
		case errors.Is(err, ondisk.ErrNoMatch):
			continue
		case err != nil:
			return nil, err
		}
		return h.volume(d, i*units.SectorSize)
	}
	return nil, ondisk.ErrNoMatch
}

// readAmiga reads a block of the given kind, whose checksum is right.
func readAmiga(d disk.Disk, at int64, id uint32) (*amigaBlock, error) {
	b, err := ReadBlock(d, at, units.SectorSize)
	if err != nil {
		return nil, err
	}
	h := &amigaBlock{}
	ondisk.MustFill(b, binary.BigEndian, h)
	switch {
	case h.ID != id:
		return nil, ondisk.ErrNoMatch
	case h.Longs < 32 || h.Longs > 128:
		return nil, ondisk.Field(rdbWhat, "length", at+4, h.Longs, "32 to 128 words")
	case sum32(b[:4*h.Longs]) != 0:
		return nil, ondisk.Field(rdbWhat, "checksum", at+8, Hex(h.Checksum),
			Hex(h.Checksum-sum32(b[:4*h.Longs])))
	}
	return h, nil
}

// volume follows the list of partitions.
func (h *amigaBlock) volume(d disk.Disk, at int64) (*Volume, error) {
	size := int64(h.Word4)
	if !PowerBetween(size, 512, 32<<10) {
		return nil, ondisk.Field(rdbWhat, "block size", at+16, size, "a power of two from 512 to 32768")
	}
	v := newTable(RDB, d)
	var seen []uint32
	for next := h.Word7; next != amigaEnd; {
		if slices.Contains(seen, next) || len(seen) == maxEntries {
			return v, ondisk.Field(rdbWhat, "list of partitions", blocks(next, size), next,
				fmt.Sprintf("at most %d, each once", maxEntries))
		}
		seen = append(seen, next)
		p, err := readAmiga(d, blocks(next, size), partID)
		switch {
		case errors.Is(err, ondisk.ErrNoMatch):
			return v, ondisk.Field(rdbWhat, "list of partitions", blocks(next, size), next,
				`a block that begins with "PART"`)
		case err != nil:
			return v, err
		}
		p.entry(v, blocks(next, size), size)
		next = p.Word4
	}
	return v, nil
}

// entry adds the partition of the block at byte at, whose place is in cylinders.
func (h *amigaBlock) entry(v *Volume, at, size int64) {
	name := string(h.Name[1:][:min(int(h.Name[0]), len(h.Name)-1)])
	p := Part{Name: Label([]byte(name)), Kind: fourCC(h.Env[envType]), Start: -1, Size: -1}
	cylinder := ondisk.U64(int64(h.Env[envSurfaces])) * uint64(h.Env[envSectors])
	low, count := uint64(h.Env[envLow]), uint64(h.Env[envHigh])+1-uint64(h.Env[envLow])
	most := ondisk.U64(v.Size / size)
	env := func(word int64) int64 { return at + 128 + 4*word }
	if h.Env[envHigh] < h.Env[envLow] || cylinder == 0 {
		v.Outside = append(v.Outside, ondisk.Field(rdbWhat, "place of partition "+p.Name, env(envLow),
			fmt.Sprintf("cylinders %d to %d of %d blocks", low, h.Env[envHigh], cylinder),
			"a cylinder or more, of a block or more"))
		return
	}
	if cylinder > most || count > most/cylinder || low > most/cylinder {
		v.Outside = append(v.Outside, ondisk.Field(rdbWhat, "place of partition "+p.Name, env(envLow),
			fmt.Sprintf("cylinders %d to %d of %d blocks", low, h.Env[envHigh], cylinder),
			fmt.Sprintf("at most %d blocks, where the disk ends", most)))
		p.Size = v.Size // at most
		v.Parts = append(v.Parts, p)
		return
	}
	p.Start, p.Size = ondisk.I64(low*cylinder)*size, ondisk.I64(count*cylinder)*size
	entry(v, rdbWhat, env(envLow), p)
}
