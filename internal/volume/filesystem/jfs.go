package filesystem

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// JFS finds the journalled file system of OS/2 and Linux.
var JFS = volume.Prober{
	Kinds: []volume.Traits{{Kind: volume.JFS, Title: "JFS"}},
	Probe: probeJFS,
}

// jfsSuper is the superblock, 32 KiB into the volume. Spec: Linux, fs/jfs/jfs_superblock.h.
type jfsSuper struct {
	Magic        [4]byte
	Version      uint32
	Size         uint64 // of the aggregate, in physical blocks
	BlockSize    uint32
	BlockLog     uint16
	FactorLog    uint16 // of block and physical block
	PhysicalSize uint32
	PhysicalLog  uint16
	_            uint16
	GroupSize    uint32
	Flags        uint32
	State        uint32
	_            [7]uint32 // second inode tables, device of the log
	Log          jfsExtent
	Fsck         jfsExtent
	_            [48]byte
	UUID         [16]byte
	Label        [16]byte
	_            [16]byte // UUID of the log
}

// jfsExtent is a pxd_t: 24 bits of length and 40 of address, in blocks.
type jfsExtent struct{ LengthAndHigh, Low uint32 }

func (e jfsExtent) end() int64 {
	return int64(e.LengthAndHigh>>24)<<32 + int64(e.Low) + int64(e.LengthAndHigh&0xffffff)
}

const (
	jfsWhat      = "jfs superblock"
	jfsAt        = 32 << 10
	jfsMagic     = "JFS1"
	jfsInlineLog = 0x800
)

func probeJFS(d disk.Disk) (*volume.Volume, error) {
	var s jfsSuper
	if _, err := volume.Superblock(d, jfsAt, binary.LittleEndian, &s); err != nil {
		return nil, err
	}
	if string(s.Magic[:]) != jfsMagic {
		return nil, ondisk.ErrNoMatch
	}
	if err := s.check(d.Size()); err != nil {
		return nil, err
	}
	v := &volume.Volume{
		Kind: volume.JFS, Label: volume.Label(s.Label[:]), UUID: volume.UUID(s.UUID),
		BlockSize: int64(s.BlockSize), Size: s.end(),
	}
	v.Addf("version", "%d", s.Version)
	if s.Flags&jfsInlineLog == 0 {
		v.Addf("log", "on another device")
		v.Note("jfs-log", ondisk.Note, "the log of the JFS is on another device: the guest needs both", "")
	}
	if s.State != 0 { // mounted, dirty, or its log is being replayed
		v.Note("jfs-dirty", ondisk.Note, "JFS was not unmounted cleanly", "")
	}
	return v, nil
}

// end returns the end of aggregate, work space of fsck and log, in bytes.
func (s *jfsSuper) end() int64 {
	end := ondisk.I64(s.Size) * int64(s.PhysicalSize)
	end = max(end, s.Fsck.end()*int64(s.BlockSize))
	if s.Flags&jfsInlineLog != 0 {
		end = max(end, s.Log.end()*int64(s.BlockSize))
	}
	return end
}

// check verifies that sizes agree with their logarithms. size is the size of the partition in bytes.
func (s *jfsSuper) check(size int64) error {
	block, physical := int64(s.BlockSize), int64(s.PhysicalSize)
	switch {
	case s.Version == 0 || s.Version > 2:
		return ondisk.Field(jfsWhat, "version", jfsAt+0x04, s.Version, "1 or 2")
	case !volume.PowerBetween(block, 512, 4096) || s.BlockLog > 12 || block != 1<<s.BlockLog:
		return ondisk.Field(jfsWhat, "block size", jfsAt+0x10, block,
			"a power of two from 512 to 4096 that agrees with its logarithm")
	case !volume.PowerBetween(physical, 512, block) || s.PhysicalLog > 12 || physical != 1<<s.PhysicalLog:
		return ondisk.Field(jfsWhat, "physical block size", jfsAt+0x18, physical,
			fmt.Sprintf("a power of two from 512 to %d that agrees with its logarithm", block))
	case s.BlockLog-s.PhysicalLog != s.FactorLog:
		return ondisk.Field(jfsWhat, "block size factor", jfsAt+0x16, s.FactorLog, s.BlockLog-s.PhysicalLog)
	case !volume.PowerBetween(int64(s.GroupSize), 1, 1<<31):
		return ondisk.Field(jfsWhat, "group size", jfsAt+0x20, s.GroupSize, "a power of two")
	}
	if err := volume.BlocksWithin(jfsWhat, "aggregate size", jfsAt+0x08, s.Size, physical, size); err != nil {
		return err
	}
	if s.end() > size {
		return ondisk.Field(jfsWhat, "log", jfsAt+0x48, s.end()/block,
			fmt.Sprintf("an end within the %d blocks of the partition", size/block))
	}
	return nil
}
