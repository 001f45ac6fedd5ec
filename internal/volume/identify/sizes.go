package identify

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// sized is the place of the size of a file system in its superblock: count units of unit << shift bytes.
type sized struct {
	kind   volume.Kind
	magics []string // in the byte order of the row, of the versions that it is about
	at     int64    // of the magic number in the superblock
	order  binary.ByteOrder
	count  field
	unit   field // absent: 1 byte
	shift  field // absent: 0
	log    uint64
	plus   uint64 // bytes
	when   check
}

// field is a number of so many bytes at an offset in a superblock; no bytes: it is absent.
type field struct{ at, bytes int64 }

// check is a condition under which the size counts: the bits of mask are want.
type check struct {
	field
	mask, want uint64
}

// superSize is the number of bytes from the start of a superblock in which all fields lie.
const superSize = 256

// sizes has a row for each superblock that stores a size and is known by its magic number alone. GFS, GFS2, UDF,
// bcachefs and dm-verity keep theirs in other structures.
//
// Sources, in Linux: fs/befs/befs_fs_types.h, befs_super_block; include/uapi/linux/bfs_fs.h, bfs_super_block (s_end is
// the last byte of the last block); include/uapi/linux/cramfs_fs.h, cramfs_super (the size counts from version 2 on);
// fs/erofs/erofs_fs.h, erofs_super_block (with the feature 48BIT a part of the count lies elsewhere);
// include/uapi/linux/minix_fs.h, minix_super_block and minix3_super_block; include/uapi/linux/nilfs2_ondisk.h,
// nilfs_super_block; fs/ocfs2/ocfs2_fs.h, i_clusters of ocfs2_dinode and s_clustersize_bits of ocfs2_super_block;
// include/uapi/linux/romfs_fs.h, romfs_super_block; fs/squashfs/squashfs_fs.h, squashfs_super_block (of version 4).
var sizes = []sized{
	{
		kind: "befs", magics: []string{"1SFB"}, at: 0x20, order: binary.LittleEndian,
		count: field{48, 8}, shift: field{44, 4}, when: check{field{36, 4}, math.MaxUint32, befsOrder},
	},
	{
		kind: "befs", magics: []string{"BFS1"}, at: 0x20, order: binary.BigEndian,
		count: field{48, 8}, shift: field{44, 4}, when: check{field{36, 4}, math.MaxUint32, befsOrder},
	},
	{
		kind: "bfs", magics: []string{"\xce\xfa\xad\x1b"}, order: binary.LittleEndian,
		count: field{8, 4}, plus: 1, when: check{field{8, 4}, 511, 511},
	},
	{
		kind: "cramfs", magics: []string{"\x45\x3d\xcd\x28"}, order: binary.LittleEndian,
		count: field{4, 4}, when: check{field{8, 4}, 1, 1},
	},
	{
		kind: "cramfs", magics: []string{"\x28\xcd\x3d\x45"}, order: binary.BigEndian,
		count: field{4, 4}, when: check{field{8, 4}, 1, 1},
	},
	{
		kind: "erofs", magics: []string{"\xe2\xe1\xf5\xe0"}, order: binary.LittleEndian,
		count: field{36, 4}, shift: field{12, 1}, when: check{field{80, 4}, 0x80, 0},
	},
	{
		kind: "minix", magics: []string{"\x7f\x13", "\x8f\x13"}, at: 16, order: binary.LittleEndian,
		count: field{2, 2}, shift: field{10, 2}, log: 10,
	},
	{
		kind: "minix", magics: []string{"\x13\x7f", "\x13\x8f"}, at: 16, order: binary.BigEndian,
		count: field{2, 2}, shift: field{10, 2}, log: 10,
	},
	{
		kind: "minix", magics: []string{"\x68\x24", "\x78\x24"}, at: 16, order: binary.LittleEndian,
		count: field{20, 4}, shift: field{10, 2}, log: 10,
	},
	{
		kind: "minix", magics: []string{"\x24\x68", "\x24\x78"}, at: 16, order: binary.BigEndian,
		count: field{20, 4}, shift: field{10, 2}, log: 10,
	},
	{
		kind: "minix", magics: []string{"\x5a\x4d"}, at: 24, order: binary.LittleEndian,
		count: field{20, 4}, unit: field{28, 2}, shift: field{12, 2},
	},
	{
		kind: "minix", magics: []string{"\x4d\x5a"}, at: 24, order: binary.BigEndian,
		count: field{20, 4}, unit: field{28, 2}, shift: field{12, 2},
	},
	{kind: "nilfs2", magics: []string{"\x34\x34"}, at: 6, order: binary.LittleEndian, count: field{32, 8}},
	{
		kind: "ocfs2", magics: []string{"OCFSV2"}, order: binary.LittleEndian,
		count: field{0x14, 4}, shift: field{0xfc, 4},
	},
	{kind: "romfs", magics: []string{"-rom1fs-"}, order: binary.BigEndian, count: field{8, 4}},
	{
		kind: "squashfs", magics: []string{"hsqs"}, order: binary.LittleEndian,
		count: field{40, 8}, when: check{field{28, 2}, math.MaxUint16, 4},
	},
}

// befsOrder is the number by which a superblock of BeFS shows its byte order, BEFS_BYTEORDER_NATIVE.
const befsOrder = 0x42494745

// sizeOf returns the size that the superblock around a magic number stores; 0: none, or none that can be.
func sizeOf(d disk.Disk, kind volume.Kind, mark volume.Mark) (int64, error) {
	for _, s := range sizes {
		if s.kind != kind || !slices.Contains(s.magics, mark.Bytes) {
			continue
		}
		b, err := volume.ReadBlock(d, int64(mark.Off)-s.at, superSize)
		if errors.Is(err, ondisk.ErrNoMatch) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		return s.size(b), nil
	}
	return 0, nil
}

// size computes the size by the bytes of a superblock; 0: it cannot be.
func (s sized) size(b []byte) int64 {
	if s.when.bytes > 0 && s.number(b, s.when.field)&s.when.mask != s.when.want {
		return 0
	}
	unit := uint64(1)
	if s.unit.bytes > 0 {
		unit = s.number(b, s.unit)
	}
	shift := s.log
	if s.shift.bytes > 0 {
		shift += s.number(b, s.shift)
	}
	high, n := bits.Mul64(s.number(b, s.count), unit)
	const most = math.MaxInt64 / 2
	if high > 0 || shift >= 63 || n > most>>shift {
		return 0
	}
	return ondisk.I64(n<<shift + s.plus)
}

// number reads a field of a superblock.
func (s sized) number(b []byte, f field) uint64 {
	switch b = b[f.at:]; f.bytes {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(s.order.Uint16(b))
	case 4:
		return uint64(s.order.Uint32(b))
	default:
		return s.order.Uint64(b)
	}
}
