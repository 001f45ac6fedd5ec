package volume

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// refs is the boot sector of ReFS on Windows Server. Spec: Microsoft, FILE_SYSTEM_RECOGNITION_STRUCTURE, up to the
// checksum; libfsrefs, "Volume header", behind it.
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

// refsSum returns the checksum of a boot sector. It skips the jump and the checksum itself. Spec: Microsoft, "Computing
// a File System Recognition Checksum".
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

// hpfs is the superblock of HPFS (OS/2) in sector 16, followed by the spare block. Spec: Linux, fs/hpfs/hpfs.h, struct
// hpfs_super_block and hpfs_spare_block.
var hpfs = &row{
	kinds: []Traits{{Kind: HPFS, Title: "HPFS"}},
	what:  "hpfs superblock", at: []int64{16 * 512}, size: 512 + 8, order: binary.LittleEndian,
	magic:   []Mark{{0, "\x49\xe8\x95\xf9"}},
	matches: func(s *super) bool { return s.u32(512) == 0xf9911849 },
	volume: func(s *super) *Volume {
		v := &Volume{Kind: HPFS, Size: s.i64(16) * units.SectorSize, BlockSize: units.SectorSize}
		if s.check(check{"sectors", 16, 4, s.blocks(units.SectorSize)}); s.err == nil {
			hpfsBoot(v, s)
		}
		return v
	},
}

// hpfsBoot reads label and BPB from the boot sector. Spec: Linux, fs/hpfs/hpfs.h, struct hpfs_boot_block.
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

// Size and offsets of the exFAT boot region, which is stored twice at the start of the volume. Spec: Microsoft, exFAT
// file system specification, 3.1, 3.4.
const (
	ExFATRegion        = 12 // sectors; the last one repeats the checksum of the others
	AtExFATOffset      = 0x40
	AtExFATSectorShift = 0x6c
)

// Offsets in the exFAT boot sector.
const (
	exFATLength       = 0x48 // in sectors, like exFATOffset and exFATHeap
	exFATOffset       = 0x50
	exFATHeap         = 0x58
	exFATClusters     = 0x5c
	exFATRoot         = 0x60
	exFATClusterShift = 0x6d
)

// exFAT is the boot sector of exFAT. Spec: Microsoft, exFAT file system specification, 3.1.
var exFAT = &row{
	kinds: []Traits{{
		Kind: ExFAT, Title: "exFAT", Unit: "cluster", Letter: true, Data: "first exfat cluster",
		Realign: "to align its clusters, format it again with a tool that aligns them (mkfs.exfat --boundary-align), " +
			"and copy the files",
	}},
	what: "exfat boot sector", at: []int64{0}, size: units.SectorSize, order: binary.LittleEndian,
	magic: []Mark{{3, "EXFAT   "}},
	checks: func(s *super) {
		shift := uint64(s.u8(AtExFATSectorShift))
		s.check(
			check{"signature", 0x1fe, 2, sum(func() uint64 { return BootMagic })},
			check{"bytes per sector shift", AtExFATSectorShift, 1, within(9, 12).says("9 to 12 (512 to 4096 bytes)")},
			check{"sectors per cluster shift", exFATClusterShift, 1, within(0, 25-shift).
				says("0 to %d (clusters of at most 32 MiB)", 25-shift)},
			check{"number of FATs", 0x6e, 1, within(1, 2).says("1 or 2")},
			check{"revision", 0x68, 0, holds(s.u8(0x69) == 1, Hex(s.u16(0x68)), "1.0 to 1.99")},
			check{"volume length", exFATLength, 8, s.blocks(exFATSector(s))},
		)
		if s.err == nil {
			checkExFATAreas(s)
		}
		if s.err == nil {
			s.err = exFATSum(s, 0)
		}
	},
	volume: func(s *super) *Volume {
		const dirty = 0x2
		sector := exFATSector(s)
		v := &Volume{
			Kind: ExFAT, UUID: dosSerial(s.u32(0x64)), BlockSize: sector << s.u8(exFATClusterShift),
			Size: ondisk.I64(s.u64(exFATLength)) * sector, DataStart: s.i64(exFATHeap) * sector, SectorSize: sector,
		}
		if s.u16(0x6a)&dirty != 0 {
			v.Note("exfat-dirty", ondisk.Warn, "exFAT is marked dirty: it was not unmounted cleanly",
				"run chkdsk in the guest and shut it down cleanly")
		}
		if s.err = exFATBackup(v, s); s.err != nil {
			return nil
		}
		v.Label, s.err = exFATLabel(v, s)
		return v
	},
}

func exFATSector(s *super) int64 { return 1 << s.u8(AtExFATSectorShift) }

// checkExFATAreas verifies that the FATs lie behind the boot regions, the clusters behind the FATs, and all within the
// volume.
func checkExFATAreas(s *super) {
	const atFATLength = 0x54
	clusters, heap, length := s.i64(exFATClusters), s.i64(exFATHeap), ondisk.I64(s.u64(exFATLength))
	fatsEnd := s.i64(exFATOffset) + s.i64(atFATLength)*int64(s.u8(0x6e))
	needed := units.AlignUp((clusters+2)*4, exFATSector(s)) / exFATSector(s)
	most := ondisk.U64(max(0, min((length-heap)>>s.u8(exFATClusterShift), math.MaxUint32-10)))
	s.check(
		check{"FAT offset", exFATOffset, 4, atLeast(2 * ExFATRegion).says("24 or more sectors")},
		check{"cluster heap offset", exFATHeap, 0, holds(heap >= fatsEnd && heap < length, heap,
			"%d, the end of the FATs, to %d sectors", fatsEnd, length-1)},
		check{"cluster count", exFATClusters, 4, within(1, most)},
		check{"FAT length", atFATLength, 4, atLeast(ondisk.U64(needed)).says("%d or more sectors", needed)},
		check{"root cluster", exFATRoot, 4, within(2, ondisk.U64(clusters+1))},
	)
}

// exFATSum verifies the checksum of the boot region at off.
func exFATSum(s *super, off int64) error {
	sector := exFATSector(s)
	region, err := ondisk.Bytes(s.d, off, ExFATRegion*sector)
	if err != nil {
		return err
	}
	want := binary.LittleEndian.Uint32(ExFATChecksum(region))
	for at := (ExFATRegion - 1) * sector; at < int64(len(region)); at += 4 {
		if got := binary.LittleEndian.Uint32(region[at:]); got != want {
			return ondisk.Field("exfat boot region", "checksum", off+at, Hex(got), Hex(want))
		}
	}
	return nil
}

// ExFATChecksum returns the last sector of a boot region, which repeats the checksum of the others. The checksum skips
// the fields that change in a mounted volume: flags and percentage in use. Spec: 3.4.
func ExFATChecksum(region []byte) []byte {
	sector := len(region) / ExFATRegion
	var sum uint32
	for i, c := range region[:len(region)-sector] {
		if i != 106 && i != 107 && i != 112 {
			sum = sum>>1 | sum<<31
			sum += uint32(c)
		}
	}
	last := make([]byte, 0, sector)
	for len(last) < sector {
		last = binary.LittleEndian.AppendUint32(last, sum)
	}
	return last
}

// exFATBackup checks the second boot region, the source of repairs.
func exFATBackup(v *Volume, s *super) error {
	off := ExFATRegion * exFATSector(s)
	b, err := ReadBlock(s.d, off, s.size)
	if err != nil {
		return err
	}
	text := "describes another volume than the main boot region"
	same := func(at, n int) bool { return string(b[at:at+n]) == string(s.b[at:at+n]) }
	if same(3, 8) && same(exFATLength, 8) && same(AtExFATSectorShift, 1) && same(exFATHeap, 4) {
		err := exFATSum(s, off)
		if !errors.Is(err, ondisk.ErrFormat) {
			return err
		}
		text = "has a wrong checksum"
	}
	v.Note("exfat-backup", ondisk.Warn, "the backup boot region of the exFAT "+text+": it stays unchanged",
		"run chkdsk in the guest")
	return nil
}

// exFATLabel reads the volume label from the root directory. The limit of bytes read also ends a circular cluster
// chain.
func exFATLabel(v *Volume, s *super) (string, error) {
	const most, page = 1 << 20, 64 << 10 // bytes
	cluster, step := s.u32(exFATRoot), min(v.BlockSize, page)
	for read := int64(0); read < most && cluster >= 2 && cluster-2 < s.u32(exFATClusters); {
		at := v.DataStart + int64(cluster-2)*v.BlockSize
		for off := int64(0); off < v.BlockSize && read < most; off += step {
			buf, err := ondisk.Bytes(s.d, at+off, step)
			if err != nil {
				return "", err
			}
			read += step
			if name, done := findExFATLabel(buf); done {
				return name, nil
			}
		}
		next, err := ondisk.Bytes(s.d, s.i64(exFATOffset)*v.SectorSize+4*int64(cluster), 4)
		if err != nil {
			return "", err
		}
		cluster = binary.LittleEndian.Uint32(next)
	}
	return "", nil
}

// findExFATLabel searches entries up to the label or the end of the directory. An entry holds type, number of
// characters and name. Spec: 7.3.
func findExFATLabel(b []byte) (name string, done bool) {
	const slot, label, most = 32, 0x83, 11
	for ; len(b) >= slot; b = b[slot:] {
		switch b[0] {
		case 0:
			return "", true
		case label:
			n := min(int(b[1]), most)
			return strings.TrimRight(ondisk.UTF16Z(b[2:2+2*n], binary.LittleEndian), " "), true
		}
	}
	return "", false
}
