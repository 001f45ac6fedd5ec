// This part of the package finds the tables that divide a partition into slices, and the partition tables of machines
// other than PCs.

package volume

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// newTable returns the partition table of a machine other than a PC, as the content of the whole disk d.
func newTable(kind Kind, d disk.Disk) *Volume {
	return &Volume{Kind: kind, Size: d.Size()}
}

// maxEntries bounds the partitions of such a table.
const maxEntries = 256

// entry adds a partition whose entry is at byte off of the table. A partition that leaves the disk has no place. One
// without a size is not listed.
func entry(v *Volume, what string, off int64, p Part) {
	if p.Size <= 0 {
		v.Outside = append(v.Outside, ondisk.Field(what, "size of partition "+p.Name, off, p.Size, "1 byte or more"))
		return
	}
	if p.Start < 0 || p.Start > v.Size || p.Size > v.Size-p.Start {
		if !p.Own { // the size of the whole disk can be rounded up
			leaves(v, what, off, "partition "+p.Name, p.Start+p.Size)
		}
		p.Start = -1
	}
	v.Parts = append(v.Parts, p)
}

// leaves adds the error of a part that ends behind its container. off is the place of its entry in the table.
func leaves(v *Volume, what string, off int64, part string, end int64) {
	v.Outside = append(v.Outside, ondisk.Field(what, "end of "+part, off, end,
		fmt.Sprintf("at most %d, where the disk ends", v.Size)))
}

// blocks converts a number of blocks to bytes. No factor is above 2^32.
func blocks(n uint32, size int64) int64 { return int64(n) * size }

// rdb is the rigid disk block of the Amiga, one of the first 16 sectors. Its checksum counts the given number of words.
// Spec: AmigaOS, devices/hardblocks.h; Linux, block/partitions/amiga.c.
var rdb = &row{
	kinds: []Traits{{
		Kind: RDB, Slices: "Amiga rigid disk block", Foreign: true, Unlisted: true, NeverStale: true,
	}},
	what: "amiga rigid disk block", size: 512, order: binary.BigEndian, magic: []Mark{{0, "RDSK"}},
	at: []int64{
		0, 512, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 4608, 5120, 5632, 6144, 6656, 7168, 7680,
	},
	checks: func(s *super) {
		s.check(
			check{"length", 4, 4, within(32, 128).says("32 to 128 words")},
			check{"checksum", 8, 4, sum(func() uint64 { return uint64(s.u32(8) - sum32(s.b[:4*s.i64(4)])) })},
		)
	},
	volume: func(s *super) *Volume { return newTable(RDB, s.d) },
}

// atariIDs are the types that identify a root sector. Three letters are weak evidence, so that others are not accepted.
var atariIDs = []string{"GEM", "BGM", "XGM", "RAW", "LNX", "SWP", "MIX", "UNX", "F32", "MAC", "QWA"}

// atari is the root sector of AHDI: the number of sectors of the disk, and four partitions. It has no magic number, and
// its checksum need not be right, so that its fields must agree. Spec: Atari, "AHDI 3.00 Release Notes"; Linux,
// block/partitions/atari.h.
var atari = &row{
	kinds: []Traits{{Kind: Atari, Slices: "Atari root sector", Foreign: true, Unlisted: true}},
	what:  "atari root sector", at: []int64{0}, size: 512, order: binary.BigEndian, magic: []Mark{{}},
	mine: func(s *super) bool {
		const atSectors, atParts, partSize, parts = 0x1c2, 0x1c6, 12, 4
		sectors := s.i64(atSectors)
		used := false
		for i := range int64(parts) {
			at := atParts + partSize*i
			if s.u8(at)&1 == 0 {
				continue
			}
			used = true
			start, count := s.i64(at+4), s.i64(at+8)
			if !slices.Contains(atariIDs, string(s.b[at+1:at+4])) || start == 0 || count == 0 ||
				start+count > s.d.Size()/units.SectorSize {
				return false
			}
		}
		return used && sectors > 0 && sectors <= s.d.Size()/units.SectorSize
	},
	volume: func(s *super) *Volume { return newTable(Atari, s.d) },
}

// atariProber is that of a row without a mark by which a volume could be believed.
func atariProber() Prober { return Prober{Kinds: atari.kinds, Probe: atari.probe} }

// dasdLayouts are the kinds of a DASD label by their marks, in EBCDIC: VOL1, LNX1 and CMS1.
var dasdLayouts = map[string]string{
	dasdCDL: "CDL (VOL1)", "\xd3\xd5\xe7\xf1": "LDL (LNX1)", "\xc3\xd4\xe2\xf1": "CMS (CMS1)",
}

const dasdCDL = "\xe5\xd6\xd3\xf1"

// dasd is the label of an IBM mainframe disk, in the places where Linux looks without the device: sector 1, block 1 and
// block 2, of blocks of 512 and 4096 bytes. Spec: Linux, arch/s390/include/uapi/asm/vtoc.h, and block/partitions/ibm.c,
// which reads them so.
var dasd = &row{
	kinds: []Traits{{Kind: DASD, Slices: "IBM DASD label", Foreign: true, Unlisted: true, NeverStale: true}},
	what:  "dasd label", at: []int64{512, 1024, 4096, 8192}, size: 88, order: binary.BigEndian,
	magic: []Mark{{0, dasdCDL}, {0, "\xd3\xd5\xe7\xf1"}, {0, "\xc3\xd4\xe2\xf1"}},
	mine: func(s *super) bool { // in a CDL the mark stands behind itself, in block 2 of 4096 bytes
		return s.text(0, 4) != dasdCDL || (s.at == 8192 && s.text(4, 4) == dasdCDL)
	},
	volume: func(s *super) *Volume {
		v := newTable(DASD, s.d)
		v.Add("layout", dasdLayouts[s.text(0, 4)])
		return v
	},
}

// sum32 returns the sum of the words of SGI and Amiga. It is zero if the checksum is right.
func sum32(b []byte) (sum uint32) {
	for ; len(b) >= 4; b = b[4:] {
		sum += binary.BigEndian.Uint32(b)
	}
	return sum
}
