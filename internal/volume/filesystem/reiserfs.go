package filesystem

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// ReiserFS finds a file system of Linux, version 3.
var ReiserFS = volume.Prober{
	Kinds: []volume.Traits{{Kind: volume.ReiserFS, Title: "ReiserFS"}},
	Probe: probeReiserFS,
}

// reiserSuper is the superblock, 64 KiB into the volume, 8 KiB in the oldest. Spec: Linux, fs/reiserfs/reiserfs.h,
// reiserfs_super_block.
type reiserSuper struct {
	Blocks       uint32
	FreeBlocks   uint32
	RootBlock    uint32
	JournalBlock uint32
	JournalDev   uint32
	_            [6]uint32
	BlockSize    uint16
	_            [2]uint16
	UmountState  uint16
	Magic        [10]byte
	_            [22]byte // states, hash, tree, bitmaps
	UUID         [16]byte
	Label        [16]byte
}

const (
	reiserWhat  = "reiserfs superblock"
	reiserAt    = 64 << 10
	reiserOldAt = 8 << 10

	reiser35      = "ReIsErFs"
	reiser36      = "ReIsEr2Fs"
	reiserJournal = "ReIsEr3Fs" // the journal is not where it is by default

	reiserDirty = 2
)

func probeReiserFS(d disk.Disk) (*volume.Volume, error) {
	for _, at := range []int64{reiserAt, reiserOldAt} {
		var s reiserSuper
		if _, err := volume.Superblock(d, at, binary.LittleEndian, &s); err != nil {
			return nil, err
		}
		magic := volume.Text(s.Magic[:])
		if magic != reiser35 && (at == reiserOldAt || (magic != reiser36 && magic != reiserJournal)) {
			continue
		}
		if err := s.check(at, d.Size()); err != nil {
			return nil, err
		}
		if s.JournalDev == 0 && at/int64(s.BlockSize) > int64(s.JournalBlock) {
			continue // a block that the journal holds a copy of
		}
		return s.volume(magic), nil
	}
	return nil, ondisk.ErrNoMatch
}

func (s *reiserSuper) volume(magic string) *volume.Volume {
	v := &volume.Volume{
		Kind: volume.ReiserFS, BlockSize: int64(s.BlockSize),
		Size: int64(s.Blocks) * int64(s.BlockSize),
	}
	v.Addf("format", "%s", map[string]string{reiser35: "3.5", reiser36: "3.6", reiserJournal: "JR"}[magic])
	if magic != reiser35 { // 3.5 has other things in these fields
		v.Label, v.UUID = volume.Label(s.Label[:]), volume.UUID(s.UUID)
	}
	if s.JournalDev != 0 {
		v.Addf("journal", "on another device")
		v.Note("reiserfs-journal", ondisk.Note, "the journal of the ReiserFS is on another device: the "+
			"guest needs both", "")
	}
	if s.UmountState == reiserDirty {
		v.Note("reiserfs-dirty", ondisk.Note, "ReiserFS was not unmounted cleanly", "")
	}
	return v
}

// check verifies the superblock at a place. size is the size of the partition in bytes.
func (s *reiserSuper) check(at, size int64) error {
	block := int64(s.BlockSize)
	if !volume.PowerBetween(block, 512, 8192) {
		return ondisk.Field(reiserWhat, "block size", at+0x2c, block, "a power of two from 512 to 8192")
	}
	if err := volume.BlocksWithin(reiserWhat, "block count", at, uint64(s.Blocks), block, size); err != nil {
		return err
	}
	switch {
	case s.FreeBlocks >= s.Blocks:
		return ondisk.Field(reiserWhat, "free blocks", at+0x04, s.FreeBlocks, fmt.Sprintf("less than %d", s.Blocks))
	case s.RootBlock >= s.Blocks && s.RootBlock != 1<<32-1: // all ones while the tree is rebuilt
		return ondisk.Field(reiserWhat, "root block", at+0x08, s.RootBlock, fmt.Sprintf("less than %d", s.Blocks))
	}
	return nil
}
