package volume

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// refs is the boot sector of Windows Server. Spec: Microsoft, FILE_SYSTEM_RECOGNITION_STRUCTURE, up to the checksum;
// libfsrefs, "Volume header", behind it.
var refs = &row{
	kinds: []Traits{{Kind: ReFS, Title: "ReFS", Unit: "cluster"}},
	what:  "refs boot sector", at: []int64{0}, size: 0x40, order: binary.LittleEndian,
	magic: []Mark{{3, "ReFS\x00\x00\x00\x00"}},
	checks: func(s *super) {
		length, sector, cluster := int64(s.u16(0x14)), s.i64(0x20), s.i64(0x24)
		s.check(
			check{"identifier", 0x10, 0, holds(string(s.b[0x10:0x14]) == "FSRS", string(s.b[0x10:0x14]), "FSRS")},
			check{"length", 0x14, 2, within(0x40, 4096)},
			check{"checksum", 0x16, 2, sum(func() uint64 {
				if length > s.d.Size() {
					s.err = ondisk.ErrNoMatch
				}
				return refsSum(s.read(0, length))
			})},
			check{"bytes per sector", 0x20, 4, power(512, 4096).says("512, 1024, 2048 or 4096")},
			check{"sectors per cluster", 0x24, 0, holds(PowerBetween(cluster*sector, 4096, 64<<10), cluster,
				"clusters of 4096 to 65536 bytes")},
			check{"sectors", 0x18, 8, s.blocks(sector)},
		)
	},
	volume: func(s *super) *Volume {
		v := &Volume{
			Kind: ReFS, UUID: fmt.Sprintf("%016X", s.u64(0x38)), BlockSize: s.i64(0x20) * s.i64(0x24),
			Size: ondisk.I64(s.u64(0x18)) * s.i64(0x20),
		}
		v.Addf("version", "%d.%d", s.u8(0x28), s.u8(0x29))
		return v
	},
}

// refsSum skips the jump and the checksum itself. Spec: Microsoft, "Computing a File System Recognition Checksum".
func refsSum(b []byte) uint64 {
	var sum uint16
	for i, c := range b {
		if i >= 3 && i != 0x16 && i != 0x17 {
			sum = sum>>1 | sum<<15
			sum += uint16(c)
		}
	}
	return uint64(sum)
}

// hpfs is the superblock of OS/2, in sector 16, with the spare block behind it. Spec: Linux, fs/hpfs/hpfs.h, struct
// hpfs_super_block and hpfs_spare_block.
var hpfs = &row{
	kinds: []Traits{{Kind: HPFS, Title: "HPFS"}},
	what:  "hpfs superblock", at: []int64{16 * 512}, size: 512 + 8, order: binary.LittleEndian,
	magic: []Mark{{0, "\x49\xe8\x95\xf9"}},
	mine:  func(s *super) bool { return s.u32(512) == 0xf9911849 },
	volume: func(s *super) *Volume {
		v := &Volume{Kind: HPFS, Size: s.i64(16) * units.SectorSize, BlockSize: units.SectorSize}
		if s.check(check{"sectors", 16, 4, s.blocks(units.SectorSize)}); s.err == nil {
			hpfsBoot(v, s)
		}
		return v
	},
}

// hpfsBoot reads label and parameter block from the boot sector. Spec: Linux, fs/hpfs/hpfs.h, struct hpfs_boot_block.
func hpfsBoot(v *Volume, s *super) {
	b := s.read(0, units.SectorSize)
	le := binary.LittleEndian
	if b == nil || le.Uint16(b[0x1fe:]) != BootMagic || string(b[0x36:0x3a]) != "HPFS" || b[0x26] != 0x28 ||
		int64(le.Uint16(b[0x0b:])) != units.SectorSize {
		return
	}
	v.Label, v.UUID = DOSLabel(b[0x2b:0x36]), dosSerial(le.Uint32(b[0x27:]))
	v.Boot = &BPB{
		Kind: HPFS, SectorSize: units.SectorSize, Hidden: le.Uint32(b[AtHidden:]),
		Sectors: int(le.Uint16(b[0x18:])), Heads: int(le.Uint16(b[0x1a:])),
	}
}

// dosSerial formats the serial number of a volume.
func dosSerial(n uint32) string { return fmt.Sprintf("%04X-%04X", n>>16, n&0xffff) }
