// Package filesystem finds the file systems whose files are not read.
package filesystem

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// XFS finds the file system of IRIX and Linux.
var XFS = volume.Prober{
	Kinds: []volume.Traits{{Kind: volume.XFS, Title: "XFS"}},
	Marks: []volume.Mark{{Off: 0, Bytes: "XFSB"}},
	Probe: probeXFS,
}

// xfsSuper is the superblock of the first allocation group, big-endian but for the checksum. Spec: XFS Algorithms &
// Data Structures, 3rd edition, "Superblocks".
type xfsSuper struct {
	Magic          uint32
	BlockSize      uint32
	DataBlocks     uint64
	RealtimeBlocks uint64
	_              uint64
	UUID           [16]byte
	LogStart       uint64 // block of the log, 0 when it is on another device
	_              [28]byte
	AGBlocks       uint32
	AGCount        uint32
	_              [2]uint32
	Version        uint16 // number in the low four bits, features above
	SectorSize     uint16
	InodeSize      uint16
	_              uint16
	Label          [12]byte
	BlockLog       uint8
	SectorLog      uint8
	InodeLog       uint8
	_              [3]byte
	InProgress     uint8 // mkfs is at work
	_              [97]byte
	Checksum       uint32 // version 5, little-endian
}

const (
	xfsWhat       = "xfs superblock"
	xfsMagic      = 0x58465342 // "XFSB"
	xfsAtChecksum = 0xe0
)

func probeXFS(d disk.Disk) (*volume.Volume, error) {
	var s xfsSuper
	if _, err := volume.Superblock(d, 0, binary.BigEndian, &s); err != nil {
		return nil, err
	}
	if s.Magic != xfsMagic {
		return nil, ondisk.ErrNoMatch
	}
	if err := s.check(d.Size()); err != nil {
		return nil, err
	}
	if err := s.checksum(d); err != nil {
		return nil, err
	}
	v := &volume.Volume{
		Kind: volume.XFS, Label: volume.Label(s.Label[:]), UUID: volume.UUID(s.UUID),
		BlockSize: int64(s.BlockSize), Size: ondisk.I64(s.DataBlocks) * int64(s.BlockSize),
		SectorSize: int64(s.SectorSize),
	}
	v.Addf("version", "%d", s.number())
	if s.LogStart == 0 {
		v.Addf("log", "on another device")
		v.Note("xfs-log", ondisk.Note, "the log of the XFS is on another device: the guest needs both", "")
	}
	if s.RealtimeBlocks > 0 {
		v.Addf("realtime section", "on another device")
	}
	return v, nil
}

func (s *xfsSuper) number() uint16 { return s.Version & 0xf }

// check accepts the values that the kernel mounts. size is the size of the partition in bytes.
func (s *xfsSuper) check(size int64) error {
	block := int64(s.BlockSize)
	groups := uint64(s.AGCount) * uint64(s.AGBlocks)
	switch {
	case !volume.PowerBetween(block, 512, 64<<10) || block != 1<<s.BlockLog:
		return ondisk.Field(xfsWhat, "block size", 0x04, block,
			fmt.Sprintf("a power of two from 512 to 65536 that is 2^%d, as its logarithm says", s.BlockLog))
	case s.number() == 0 || s.number() > 5:
		return ondisk.Field(xfsWhat, "version", 0x64, s.number(), "1 to 5")
	case !volume.PowerBetween(int64(s.SectorSize), 512, 32<<10) || int64(s.SectorSize) != 1<<s.SectorLog:
		return ondisk.Field(xfsWhat, "sector size", 0x66, s.SectorSize,
			fmt.Sprintf("a power of two from 512 to 32768 that is 2^%d, as its logarithm says", s.SectorLog))
	case !volume.PowerBetween(int64(s.InodeSize), 256, 2048) || int64(s.InodeSize) != 1<<s.InodeLog:
		return ondisk.Field(xfsWhat, "inode size", 0x68, s.InodeSize,
			fmt.Sprintf("a power of two from 256 to 2048 that is 2^%d, as its logarithm says", s.InodeLog))
	case s.InProgress != 0:
		return ondisk.Field(xfsWhat, "in progress", 0x7e, s.InProgress, "0, as a finished mkfs leaves it")
	case s.AGBlocks < 64:
		return ondisk.Field(xfsWhat, "blocks of a group", 0x54, s.AGBlocks, "64 or more")
	case s.AGCount == 0 || s.DataBlocks > groups || s.DataBlocks <= groups-uint64(s.AGBlocks):
		return ondisk.Field(xfsWhat, "groups", 0x58, s.AGCount,
			fmt.Sprintf("as many groups of %d blocks as hold %d blocks", s.AGBlocks, s.DataBlocks))
	}
	return volume.BlocksWithin(xfsWhat, "data blocks", 0x08, s.DataBlocks, block, size)
}

// checksum verifies the sector of the superblock, with the field itself zero.
func (s *xfsSuper) checksum(d disk.Disk) error {
	if s.number() < 5 {
		return nil
	}
	b, err := ondisk.Bytes(d, 0, int64(s.SectorSize))
	if err != nil {
		return err
	}
	got := binary.LittleEndian.Uint32(b[xfsAtChecksum:])
	clear(b[xfsAtChecksum : xfsAtChecksum+4])
	if want := crc32.Checksum(b, castagnoli); got != want {
		return ondisk.Field(xfsWhat, "checksum", xfsAtChecksum, volume.Hex(got), volume.Hex(want))
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)
