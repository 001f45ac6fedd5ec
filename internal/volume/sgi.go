package volume

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/trueup/trueup/internal/units"
)

// sgiTypes are the uses of a partition. Source: sfdisk --label sgi --list-types.
var sgiTypes = map[uint32]string{
	0: "SGI volhdr", 1: "SGI trkrepl", 2: "SGI secrepl", 3: "SGI raw", 4: "SGI bsd", 5: "SGI sysv", 6: "SGI volume",
	7: "SGI efs", 8: "SGI lvol", 9: "SGI rlvol", 10: "SGI xfs", 11: "SGI xfslog", 12: "SGI xlv", 13: "SGI xvm",
	0x82: "Linux swap", 0x83: "Linux native", 0x8e: "Linux LVM", 0xfd: "Linux RAID",
}

// sgi is the volume header of IRIX. Spec: IRIX, sys/dvh.h (struct volume_header); Linux, block/partitions/sgi.c.
var sgi = &row{
	kinds: []Traits{{Kind: SGI, Slices: "SGI volume header", Foreign: true, NeverStale: true}},
	what:  "sgi volume header", at: []int64{0}, size: 512, order: binary.BigEndian,
	magic: []Mark{{0, "\x0b\xe5\xa9\x41"}},
	volume: func(s *super) *Volume {
		const entries, header, trackReplace, sectorReplace, whole, atSum = 16, 0, 1, 2, 6, 504
		v := newTable(SGI, s.d)
		for i := range int64(entries) {
			at := 312 + 12*i
			use := s.u32(at + 8)
			if s.u32(at) == 0 {
				continue
			}
			entry(v, s.what, at, Part{
				Name: strconv.FormatInt(i+1, 10), Kind: cmp.Or(sgiTypes[use], fmt.Sprintf("type %#x", use)),
				Start: s.i64(at+4) * units.SectorSize, Size: s.i64(at) * units.SectorSize,
				Own: use == header || use == whole || use == trackReplace || use == sectorReplace,
			})
		}
		s.check(check{"checksum", atSum, 4, sum(func() uint64 { return uint64(s.u32(atSum) - sum32(s.b)) })})
		return v
	},
}
