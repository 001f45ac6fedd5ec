package volume

import (
	"bytes"
	"cmp"
	"crypto/md5"
	"encoding/binary"
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// iso9660 is the primary volume descriptor of a CD. Spec: ECMA-119, 8.4 and 8.5. Numbers are stored twice,
// little-endian and big-endian.
var iso9660 = &row{
	kinds: []Traits{{Kind: ISO9660, Title: "ISO 9660"}},
	what:  "iso 9660 volume descriptor", at: []int64{32 << 10}, size: 882, order: binary.LittleEndian,
	magic: []Mark{{0, "\x01CD001\x01"}},
	checks: func(s *super) {
		big := binary.BigEndian
		s.check(
			check{"block size", 0x80, 2, power(512, 2048).says("512, 1024 or 2048")},
			check{"block size, big-endian", 0x82, 0, equal(uint64(s.u16(0x80))).of(uint64(big.Uint16(s.b[0x82:])))},
			check{
				"volume space size, big-endian", 0x54, 0,
				equal(uint64(s.u32(0x50))).of(uint64(big.Uint32(s.b[0x54:]))),
			},
			check{"file structure version", 0x371, 1, equal(1)},
			check{"volume space size", 0x50, 4, s.blocks(int64(s.u16(0x80)))},
		)
	},
	volume: func(s *super) *Volume {
		const created, modified = 0x32d, 0x33e
		return &Volume{
			Kind: ISO9660, Label: s.label(0x28, 32), UUID: cmp.Or(isoDate(s, modified), isoDate(s, created)),
			BlockSize: int64(s.u16(0x80)), Size: s.i64(0x50) * int64(s.u16(0x80)),
		}
	},
}

// isoDate formats a date like libblkid: year, month, day, hour, minute, second, hundredths. It returns "" for all
// zeros.
func isoDate(s *super, off int64) string {
	digits := string(s.b[off : off+16])
	if strings.Trim(digits, "0123456789") != "" || (strings.Trim(digits, "0") == "" && s.b[off+16] == 0) {
		return ""
	}
	parts := []string{digits[:4]}
	for i := 4; i < len(digits); i += 2 {
		parts = append(parts, digits[i:i+2])
	}
	return strings.Join(parts, "-")
}

// vmfs is the device header of the VMware ESXi file system. VMware has published no specification. Spec: dissect.vmfs,
// c_lvm.py, struct LVM_DevMetadata.
var vmfs = &row{
	kinds: []Traits{{Kind: VMFS, Title: "VMFS", NeverStale: true}},
	what:  "vmfs device header", at: []int64{1 << 20}, size: units.SectorSize, order: binary.LittleEndian,
	magic: []Mark{{0, "\x0d\xd0\x01\xc0"}},
	checks: func(s *super) {
		s.check(
			check{"version", 4, 4, within(3, 6)},
			check{"data offset", 122, 8, below(ondisk.U64(s.d.Size())).
				says("less than %d, the size of the device", s.d.Size())},
		)
	},
	volume: func(s *super) *Volume {
		v := &Volume{Kind: VMFS, Size: s.d.Size(), DataStart: ondisk.I64(s.u64(122))}
		// as ESXi and libblkid format an identifier: two 32-bit numbers, a 16-bit number, and a MAC address
		v.Addf("device", "%08x-%08x-%04x-%x", s.u32(130), s.u32(134), s.u16(138), s.b[140:146])
		v.Note("vmfs", ondisk.Refuse, "VMFS: a moved VMFS is taken for a snapshot by ESXi",
			"move the virtual machines to a new datastore")
		return v
	},
}

// zfs detects a device of a pool. Spec of the space for boot loaders: ZFS On-Disk Specification, 1.3; GRUB 2.06,
// grub_zfs_embed.
var zfs = Prober{
	Kinds: []Traits{{Kind: ZFS, Title: "ZFS", InSlice: true, Checksummed: 4 << 20}},
	Probe: probeZFS,
}

// A device of a ZFS pool has four labels, two at the start and two at the end. A label holds a packed list of names and
// values and a ring of uberblocks. Spec: ZFS On-Disk Specification (draft, 2006), 1.2 "Vdev Labels".
const (
	zfsLabel     = 256 << 10
	atZFSList    = 16 << 10
	zfsListSize  = 112 << 10
	atUberblocks = 128 << 10
	uberblock    = 1 << 10 // minimum distance of two uberblocks
	uberMagic    = 0x00bab10c
	zfsDataStart = 4 << 20 // behind two labels and the boot area
	zfsMinSize   = 64 << 20
)

// Lists are packed in XDR. Spec: OpenZFS, module/nvpair/nvpair.c, "XDR encoding"; include/sys/nvpair.h, data_type_t.
const (
	nvNumber  = 8
	nvText    = 9
	nvMaxText = 255 // bytes of a name. Spec: OpenZFS, include/sys/fs/zfs.h, ZFS_MAX_DATASET_NAME_LEN
)

func probeZFS(d disk.Disk) (*Volume, error) {
	if d.Size() < zfsMinSize {
		return nil, ondisk.ErrNoMatch
	}
	var broken error
	for _, at := range []int64{0, zfsLabel} {
		v, err := readZFS(d, at)
		switch {
		case err == nil:
			return v, nil
		case isBroken(err):
			broken = err
		case !errors.Is(err, ondisk.ErrNoMatch):
			return nil, err
		}
	}
	if broken != nil {
		return nil, broken
	}
	return nil, ondisk.ErrNoMatch
}

// readZFS reads the label at an offset. A device in use has a list with version and GUID.
func readZFS(d disk.Disk, at int64) (*Volume, error) {
	const head = 12 // XDR, byte order of the machine, two reserved bytes; version 0; unique names
	b, err := ondisk.Bytes(d, at+atZFSList, head)
	if err != nil {
		return nil, err
	}
	if b[0] != 1 || b[1] > 1 || !bytes.Equal(b[2:], []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 1}) {
		return nil, ondisk.ErrNoMatch
	}
	if b, err = ondisk.Bytes(d, at+atZFSList, zfsListSize); err != nil {
		return nil, err
	}
	if nvUint(b, "version") == 0 || nvUint(b, "guid") == 0 {
		if err := findUberblock(d, at); err != nil {
			return nil, err
		}
		return nil, ondisk.Field("zfs label", "list", at+atZFSList, "neither guid nor version", "both")
	}
	v := &Volume{Kind: ZFS, Size: d.Size(), DataStart: zfsDataStart, AtEnd: true}
	if name := nvValue(b, "name", nvText, 4); name != nil {
		n := min(binary.BigEndian.Uint32(name), nvMaxText)
		v.Label = Text(name[4:min(len(name), 4+int(n))])
	}
	if n := nvUint(b, "pool_guid"); n != 0 {
		v.UUID = strconv.FormatUint(n, 10)
	}
	// The size of a device with parity counts all its disks. Spec: OpenZFS, include/sys/vdev_impl.h,
	// VDEV_LABEL_START_SIZE and VDEV_LABEL_END_SIZE: two labels and the boot block in front, two labels behind.
	if n := nvUint(b, "asize"); n < math.MaxInt64/2 && nvUint(b, "nparity") == 0 {
		v.Size = max(v.Size, zfsDataStart+ondisk.I64(n)+2*zfsLabel)
	}
	const minShift, maxShift = 9, 16
	if n := nvUint(b, "ashift"); n >= minShift && n <= maxShift {
		v.BlockSize = 1 << n
	}
	return v, nil
}

// findUberblock returns ErrNoMatch for a label without an uberblock. Such a label is not ZFS, even with a valid list.
func findUberblock(d disk.Disk, label int64) error {
	b, err := ondisk.Bytes(d, label+atUberblocks, zfsLabel-atUberblocks)
	if err != nil {
		return err
	}
	for ; len(b) > 0; b = b[uberblock:] {
		if binary.LittleEndian.Uint64(b) == uberMagic || binary.BigEndian.Uint64(b) == uberMagic {
			return nil
		}
	}
	return ondisk.ErrNoMatch
}

// nvValue returns the bytes behind the first name in a packed list with a single value of a kind. It returns nil if the
// name is absent or fewer than size bytes follow. It searches nested lists, too.
func nvValue(list []byte, name string, kind uint32, size int) []byte {
	pair := binary.BigEndian.AppendUint32(nil, uint32(len(name))) //nolint:gosec // names are constants of this file
	pair = append(pair, name+strings.Repeat("\x00", -len(name)&3)...)
	pair = binary.BigEndian.AppendUint32(pair, kind)
	pair = binary.BigEndian.AppendUint32(pair, 1)
	_, value, ok := bytes.Cut(list, pair)
	if !ok || len(value) < size {
		return nil
	}
	return value
}

// nvUint returns a number of a packed list, or 0 if the name is absent.
func nvUint(list []byte, name string) uint64 {
	if value := nvValue(list, name, nvNumber, 8); value != nil {
		return binary.BigEndian.Uint64(value)
	}
	return 0
}

// apfs is the container superblock of APFS (macOS since 10.13), in block 0. Spec: Apple File System Reference,
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

// isFusion reports whether the container spans two devices, which is an incompatible feature.
func isFusion(s *super) bool { return s.u64(0x40)&0x100 != 0 }

// fletcher64 returns the checksum of an object, stored in its first bytes. Spec: Apple File System Reference,
// "Objects".
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

// hfs is the master directory block of Mac OS up to 8.0, also of the wrapper around an HFS+. Spec: Apple, Inside
// Macintosh: Files, "Master Directory Blocks".
var hfs = &row{
	kinds: []Traits{{Kind: HFS, Title: "HFS"}},
	what:  "hfs master directory block", at: []int64{hfsAt}, size: 130, order: binary.BigEndian,
	magic:   []Mark{{0, "BD"}},
	matches: func(s *super) bool { return s.u16(0x0e) == 3 }, // start of the bitmap; two letters are weak evidence
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
	matches: func(s *super) bool { // two letters are weak evidence
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

// hfsUUID derives a UUID from a 64-bit number like libblkid: an MD5 in the Apple name space, marked as version 3. The
// hash has no security purpose.
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
