package volume

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// md detects a member of a Linux RAID.
var md = Prober{
	Kinds: []Traits{{
		Kind: MDRaid, Title: "Linux RAID", Precedence: 3, Data: "first chunk of Linux RAID",
		Realign: "to align its data, copy them to an array made by mdadm --create --data-offset 1M",
	}},
	Probe: probeMD,
}

const (
	mdSector   = 512
	md1Size    = 256 // bytes, without the device roles
	md1Page    = 4096
	md1SumAt   = 216
	md1RolesAt = 220 // offset of the number of roles
	md0SumAt   = 38 * 4
)

// probeMD tries four offsets in the order of libblkid. Version 0.90 is in the last 64 KiB of the device, 1.0 in the
// last 8 KiB.
func probeMD(d disk.Disk) (*Volume, error) {
	const reserved, atEnd = 64 << 10, 8 << 10
	size := d.Size()
	last := units.AlignDown(size, reserved) - reserved
	for _, c := range []struct {
		row *row
		at  int64
	}{{md0, last}, {md10, units.AlignDown(size, md1Page) - atEnd}, {md11, 0}, {md12, 4 << 10}} {
		if c.row == md0 && size < 2*reserved {
			continue
		}
		v, err := c.row.probeAt(d, c.at)
		if !errors.Is(err, ondisk.ErrNoMatch) {
			return v, err
		}
	}
	return nil, ondisk.ErrNoMatch
}

// md0 is a superblock of version 0.90, in the byte order of its machine. Spec: Linux, include/uapi/linux/raid/md_p.h,
// struct mdp_superblock_s.
var md0 = &row{
	what: "md 0.90 superblock", size: 4096, order: binary.LittleEndian,
	magic: []Mark{{0, "\xfc\x4e\x2b\xa9"}, {0, "\xa9\x2b\x4e\xfc"}},
	matches: func(s *super) bool {
		if s.u8(0) == 0xa9 {
			s.order = binary.BigEndian
		}
		return s.u32(4) == 0
	},
	checks: func(s *super) {
		most := ondisk.U64(s.at / units.KiB)
		s.check(
			check{"checksum", md0SumAt, 4, sum(func() uint64 { return uint64(mdSum(s.b, md0SumAt, s.order)) })},
			check{"size", 32, 4, within(0, most).says("up to %d KiB, the place of the superblock", most)},
		)
	},
	volume: func(s *super) *Volume {
		v := &Volume{
			Kind: MDRaid, Size: s.d.Size(), AtEnd: true, Holds: true,
			UUID: fmt.Sprintf("%08x:%08x:%08x:%08x", s.u32(20), s.u32(52), s.u32(56), s.u32(60)),
		}
		if s.u32(8) < 90 {
			v.UUID = fmt.Sprintf("%08x", s.u32(20))
		}
		version := fmt.Sprintf("0.%d", s.u32(8))
		if s.order == binary.BigEndian {
			version += ", big-endian"
		}
		raid(v, version, int32(s.u32(28)), s.u32(40), s.i64(260))
		return v
	},
}

// Superblocks of version 1 differ in their offset.
var (
	md10 = md1("1.0")
	md11 = md1("1.1")
	md12 = md1("1.2")
)

// md1 is a superblock of version 1. Two bytes per device follow it, the roles. Spec: Linux,
// include/uapi/linux/raid/md_p.h, struct mdp_superblock_1.
func md1(version string) *row {
	const maxRoles, maxDevices, atRole = (md1Page - md1Size) / 2, 4096, 160 // Linux stops at 1920 devices
	return &row{
		what: "md superblock", size: md1Page, order: binary.LittleEndian, magic: []Mark{{0, "\xfc\x4e\x2b\xa9"}},
		matches: func(s *super) bool { return s.u32(4) == 1 && s.u64(144) == ondisk.U64(s.at/mdSector) },
		checks: func(s *super) {
			sectors := s.d.Size() / mdSector
			s.check(
				check{"devices", md1RolesAt, 4, within(0, maxRoles).says("up to %d", maxRoles)},
				check{"checksum", md1SumAt, 4, sum(func() uint64 {
					return uint64(mdSum(s.b[:md1Size+2*s.u32(md1RolesAt)], md1SumAt, s.order))
				})},
				check{"raid devices", 92, 4, within(0, maxDevices).says("up to %d", maxDevices)},
				check{"data offset", 128, 8, below(ondisk.U64(sectors)).
					says("less than %d sectors, the size of the device", sectors)},
			)
		},
		volume: func(s *super) *Volume {
			const reshaping = 0x4
			id := s.b[16:32]
			v := &Volume{
				Kind: MDRaid, Label: s.text(32, 32), Size: s.d.Size(), AtEnd: version == "1.0",
				DataStart: ondisk.I64(s.u64(128)) * mdSector,
				UUID:      fmt.Sprintf("%x:%x:%x:%x", id[:4], id[4:8], id[8:12], id[12:]),
			}
			raid(v, version, int32(s.u32(72)), s.u32(92), s.i64(88)*mdSector) //nolint:gosec // as above
			role := ""
			if n := s.u32(atRole); n < s.u32(md1RolesAt) {
				role = mdRole(s.u16(md1Size + 2*int64(n)))
			}
			v.Holds = strings.HasPrefix(role, "device")
			v.Add("role", role)
			if s.u32(8)&reshaping != 0 {
				v.Add("reshape", "under way")
			}
			end := s.u64(128) + min(s.u64(136), math.MaxInt64/mdSector/2)
			v.Size = max(v.Size, ondisk.I64(end)*mdSector)
			return v
		},
	}
}

// mdRole returns the role of a device in its array.
func mdRole(n uint16) string {
	switch n {
	case 0xffff:
		return "spare"
	case 0xfffe:
		return "faulty"
	case 0xfffd:
		return "journal"
	}
	return fmt.Sprintf("device %d", n)
}

// mdSum returns the sum of all words except the word at byte skip, folded to 32 bits.
func mdSum(b []byte, skip int, order binary.ByteOrder) uint32 {
	var sum uint64
	for i := 0; i+4 <= len(b); i += 4 {
		if i != skip {
			sum += uint64(order.Uint32(b[i:]))
		}
	}
	if len(b)%4 == 2 {
		sum += uint64(order.Uint16(b[len(b)-2:]))
	}
	return uint32(sum&math.MaxUint32) + uint32(sum>>32)
}

// raid adds the details common to all versions. The level is printed by its mdadm name; chunk is in bytes.
func raid(v *Volume, version string, level int32, devices uint32, chunk int64) {
	v.Add("metadata", version)
	v.Add("level", mdLevel(level))
	v.Add("devices", strconv.FormatUint(uint64(devices), 10))
	if chunk <= 0 || level == 1 {
		return
	}
	v.Add("chunk size", units.Format(chunk))
	if level >= 0 {
		v.Chunk = chunk
	}
}

func mdLevel(level int32) string {
	switch level {
	case -1:
		return "linear"
	case -4:
		return "multipath"
	case -5:
		return "faulty"
	}
	return "raid" + strconv.Itoa(int(level))
}

// firmwareRAID is the on-disk metadata of a RAID by a BIOS or a cheap controller.
type firmwareRAID struct {
	name    string              // name in libblkid
	sectors []int64             // sectors from the end of the disk, negative from its start
	known   func(b []byte) bool // b is the metadata sector
}

// firmwareRAIDs is in the order of libblkid. Spec: util-linux, libblkid/src/superblocks/*_raid.c; for the checksums of
// nvidia and jmicron dmraid, lib/format/ataraid/nv.c and jm.c.
var firmwareRAIDs = []firmwareRAID{
	{"ddf_raid_member", []int64{1, 257}, isDDF},
	{"isw_raid_member", []int64{2}, func(b []byte) bool {
		return bytes.HasPrefix(b, []byte("Intel Raid ISM Cfg Sig. ")) && b[24] >= '0' && b[24] <= '9' && b[25] == '.'
	}},
	{"lsi_mega_raid_member", []int64{1}, func(b []byte) bool { return bytes.HasPrefix(b, []byte("$XIDE$")) }},
	{"via_raid_member", []int64{1}, isVIA},
	{"silicon_medley_raid_member", []int64{1}, isSilicon},
	{"nvidia_raid_member", []int64{2}, isNVIDIA},
	{
		"promise_fasttrack_raid_member",
		[]int64{63, 255, 256, 16, 399, 591, 675, 735, 911, 974, 991, 951, 3087},
		func(b []byte) bool {
			return bytes.HasPrefix(b, []byte("Promise Technology, Inc."))
		},
	},
	{"hpt45x_raid_member", []int64{11}, func(b []byte) bool { return isHighPoint(b, 0x5a7816f3) }},
	{"hpt37x_raid_member", []int64{-9}, func(b []byte) bool { return isHighPoint(b[32:], 0x5a7816f0) }},
	{"adaptec_raid_member", []int64{1}, func(b []byte) bool {
		return binary.BigEndian.Uint32(b) == 0x37fc4d1e && string(b[256:260]) == "DPTM"
	}},
	{"jmicron_raid_member", []int64{1}, func(b []byte) bool {
		return string(b[:2]) == "JM" && sum16(b[:128]) <= 1 // the 64 words add up to zero or one
	}},
}

// minFirmwareRAID is the minimum size of a disk to search, in bytes, as in libblkid.
const minFirmwareRAID = 256 * units.KiB

// FirmwareRAID returns the libblkid name of the BIOS or controller array of a whole disk. at is the byte offset of the
// metadata; name is empty if the disk is in no array.
func FirmwareRAID(d disk.Disk) (name string, at int64, err error) {
	if d.Size() < minFirmwareRAID {
		return "", 0, nil
	}
	for _, r := range firmwareRAIDs {
		for _, s := range r.sectors {
			at := (d.Size()/units.SectorSize - s) * units.SectorSize
			if s < 0 {
				at = -s * units.SectorSize
			}
			if at < 0 {
				continue
			}
			b, err := ondisk.Bytes(d, at, units.SectorSize)
			if err != nil {
				return "", 0, err
			}
			if r.known(b) {
				return r.name, at, nil
			}
		}
	}
	return "", 0, nil
}

// isDDF checks the signature of a DDF anchor, in either byte order, and its revision: "01.02.00".
func isDDF(b []byte) bool {
	const magic, revision = 0xde11de11, 32
	known := binary.BigEndian.Uint32(b) == magic || binary.LittleEndian.Uint32(b) == magic
	return known && b[revision] == '0' && b[revision+2] == '.' && b[revision+5] == '.'
}

// isVIA checks for version 0 to 2, and for the sum of the first 50 bytes in byte 50.
func isVIA(b []byte) bool {
	const sum = 50
	var n byte
	for _, x := range b[:sum] {
		n += x
	}
	return binary.LittleEndian.Uint16(b) == 0xaa55 && b[2] <= 2 && n == b[sum]
}

// isSilicon checks for a disk number below eight, and that the words up to the checksum add up to zero.
func isSilicon(b []byte) bool {
	const atMagic, atDisk, atSum = 0x60, 0x116, 0x13e
	return binary.LittleEndian.Uint32(b[atMagic:]) == 0x2f000000 && b[atDisk] < 8 && sum16(b[:atSum+2]) == 0
}

// isNVIDIA checks that all words add up to zero. The number of words follows the name.
func isNVIDIA(b []byte) bool {
	words := binary.LittleEndian.Uint32(b[8:])
	if !bytes.HasPrefix(b, []byte("NVIDIA")) || words < 5 || int64(words) > int64(len(b)/4) {
		return false
	}
	var sum uint32
	for w := range slices.Chunk(b[:4*words], 4) {
		sum += binary.LittleEndian.Uint32(w)
	}
	return sum == 0
}

// isHighPoint checks for the magic number of a good or failed member.
func isHighPoint(b []byte, good uint32) bool {
	n := binary.LittleEndian.Uint32(b)
	return n == good || n == 0x5a7816fd
}

func sum16(b []byte) (sum uint16) {
	for w := range slices.Chunk(b, 2) {
		sum += binary.LittleEndian.Uint16(w)
	}
	return sum
}

const (
	bcacheMaxKeys = 256 // journal buckets, 8 bytes each, behind the fixed part
	bcacheFixed   = 208
	bcacheSector  = 512
)

// bcache is the superblock of a device in bcache, the Linux cache for slow disks. Spec: Linux,
// drivers/md/bcache/bcache_ondisk.h, struct cache_sb_disk.
var bcache = &row{
	kinds: []Traits{{
		Kind: BCache, Data: "first sector of the data of bcache",
		Realign: "to align its data, copy them to a device made by make-bcache --data-offset 2048",
	}},
	what: "bcache superblock", at: []int64{4 << 10}, size: bcacheFixed + 8*bcacheMaxKeys, order: binary.LittleEndian,
	magic: []Mark{{24, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"}},
	// Old bcachefs has the same magic number, but part of a checksum where bcache stores its own sector.
	matches: func(s *super) bool { return s.u64(8) == ondisk.U64(s.at)/bcacheSector },
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

// bcacheData finds the start of the data, as a version of the superblock stores it.
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

// crc64WE returns the CRC-64/WE: the ECMA-182 polynomial, most significant bit first, which hash/crc64 lacks.
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
