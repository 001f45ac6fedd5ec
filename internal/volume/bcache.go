package volume

import (
	"encoding/binary"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

const (
	bcacheMaxKeys = 256 // journal buckets, 8 bytes each, behind the fixed part
	bcacheFixed   = 208
	bcacheSector  = 512
)

// bcache is the superblock of a device of the cache of Linux for slow disks. Spec: Linux,
// drivers/md/bcache/bcache_ondisk.h, struct cache_sb_disk.
var bcache = &row{
	kinds: []Traits{{
		Kind: BCache, Data: "first sector of the data of bcache",
		Realign: "to align its data, copy them to a device made by make-bcache --data-offset 2048",
	}},
	what: "bcache superblock", at: []int64{4 << 10}, size: bcacheFixed + 8*bcacheMaxKeys, order: binary.LittleEndian,
	magic: []Mark{{24, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"}},
	// Old bcachefs has the same magic, and a part of its checksum where bcache has its own place.
	mine: func(s *super) bool { return s.u64(8) == ondisk.U64(s.at)/bcacheSector },
	checks: func(s *super) {
		s.check(
			check{"journal buckets", 206, 2, within(0, bcacheMaxKeys).says("up to %d", bcacheMaxKeys)},
			check{"checksum", 0, 8, sum(func() uint64 { return crc64WE(s.b[8 : bcacheFixed+8*int(s.u16(206))]) })},
		)
	},
	volume: func(s *super) *Volume {
		v := &Volume{Kind: BCache, Label: s.text(72, 32), UUID: s.uuid(40), Size: s.d.Size()}
		bcacheData(v, s)
		return v
	},
}

// bcacheData finds the start of the data, which depends on the version.
func bcacheData(v *Volume, s *super) {
	const beforeOffsets = 16 // sectors
	bucket := uint64(s.u16(194))
	sector, role := s.u64(184), "backing device"
	switch s.u64(16) {
	case 1:
		sector = beforeOffsets
	case 4, 6: // with an offset, with features
	case 0, 3, 5:
		sector, role = uint64(s.u16(204))*bucket, "cache"
	default:
		s.err = s.field("version", 16, s.u64(16), "0, 1, 3, 4, 5 or 6")
		return
	}
	sectors := v.Size / bcacheSector
	s.check(check{"data offset", 184, 0, below(ondisk.U64(sectors)).of(sector).
		says("less than %d sectors, the size of the device", sectors)})
	if s.err != nil {
		return
	}
	v.DataStart = ondisk.I64(sector) * bcacheSector
	v.Holds = role != "cache"
	v.Add("role", role)
	v.Add("set UUID", s.uuid(56))
	if role == "cache" && bucket > 0 {
		v.Add("bucket size", units.Format(ondisk.I64(bucket)*bcacheSector))
	}
}

// crc64WE is CRC-64/WE: the polynomial of ECMA-182, most significant bit first, which hash/crc64 does not have.
func crc64WE(b []byte) uint64 {
	const poly = 0x42f0e1eba9ea3693
	crc := ^uint64(0)
	for _, c := range b {
		crc ^= uint64(c) << 56
		for range 8 {
			crc = crc<<1 ^ poly*(crc>>63)
		}
	}
	return ^crc
}
