package volume

import (
	"crypto/md5"
	"encoding/binary"

	"github.com/trueup/trueup/internal/ondisk"
)

// apfs is the superblock of a container of macOS since 10.13, in its block 0. Spec: Apple File System Reference,
// nx_superblock_t behind obj_phys_t.
var apfs = &row{
	kinds: []Traits{{Kind: APFS, Title: "APFS"}},
	what:  "apfs container superblock", at: []int64{0}, size: 88, order: binary.LittleEndian,
	magic: []Mark{{32, "NXSB"}},
	checks: func(s *super) {
		block := s.i64(0x24)
		s.check(
			check{"block size", 0x24, 4, power(4096, 64<<10)},
			check{"checksum", 0, 8, sum(func() uint64 {
				if block > s.d.Size() {
					s.err = ondisk.ErrNoMatch
				}
				return fletcher64(s.read(0, block))
			})},
			check{"object type", 0x18, 0, equal(1).of(uint64(s.u16(0x18))).says("1, a container superblock")},
		)
		if !isFusion(s) { // it counts the blocks of both devices
			s.check(check{"block count", 0x28, 8, s.blocks(block)})
		}
	},
	volume: func(s *super) *Volume {
		v := &Volume{Kind: APFS, UUID: s.uuid(0x48), BlockSize: s.i64(0x24), Size: s.d.Size()}
		if !isFusion(s) {
			v.Size = ondisk.I64(s.u64(0x28)) * v.BlockSize
		} else {
			v.Note("apfs-fusion", ondisk.Note,
				"this is one of two devices of an APFS Fusion container: the guest needs both", "")
		}
		return v
	},
}

// isFusion reports an incompatible feature.
func isFusion(s *super) bool { return s.u64(0x40)&0x100 != 0 }

// fletcher64 returns the checksum of an object, which begins with it. Spec: Apple File System Reference, "Objects".
func fletcher64(b []byte) uint64 {
	const mod, size = 1<<32 - 1, 8
	var low, high uint64
	for b = b[min(size, len(b)):]; len(b) >= 4; b = b[4:] {
		low = (low + uint64(binary.LittleEndian.Uint32(b))) % mod
		high = (high + low) % mod
	}
	first := mod - (low+high)%mod
	return (mod-(low+first)%mod)<<32 | first
}

const (
	hfsAt     = 1024
	hfsSector = 512
)

// hfs is the master directory block of Mac OS up to 8.0, also of one around an HFS+ ("wrapper"). Spec: Apple, Inside
// Macintosh: Files, "Master Directory Blocks".
var hfs = &row{
	kinds: []Traits{{Kind: HFS, Title: "HFS"}},
	what:  "hfs master directory block", at: []int64{hfsAt}, size: 130, order: binary.BigEndian,
	magic: []Mark{{0, "BD"}},
	mine:  func(s *super) bool { return s.u16(0x0e) == 3 }, // the start of the bitmap: two letters are weak evidence
	checks: func(s *super) {
		block, blocks, first := s.i64(0x14), int(s.u16(0x12)), int64(s.u16(0x1c))
		s.check(
			check{"block size", 0x14, 0, holds(block > 0 && block%hfsSector == 0, block, "a multiple of 512")},
			check{"first block", 0x1c, 2, atLeast(4).says("4 or more sectors")},
			check{"blocks", 0x12, 0, holds(blocks > 0 && hfsEnd(s) <= s.d.Size(), blocks,
				"1 to %d, the size of the partition", max(0, s.d.Size()-first*hfsSector)/max(1, block))},
		)
	},
	volume: func(s *super) *Volume {
		const tail = 2 * hfsSector // behind the blocks: a copy of the master directory block, and a reserved sector
		return &Volume{
			Kind: HFS, Label: s.label(0x25, min(int64(s.u8(0x24)), 27)), UUID: hfsUUID(s.b[0x74:0x7c]),
			BlockSize: s.i64(0x14), DataStart: int64(s.u16(0x1c)) * hfsSector, Size: hfsEnd(s) + tail,
		}
	},
}

// hfsEnd returns the end of the blocks, in bytes.
func hfsEnd(s *super) int64 { return int64(s.u16(0x1c))*hfsSector + int64(s.u16(0x12))*s.i64(0x14) }

// hfsPlus is the volume header of Mac OS since 8.1. Spec: Apple, Technical Note TN1150, "Volume Header".
var hfsPlus = &row{
	kinds: []Traits{{Kind: HFSPlus, Title: "HFS+"}},
	what:  "hfs+ volume header", at: []int64{hfsAt}, size: 352, order: binary.BigEndian,
	magic: []Mark{{0, "H+"}, {0, "HX"}},
	mine: func(s *super) bool { // two letters are too few
		return s.u16(0x02) == map[string]uint16{"H+": 4, "HX": 5}[s.text(0, 2)]
	},
	checks: func(s *super) {
		s.check(
			check{"block size", 0x28, 4, power(512, 1<<31).says("a power of two from 512")},
			check{"total blocks", 0x2c, 4, s.blocks(s.i64(0x28))},
			check{"free blocks", 0x30, 4, below(uint64(s.u32(0x2c)))},
		)
	},
	volume: func(s *super) *Volume {
		const journaled, unmounted, inconsistent = 1 << 13, 1 << 8, 1 << 11
		v := &Volume{
			Kind: HFSPlus, UUID: hfsUUID(s.b[0x68:0x70]), BlockSize: s.i64(0x28), Size: s.i64(0x2c) * s.i64(0x28),
		}
		if s.u16(0x02) == 5 {
			v.Add("variant", "HFSX")
		}
		if s.u32(0x04)&journaled != 0 {
			v.Add("journal", "yes")
		}
		if s.u32(0x04)&unmounted == 0 || s.u32(0x04)&inconsistent != 0 {
			v.Note("hfsplus-dirty", ondisk.Note, "HFS+ was not unmounted cleanly", "")
		}
		return v
	},
}

// hfsUUID derives a UUID from a 64-bit number as libblkid does: an MD5 in the name space of Apple, marked as version 3.
// It protects nothing.
func hfsUUID(id []byte) string {
	if ondisk.IsZero(id) {
		return ""
	}
	space := []byte{0xb3, 0xe2, 0x0f, 0x39, 0xf2, 0x92, 0x11, 0xd6, 0x97, 0xa4, 0x00, 0x30, 0x65, 0x43, 0xec, 0xac}
	u := md5.Sum(append(space, id...))
	u[6] = u[6]&0x0f | 0x30
	u[8] = u[8]&0x3f | 0x80
	return UUID(u)
}
