package filesystem

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// Btrfs finds a file system of Linux. Spec of its room for boot loaders: btrfs(5), "superblock"; GRUB 2.06,
// grub_btrfs_embed.
var Btrfs = volume.Prober{
	Kinds: []volume.Traits{{Kind: volume.Btrfs, Checksummed: 1 << 20}},
	Probe: probeBtrfs,
}

// btrfsSuper is the superblock, 64 KiB into the device, with copies further on. Spec: Linux,
// include/uapi/linux/btrfs_tree.h, btrfs_super_block.
type btrfsSuper struct {
	Checksum     [32]byte
	FSID         [16]byte
	Bytenr       uint64 // where it stands, in bytes
	_            uint64 // flags
	Magic        [8]byte
	_            [8]uint64 // generation, trees, sizes of all devices
	Devices      uint64
	SectorSize   uint32
	NodeSize     uint32
	_            [3]uint32
	_            [3]uint64 // compatible features
	Incompat     uint64
	ChecksumType uint16
	_            [3]byte
	Device       btrfsDevice // the one that it stands on
	Label        [256]byte
}

// btrfsDevice is btrfs_dev_item.
type btrfsDevice struct {
	ID         uint64
	TotalBytes uint64
	_          [66]byte
	FSID       [16]byte
}

const (
	btrfsWhat  = "btrfs superblock"
	btrfsAt    = 64 << 10
	btrfsSize  = 4096 // covered by the checksum
	btrfsMagic = "_BHRfS_M"

	btrfsCRC32C = 0
	btrfsSHA256 = 2
	btrfsZoned  = 0x1000 // incompatible feature: copies stand in zones of their own
)

// btrfsMirrors are the places of the copies on a device that is large enough.
var btrfsMirrors = []int64{64 << 20, 256 << 30}

func probeBtrfs(d disk.Disk) (*volume.Volume, error) {
	s, err := readBtrfs(d, btrfsAt)
	if err != nil {
		return nil, err
	}
	if err := s.check(d.Size()); err != nil {
		return nil, err
	}
	v := &volume.Volume{
		Kind: volume.Btrfs, Label: volume.Text(s.Label[:]), UUID: volume.UUID(s.FSID),
		BlockSize: int64(s.SectorSize), Size: ondisk.I64(s.Device.TotalBytes),
	}
	v.Addf("node size", "%d", s.NodeSize)
	if s.Devices > 1 {
		v.Addf("devices", "%d, this is number %d", s.Devices, s.Device.ID)
		v.Note("btrfs-devices", ondisk.Note,
			fmt.Sprintf("this is one of %d devices of a btrfs: the guest needs all of them", s.Devices), "")
	}
	if s.Incompat&btrfsZoned == 0 {
		err = btrfsCopies(v, d, s)
	}
	return v, err
}

// readBtrfs reads the superblock at off and verifies its checksum.
func readBtrfs(d disk.Disk, off int64) (*btrfsSuper, error) {
	if off > d.Size()-btrfsSize {
		return nil, ondisk.ErrNoMatch
	}
	var s btrfsSuper
	if _, err := volume.Superblock(d, off, binary.LittleEndian, &s); err != nil {
		return nil, err
	}
	if string(s.Magic[:]) != btrfsMagic {
		return nil, ondisk.ErrNoMatch
	}
	b, err := ondisk.Bytes(d, off, btrfsSize)
	if err != nil {
		return nil, err
	}
	if s.ChecksumType > 3 {
		return nil, ondisk.Field(btrfsWhat, "checksum type", off+0xc4, s.ChecksumType,
			"0 to 3 (crc32c, xxhash, sha256, blake2)")
	}
	if want := btrfsSum(s.ChecksumType, b[len(s.Checksum):]); !bytes.Equal(want, s.Checksum[:len(want)]) {
		return nil, ondisk.Field(btrfsWhat, "checksum", off, s.Checksum[:len(want)], fmt.Sprintf("% x", want))
	}
	if s.Bytenr != ondisk.U64(off) {
		return nil, ondisk.Field(btrfsWhat, "place", off+0x30, s.Bytenr, off)
	}
	return &s, nil
}

// btrfsSum computes the sums that the standard library has. The other two are not verified.
func btrfsSum(kind uint16, b []byte) []byte {
	switch kind {
	case btrfsCRC32C:
		return binary.LittleEndian.AppendUint32(nil, crc32.Checksum(b, castagnoli))
	case btrfsSHA256:
		sum := sha256.Sum256(b)
		return sum[:]
	}
	return nil
}

// check accepts the values that the kernel mounts. size is the size of the partition in bytes.
func (s *btrfsSuper) check(size int64) error {
	sector := int64(s.SectorSize)
	switch {
	case !volume.PowerBetween(sector, 4096, 64<<10):
		return ondisk.Field(btrfsWhat, "sector size", btrfsAt+0x90, sector, "a power of two from 4096 to 65536")
	case !volume.PowerBetween(int64(s.NodeSize), sector, 64<<10):
		return ondisk.Field(btrfsWhat, "node size", btrfsAt+0x94, s.NodeSize,
			fmt.Sprintf("a power of two from %d to 65536", sector))
	case s.Devices == 0:
		return ondisk.Field(btrfsWhat, "devices", btrfsAt+0x88, 0, "1 or more")
	case s.Device.FSID != s.FSID && s.Incompat&(1<<10) == 0: // metadata_uuid keeps the first one there
		return ondisk.Field(btrfsWhat, "file system of the device", btrfsAt+0x11b, volume.UUID(s.Device.FSID),
			volume.UUID(s.FSID))
	case s.Device.TotalBytes < btrfsAt+btrfsSize || s.Device.TotalBytes > ondisk.U64(size):
		return ondisk.Field(btrfsWhat, "size of the device", btrfsAt+0xd1, s.Device.TotalBytes,
			fmt.Sprintf("%d to %d, the size of the partition", btrfsAt+btrfsSize, size))
	}
	return nil
}

// btrfsCopies checks the further superblocks, which a rescue needs when the first is lost.
func btrfsCopies(v *volume.Volume, d disk.Disk, s *btrfsSuper) error {
	for _, off := range btrfsMirrors {
		if off > v.Size-btrfsSize {
			break
		}
		c, err := readBtrfs(d, off)
		switch {
		case errors.Is(err, ondisk.ErrNoMatch), errors.Is(err, ondisk.ErrFormat):
			v.Note("btrfs-mirror", ondisk.Note,
				fmt.Sprintf("the copy of the btrfs superblock at byte %d of the volume is missing or broken", off), "")
		case err != nil:
			return err
		case c.FSID != s.FSID:
			v.Note("btrfs-mirror", ondisk.Note,
				fmt.Sprintf("the copy of the btrfs superblock at byte %d of the volume is that of another file system",
					off), "")
		}
	}
	return nil
}
