package volume

import (
	"encoding/binary"
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

// md1Super is a superblock of version 1, little-endian. Numbers of two bytes for each device follow. Spec: Linux,
// include/uapi/linux/raid/md_p.h, struct mdp_superblock_1.
type md1Super struct {
	Magic       uint32
	Major       uint32
	Features    uint32
	_           uint32
	SetUUID     [16]byte
	SetName     [32]byte
	_           uint64 // creation time
	Level       int32
	_           uint32 // layout
	_           uint64 // size that is used of each device
	Chunk       uint32 // sectors
	Devices     uint32
	_           [32]byte // bitmap, and a change of shape
	DataOffset  uint64   // sectors
	DataSize    uint64   // sectors
	SuperOffset uint64   // sectors, its own place
	_           uint64
	Number      uint32 // of this device, an index of the roles
	_           uint32
	_           [16]byte // UUID of the device
	_           [8]byte
	_           [24]byte // times, events, progress
	Checksum    uint32
	MaxDevices  uint32 // roles that follow
	_           [32]byte
}

// md0Super is a superblock of version 0.90, in the byte order of the machine. Spec: Linux,
// include/uapi/linux/raid/md_p.h, struct mdp_superblock_s.
type md0Super struct {
	Magic    uint32
	Major    uint32
	Minor    uint32
	_        uint32 // patch level
	_        uint32
	UUID0    uint32
	_        uint32 // creation time
	Level    int32
	Size     uint32 // KiB that are used of each device
	_        uint32 // devices with spares
	Devices  uint32
	_        uint32 // number of the array
	_        uint32
	UUID1    uint32
	UUID2    uint32
	UUID3    uint32
	_        [16]uint32
	_        [6]uint32 // state
	Checksum uint32
	_        [25]uint32
	_        uint32 // layout
	Chunk    uint32 // bytes
	_        [62]uint32
	_        [896]uint32 // devices
}

const (
	md0What = "md 0.90 superblock"
	md1What = "md superblock"
	mdMagic = 0xa92b4efc

	mdSector     = 512
	md0Size      = 4096
	md0Reserved  = 64 << 10 // at the end of the device
	md1Size      = 256
	md1MaxRoles  = (4096 - md1Size) / 2
	md1AtEnd     = 8 << 10
	md1Granule   = 4 << 10
	mdReshaping  = 0x4
	mdMaxDevices = 4096 // Linux stops at 1920
)

// probeMD tries four places in the order of libblkid.
func probeMD(d disk.Disk) (*Volume, error) {
	size := d.Size()
	v, err := (*Volume)(nil), ondisk.ErrNoMatch
	if size >= 2*md0Reserved {
		v, err = probeMD0(d, units.AlignDown(size, md0Reserved)-md0Reserved)
	}
	for _, c := range []struct {
		version string
		at      int64
	}{{"1.0", units.AlignDown(size, md1Granule) - md1AtEnd}, {"1.1", 0}, {"1.2", 4 << 10}} {
		if err != ondisk.ErrNoMatch { //nolint:errorlint // the probers of this file return it as it is
			return v, err
		}
		if c.at >= 0 && c.at <= size-md1Granule {
			v, err = probeMD1(d, c.at, c.version)
		}
	}
	return v, err
}

func probeMD0(d disk.Disk, at int64) (*Volume, error) {
	b, err := ondisk.Bytes(d, at, md0Size)
	if err != nil {
		return nil, err
	}
	var order binary.ByteOrder = binary.LittleEndian
	if order.Uint32(b) != mdMagic {
		order = binary.BigEndian
	}
	var s md0Super
	ondisk.MustFill(b, order, &s)
	if s.Magic != mdMagic || s.Major != 0 {
		return nil, ondisk.ErrNoMatch
	}
	const atSum = 38 * 4
	if sum := mdSum(b, atSum, order); s.Checksum != sum {
		return nil, ondisk.Field(md0What, "checksum", at+atSum, Hex(s.Checksum), Hex(sum))
	}
	if int64(s.Size) > at/units.KiB {
		return nil, ondisk.Field(md0What, "size", at+32, s.Size,
			fmt.Sprintf("up to %d KiB, the place of the superblock", at/units.KiB))
	}
	v := &Volume{
		Kind: MDRaid, Size: d.Size(), AtEnd: true, Holds: true,
		UUID: fmt.Sprintf("%08x:%08x:%08x:%08x", s.UUID0, s.UUID1, s.UUID2, s.UUID3),
	}
	if s.Minor < 90 {
		v.UUID = fmt.Sprintf("%08x", s.UUID0)
	}
	order0 := ""
	if order == binary.BigEndian {
		order0 = ", big-endian"
	}
	raid(v, "0."+strconv.FormatUint(uint64(s.Minor), 10)+order0, s.Level, s.Devices, int64(s.Chunk))
	return v, nil
}

func probeMD1(d disk.Disk, at int64, version string) (*Volume, error) {
	b, err := ondisk.Bytes(d, at, md1Granule)
	if err != nil {
		return nil, err
	}
	var s md1Super
	ondisk.MustFill(b, binary.LittleEndian, &s)
	if s.Magic != mdMagic || s.Major != 1 || s.SuperOffset != ondisk.U64(at/mdSector) {
		return nil, ondisk.ErrNoMatch
	}
	if err := s.check(b, at, d.Size()); err != nil {
		return nil, err
	}
	v := &Volume{
		Kind: MDRaid, Label: Text(s.SetName[:]), Size: d.Size(),
		DataStart: ondisk.I64(s.DataOffset) * mdSector, AtEnd: version == "1.0",
		UUID: fmt.Sprintf("%x:%x:%x:%x", s.SetUUID[:4], s.SetUUID[4:8], s.SetUUID[8:12], s.SetUUID[12:]),
	}
	raid(v, version, s.Level, s.Devices, int64(s.Chunk)*mdSector)
	role := s.role(b)
	v.Holds = strings.HasPrefix(role, "device")
	v.Add("role", role)
	if s.Features&mdReshaping != 0 {
		v.Add("reshape", "under way")
	}
	end := s.DataOffset + min(s.DataSize, math.MaxInt64/mdSector/2)
	v.Size = max(v.Size, ondisk.I64(end)*mdSector)
	return v, nil
}

// check verifies the checksum of a superblock, and bounds it by the device. b is its page.
func (s *md1Super) check(b []byte, at, size int64) error {
	const atSum, atRoles, atDevices, atData = 216, 220, 92, 128
	if s.MaxDevices > md1MaxRoles {
		return ondisk.Field(md1What, "devices", at+atRoles, s.MaxDevices, fmt.Sprintf("up to %d", md1MaxRoles))
	}
	if sum := mdSum(b[:md1Size+2*s.MaxDevices], atSum, binary.LittleEndian); s.Checksum != sum {
		return ondisk.Field(md1What, "checksum", at+atSum, Hex(s.Checksum), Hex(sum))
	}
	switch {
	case s.Devices > mdMaxDevices:
		return ondisk.Field(md1What, "raid devices", at+atDevices, s.Devices, fmt.Sprintf("up to %d", mdMaxDevices))
	case s.DataOffset >= ondisk.U64(size/mdSector):
		return ondisk.Field(md1What, "data offset", at+atData, s.DataOffset,
			fmt.Sprintf("less than %d sectors, the size of the device", size/mdSector))
	}
	return nil
}

// role returns the role of the device in its array.
func (s *md1Super) role(b []byte) string {
	if s.Number >= s.MaxDevices {
		return ""
	}
	switch n := binary.LittleEndian.Uint16(b[md1Size+2*s.Number:]); n {
	case 0xffff:
		return "spare"
	case 0xfffe:
		return "faulty"
	case 0xfffd:
		return "journal"
	default:
		return fmt.Sprintf("device %d", n)
	}
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
