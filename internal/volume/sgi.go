package volume

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// sgi finds the volume header of IRIX.
var sgi = Prober{
	Kinds: []Traits{{Kind: SGI, Slices: "SGI volume header", Foreign: true, NeverStale: true}},
	Marks: []Mark{{Off: 0, Bytes: "\x0b\xe5\xa9\x41"}},
	Probe: probeSGI,
}

// sgiLabel is the volume header of IRIX in sector 0. Big-endian. Spec: IRIX, sys/dvh.h (struct volume_header); Linux,
// block/partitions/sgi.c.
type sgiLabel struct {
	Magic    uint32
	_        [68]byte  // where to boot from, and the geometry of the drive
	_        [240]byte // files in the header
	Map      [16]struct{ Blocks, First, Type uint32 }
	Checksum uint32
	_        uint32
}

const (
	sgiWhat         = "sgi volume header"
	sgiMap          = 312 // 16 entries of 12 bytes
	sgiHeader       = 0
	sgiVolume       = 6
	sgiTrackReplace = 1
	sgiSectReplace  = 2
)

// sgiTypes are the uses of a partition. Source: sfdisk --label sgi --list-types.
var sgiTypes = map[uint32]string{
	0: "SGI volhdr", 1: "SGI trkrepl", 2: "SGI secrepl", 3: "SGI raw", 4: "SGI bsd", 5: "SGI sysv", 6: "SGI volume",
	7: "SGI efs", 8: "SGI lvol", 9: "SGI rlvol", 10: "SGI xfs", 11: "SGI xfslog", 12: "SGI xlv", 13: "SGI xvm",
	0x82: "Linux swap", 0x83: "Linux native", 0x8e: "Linux LVM", 0xfd: "Linux RAID",
}

func probeSGI(d disk.Disk) (*Volume, error) {
	var l sgiLabel
	b, err := Superblock(d, 0, binary.BigEndian, &l)
	switch {
	case err != nil:
		return nil, err
	case l.Magic != 0x0be5a941:
		return nil, ondisk.ErrNoMatch
	}
	v := newTable(SGI, d)
	for i, e := range l.Map {
		if e.Blocks == 0 {
			continue
		}
		kind := sgiTypes[e.Type]
		if kind == "" {
			kind = fmt.Sprintf("type %#x", e.Type)
		}
		entry(v, sgiWhat, sgiMap+12*int64(i), Part{
			Name: strconv.Itoa(i + 1), Kind: kind,
			Start: blocks(e.First, units.SectorSize), Size: blocks(e.Blocks, units.SectorSize),
			Own: e.Type == sgiHeader || e.Type == sgiVolume || e.Type == sgiTrackReplace || e.Type == sgiSectReplace,
		})
	}
	if sum := sum32(b); sum != 0 {
		return v, ondisk.Field(sgiWhat, "checksum", 504, Hex(l.Checksum), Hex(l.Checksum-sum))
	}
	return v, nil
}
