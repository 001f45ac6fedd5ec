package volume

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// md finds a member of a RAID of Linux.
var md = Prober{
	Kinds: []Traits{{
		Kind: MDRaid, Title: "Linux RAID", Precedence: 3, Data: "first chunk of Linux RAID",
		Realign: "to align its data, copy them to an array made by mdadm --create --data-offset 1M",
	}},
	Probe: probeMD,
}

const (
	mdSector   = 512
	md1Size    = 256 // bytes, without the roles of the devices
	md1Page    = 4096
	md1SumAt   = 216
	md1RolesAt = 220 // the number of roles
	md0SumAt   = 38 * 4
)

// probeMD tries four places in the order of libblkid. Version 0.90 is in the last 64 KiB of the device, 1.0 in the last
// 8 KiB.
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

// md0 is a superblock of version 0.90, in the byte order of the machine. Spec: Linux, include/uapi/linux/raid/md_p.h,
// struct mdp_superblock_s.
var md0 = &row{
	what: "md 0.90 superblock", size: 4096, order: binary.LittleEndian,
	magic: []Mark{{0, "\xfc\x4e\x2b\xa9"}, {0, "\xa9\x2b\x4e\xfc"}},
	mine: func(s *super) bool {
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

// Superblocks of version 1 differ by their place.
var (
	md10 = md1("1.0")
	md11 = md1("1.1")
	md12 = md1("1.2")
)

// md1 is a superblock of version 1. Numbers of two bytes for each device follow. Spec: Linux,
// include/uapi/linux/raid/md_p.h, struct mdp_superblock_1.
func md1(version string) *row {
	const maxRoles, maxDevices, atRole = (md1Page - md1Size) / 2, 4096, 160 // Linux stops at 1920 devices
	return &row{
		what: "md superblock", size: md1Page, order: binary.LittleEndian, magic: []Mark{{0, "\xfc\x4e\x2b\xa9"}},
		mine: func(s *super) bool { return s.u32(4) == 1 && s.u64(144) == ondisk.U64(s.at/mdSector) },
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

// mdSum returns the sum of all words except the one at byte skip, folded to 32 bits.
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

// raid adds the details that all versions have. The level is a name, as in mdadm; chunk is in bytes.
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
