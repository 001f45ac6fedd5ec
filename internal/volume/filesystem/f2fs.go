package filesystem

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// F2FS finds the flash-friendly file system of Linux.
var F2FS = volume.Prober{
	Kinds: []volume.Traits{{Kind: volume.F2FS, Title: "F2FS"}},
	Marks: []volume.Mark{{Off: f2fsAt, Bytes: "\x10\x20\xf5\xf2"}},
	Probe: probeF2FS,
}

// f2fsSuper is the first of two superblocks, 1024 bytes into the volume. Spec: Linux, include/linux/f2fs_fs.h,
// f2fs_super_block.
type f2fsSuper struct {
	Magic              uint32
	Major              uint16
	Minor              uint16
	LogSectorSize      uint32
	LogSectorsPerBlock uint32
	LogBlockSize       uint32
	LogBlocksPerSeg    uint32
	SegsPerSection     uint32
	_                  uint32
	ChecksumOffset     uint32 // 0 without checksum
	Blocks             uint64 // on all devices
	_                  uint32 // sections
	Segments           uint32
	_                  [5]uint32 // of the areas
	Segment0           uint32
	_                  [5]uint32 // addresses of the areas
	RootInode          uint32
	NodeInode          uint32
	MetaInode          uint32
	UUID               [16]byte
	Label              [1024]byte // UTF-16
	_                  [1032]byte // file name extensions, versions of the kernel
	Feature            uint32
	_                  [17]byte
	Devices            [8]f2fsDevice
	_                  [323]byte
	Checksum           uint32
}

type f2fsDevice struct {
	Path     [64]byte
	Segments uint32
}

const (
	f2fsWhat       = "f2fs superblock"
	f2fsMagic      = 0xf2f52010
	f2fsAtChecksum = 3068
	f2fsFeatureSum = 0x800
)

func probeF2FS(d disk.Disk) (*volume.Volume, error) {
	var s f2fsSuper
	raw, err := volume.Superblock(d, f2fsAt, binary.LittleEndian, &s)
	if err != nil {
		return nil, err
	}
	if s.Magic != f2fsMagic {
		return nil, ondisk.ErrNoMatch
	}
	if err := s.check(raw, d.Size()); err != nil {
		return nil, err
	}
	v := &volume.Volume{
		Kind: volume.F2FS, Label: ondisk.UTF16Z(s.Label[:], binary.LittleEndian),
		UUID: volume.UUID(s.UUID), BlockSize: s.block(), Size: s.blocks() * s.block(),
	}
	v.Addf("version", "%d.%d", s.Major, s.Minor)
	if s.several() {
		v.Note("f2fs-devices", ondisk.Note,
			"this is the first of several devices of an F2FS: the guest needs all of them", "")
	}
	return v, nil
}

func (s *f2fsSuper) field(name string, off int64, got, want any) error {
	return ondisk.Field(f2fsWhat, name, f2fsAt+off, got, want)
}

// check accepts the values that the kernel mounts. size is the size of the partition in bytes.
func (s *f2fsSuper) check(raw []byte, size int64) error {
	switch {
	case s.LogBlockSize < 12 || s.LogBlockSize > 16:
		return s.field("log block size", 0x10, s.LogBlockSize, "12 to 16 (4 to 64 KiB)")
	case s.LogSectorSize < 9 || s.LogSectorSize > s.LogBlockSize:
		return s.field("log sector size", 0x08, s.LogSectorSize, fmt.Sprintf("9 to %d", s.LogBlockSize))
	case s.LogSectorsPerBlock != s.LogBlockSize-s.LogSectorSize:
		return s.field("log sectors per block", 0x0c, s.LogSectorsPerBlock, s.LogBlockSize-s.LogSectorSize)
	case s.LogBlocksPerSeg != 9:
		return s.field("log blocks per segment", 0x14, s.LogBlocksPerSeg, 9)
	case s.SegsPerSection == 0 || s.SegsPerSection > s.Segments:
		return s.field("segments per section", 0x18, s.SegsPerSection, fmt.Sprintf("1 to %d", s.Segments))
	case s.RootInode != 3 || s.NodeInode != 1 || s.MetaInode != 2:
		return s.field("inodes of root, node and meta", 0x60, fmt.Sprint(s.RootInode, s.NodeInode, s.MetaInode),
			"3 1 2")
	case s.Blocks>>s.LogBlocksPerSeg < uint64(s.Segments):
		return s.field("segments", 0x30, s.Segments, fmt.Sprintf("at most those of %d blocks", s.Blocks))
	}
	if err := s.checksum(raw); err != nil {
		return err
	}
	if s.several() {
		return volume.BlocksWithin(f2fsWhat, "blocks of the first device", f2fsAt+2201+64, ondisk.U64(s.blocks()),
			s.block(), size)
	}
	return volume.BlocksWithin(f2fsWhat, "block count", f2fsAt+0x24, s.Blocks, s.block(), size)
}

// checksum verifies a CRC-32 that begins with the magic number and is not inverted at the end.
func (s *f2fsSuper) checksum(raw []byte) error {
	if s.Feature&f2fsFeatureSum == 0 {
		return nil
	}
	if s.ChecksumOffset != f2fsAtChecksum {
		return s.field("checksum offset", 0x20, s.ChecksumOffset, f2fsAtChecksum)
	}
	const seed uint32 = f2fsMagic
	if want := ^crc32.Update(^seed, crc32.IEEETable, raw[:f2fsAtChecksum]); s.Checksum != want {
		return s.field("checksum", f2fsAtChecksum, volume.Hex(s.Checksum), volume.Hex(want))
	}
	return nil
}

func (s *f2fsSuper) block() int64 { return 1 << s.LogBlockSize }

func (s *f2fsSuper) several() bool { return s.Devices[1].Path[0] != 0 }

// blocks returns the number of blocks on this device. On the first of several, these are its segments and the blocks in
// front of them.
func (s *f2fsSuper) blocks() int64 {
	if s.several() {
		return int64(s.Segment0) + int64(s.Devices[0].Segments)<<s.LogBlocksPerSeg
	}
	return ondisk.I64(s.Blocks)
}

// f2fsAt is the place of the superblock, in bytes.
const f2fsAt = 1024
