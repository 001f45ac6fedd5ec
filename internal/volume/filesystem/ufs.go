package filesystem

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// UFS finds the file system of the BSDs and Solaris.
var UFS = volume.Prober{
	Kinds: []volume.Traits{
		{Kind: "ufs", Title: "UFS"},
		{Kind: volume.UFS1, Title: "UFS1", InSlice: true},
		{Kind: volume.UFS2, Title: "UFS2", InSlice: true},
	},
	Probe: probeUFS,
}

// ufsSuper is the superblock of both generations, in the byte order of the machine that made it. Spec: FreeBSD,
// sys/ufs/ffs/fs.h, struct fs.
type ufsSuper struct {
	_          [36]byte
	OldSize    int32 // in fragments; UFS2 has Size instead
	_          [4]byte
	Groups     uint32
	BlockSize  int32
	FragSize   int32
	Frags      int32 // of a block
	_          [84]byte
	ID         [2]uint32
	_          [528]byte
	VolumeName [32]byte
	_          [288]byte
	SuperPlace int64 // bytes; 0 in old UFS1
	_          [72]byte
	Size       int64 // in fragments
	_          [284]byte
	Magic      uint32
}

const (
	ufsWhat     = "ufs superblock"
	ufs1Magic   = 0x00011954
	ufs2Magic   = 0x19540119
	ufsAtMagic  = 1372
	ufsMinBlock = 4096
)

// ufsPlaces are the places that boot code searches, in its order. Spec: FreeBSD, sys/ufs/ffs/fs.h, SBLOCKSEARCH.
var ufsPlaces = []int64{64 << 10, 8 << 10, 0, 256 << 10}

func probeUFS(d disk.Disk) (*volume.Volume, error) {
	for _, at := range ufsPlaces {
		if at > d.Size()-(ufsAtMagic+4) {
			continue
		}
		magic, err := ondisk.Bytes(d, at+ufsAtMagic, 4)
		if err != nil {
			return nil, err
		}
		for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
			if m := order.Uint32(magic); m != ufs1Magic && m != ufs2Magic {
				continue
			}
			var s ufsSuper
			if _, err := volume.Superblock(d, at, order, &s); err != nil {
				return nil, err
			}
			if !s.belongs(at) {
				continue
			}
			if err := s.check(at, d.Size()); err != nil {
				return nil, err
			}
			return s.volume(order), nil
		}
	}
	return nil, ondisk.ErrNoMatch
}

// belongs reports whether a superblock stands in its place. It may be a copy, or lie in an image in a file. A UFS1 with
// blocks of 64 KiB has a copy in the place of UFS2.
func (s *ufsSuper) belongs(at int64) bool {
	if s.Magic == ufs2Magic {
		return s.SuperPlace == at
	}
	return at <= 8<<10
}

func (s *ufsSuper) volume(order binary.ByteOrder) *volume.Volume {
	v := &volume.Volume{Kind: volume.UFS1, BlockSize: int64(s.BlockSize), Size: s.frags() * int64(s.FragSize)}
	if s.Magic == ufs2Magic {
		v.Kind, v.Label = volume.UFS2, volume.Label(s.VolumeName[:])
	}
	if s.ID != [2]uint32{} {
		v.UUID = fmt.Sprintf("%08x%08x", s.ID[0], s.ID[1])
	}
	v.Addf("fragment size", "%d", s.FragSize)
	if order == binary.BigEndian {
		v.Addf("byte order", "big-endian")
	}
	return v
}

func (s *ufsSuper) frags() int64 {
	if s.Magic == ufs2Magic {
		return s.Size
	}
	return int64(s.OldSize)
}

// check verifies the superblock at a place. size is the size of the partition in bytes.
func (s *ufsSuper) check(at, size int64) error {
	block, frag := int64(s.BlockSize), int64(s.FragSize)
	atSize := int64(0x24)
	switch {
	case !volume.PowerBetween(block, ufsMinBlock, 64<<10):
		return ondisk.Field(ufsWhat, "block size", at+0x30, block, "a power of two from 4096 to 65536")
	case !volume.PowerBetween(frag, max(512, block/8), block):
		return ondisk.Field(ufsWhat, "fragment size", at+0x34, frag,
			fmt.Sprintf("a power of two from %d to %d", max(512, block/8), block))
	case int64(s.Frags) != block/frag:
		return ondisk.Field(ufsWhat, "fragments of a block", at+0x38, s.Frags, block/frag)
	case s.Groups == 0:
		return ondisk.Field(ufsWhat, "cylinder groups", at+0x2c, 0, "1 or more")
	case s.Magic == ufs2Magic:
		atSize = 0x438
	}
	if s.frags() < 0 {
		return ondisk.Field(ufsWhat, "size", at+atSize, s.frags(), "1 or more")
	}
	return volume.BlocksWithin(ufsWhat, "size", at+atSize, ondisk.U64(s.frags()), frag, size)
}
