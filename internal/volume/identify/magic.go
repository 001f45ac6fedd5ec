package identify

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"math/bits"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// magic is a kind that is known by its magic number alone.
type magic struct {
	volume.Traits
	marks []volume.Mark
	// sound looks further where the numbers are short, or common to several kinds. Nil: they say enough.
	sound func(d disk.Disk) (bool, error)
	size  sized
}

// sized is the place of the size of a file system in its superblock: count units of unit << shift bytes.
type sized struct {
	at    int64            // of the magic number in the superblock
	order binary.ByteOrder // nil: the superblock stores no size that is read
	count field
	unit  field // absent: 1 byte
	shift field // absent: 0
	log   uint64
	plus  uint64 // bytes
	when  check
}

// field is a number of so many bytes at an offset in a superblock; no bytes: it is absent.
type field struct{ at, bytes int64 }

// check is a condition under which the size counts: the bits of mask are want.
type check struct {
	field
	mask, want uint64
}

var (
	little = binary.LittleEndian
	big    = binary.BigEndian
)

// magics are tried if no prober knows the volume. Kinds and places of marks are those of libblkid. GFS, GFS2, UDF,
// bcachefs and dm-verity keep their size in other structures.
//
// Sources of sizes, in Linux: fs/befs/befs_fs_types.h, befs_super_block; include/uapi/linux/bfs_fs.h, bfs_super_block
// (s_end is the last byte of the last block); include/uapi/linux/cramfs_fs.h, cramfs_super (the size counts from
// version 2 on); fs/erofs/erofs_fs.h, erofs_super_block (with the feature 48BIT a part of the count lies elsewhere);
// include/uapi/linux/minix_fs.h, minix_super_block and minix3_super_block; include/uapi/linux/nilfs2_ondisk.h,
// nilfs_super_block; fs/ocfs2/ocfs2_fs.h, i_clusters of ocfs2_dinode and s_clustersize_bits of ocfs2_super_block;
// include/uapi/linux/romfs_fs.h, romfs_super_block; fs/squashfs/squashfs_fs.h, squashfs_super_block (of version 4).
var magics = []magic{
	{Traits: volume.Traits{Kind: "bcachefs"}, marks: []volume.Mark{{
		Off: 0x1018, Bytes: "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
	}}},
	{Traits: befs, marks: befsMarks("1SFB"), size: befsSize(little)},
	{Traits: befs, marks: befsMarks("BFS1"), size: befsSize(big)},
	{
		Traits: volume.Traits{Kind: "bfs", Title: "SCO BFS"}, marks: mark(0, "\xce\xfa\xad\x1b"),
		size: sized{order: little, count: field{8, 4}, plus: 1, when: check{field{8, 4}, 511, 511}},
	},
	{
		Traits: volume.Traits{Kind: "ceph_bluestore", Title: "Ceph BlueStore"},
		marks:  mark(0, "bluestore block device"),
	},
	{
		Traits: volume.Traits{Kind: "cramfs"}, marks: mark(0, "\x45\x3d\xcd\x28"),
		size: sized{order: little, count: field{4, 4}, when: check{field{8, 4}, 1, 1}},
	},
	{
		Traits: volume.Traits{Kind: "cramfs"}, marks: mark(0, "\x28\xcd\x3d\x45"),
		size: sized{order: big, count: field{4, 4}, when: check{field{8, 4}, 1, 1}},
	},
	{Traits: volume.Traits{Kind: "dm_integrity", Title: "dm-integrity"}, marks: mark(0, "integrt\x00")},
	{Traits: volume.Traits{Kind: "dm_verity_hash", Title: "dm-verity"}, marks: mark(0, "verity\x00\x00")},
	{
		Traits: volume.Traits{Kind: "erofs", Title: "EROFS"}, marks: mark(atSuper, "\xe2\xe1\xf5\xe0"),
		size: sized{order: little, count: field{36, 4}, shift: field{12, 1}, when: check{field{80, 4}, 0x80, 0}},
	},
	{Traits: volume.Traits{Kind: "gfs", Title: "GFS"}, marks: mark(gfsAt, gfsMagic), sound: gfsOf(1309, 1401)},
	{Traits: volume.Traits{Kind: "gfs2", Title: "GFS2"}, marks: mark(gfsAt, gfsMagic), sound: gfsOf(1801, 1900)},
	{
		Traits: minix, marks: mark(atMinix, "\x7f\x13", "\x8f\x13"), sound: minixOf(little),
		size: sized{at: 16, order: little, count: field{2, 2}, shift: field{10, 2}, log: 10},
	},
	{
		Traits: minix, marks: mark(atMinix, "\x68\x24", "\x78\x24"), sound: minixOf(little),
		size: sized{at: 16, order: little, count: field{20, 4}, shift: field{10, 2}, log: 10},
	},
	{
		Traits: minix, marks: mark(atMinix, "\x13\x7f", "\x13\x8f"), sound: minixOf(big),
		size: sized{at: 16, order: big, count: field{2, 2}, shift: field{10, 2}, log: 10},
	},
	{
		Traits: minix, marks: mark(atMinix, "\x24\x68", "\x24\x78"), sound: minixOf(big),
		size: sized{at: 16, order: big, count: field{20, 4}, shift: field{10, 2}, log: 10},
	},
	{
		Traits: minix, marks: mark(atSuper+0x18, "\x5a\x4d"), sound: minix3Of(little),
		size: sized{at: 24, order: little, count: field{20, 4}, unit: field{28, 2}, shift: field{12, 2}},
	},
	{
		Traits: minix, marks: mark(atSuper+0x18, "\x4d\x5a"), sound: minix3Of(big),
		size: sized{at: 24, order: big, count: field{20, 4}, unit: field{28, 2}, shift: field{12, 2}},
	},
	{
		Traits: volume.Traits{Kind: "nilfs2", Title: "NILFS2"}, marks: mark(atSuper+6, "\x34\x34"), sound: isNILFS,
		size: sized{at: 6, order: little, count: field{32, 8}},
	},
	{Traits: volume.Traits{Kind: "nss", Title: "NetWare NSS"}, marks: mark(0x1000, "SPB5")},
	{
		Traits: volume.Traits{Kind: "ocfs2", Title: "OCFS2"},
		marks: slices.Concat(mark(0x400, "OCFSV2"), mark(0x800, "OCFSV2"), mark(0x1000, "OCFSV2"),
			mark(0x2000, "OCFSV2")),
		size: sized{order: little, count: field{0x14, 4}, shift: field{0xfc, 4}},
	},
	{Traits: volume.Traits{Kind: "oracleasm", Title: "Oracle ASM"}, marks: mark(0x20, "ORCLDISK")},
	{Traits: volume.Traits{Kind: "reiser4", Title: "Reiser4"}, marks: mark(0x10000, "ReIsEr4")},
	{
		Traits: volume.Traits{Kind: "romfs"}, marks: mark(0, "-rom1fs-"),
		size: sized{order: big, count: field{8, 4}},
	},
	{
		Traits: volume.Traits{Kind: "squashfs"}, marks: mark(0, "hsqs"),
		size: sized{order: little, count: field{40, 8}, when: check{field{28, 2}, math.MaxUint16, 4}},
	},
	{Traits: volume.Traits{Kind: "squashfs"}, marks: mark(0, "sqsh")},
	{
		Traits: volume.Traits{Kind: "stratis", Title: "Stratis"},
		marks: slices.Concat(mark(0x204, "!Stra0tis\x86\xff\x02^\x41rh"),
			mark(0x1204, "!Stra0tis\x86\xff\x02^\x41rh")),
	},
	{
		Traits: volume.Traits{Kind: "sysv", Title: "System V"},
		marks:  mark(0x3f8, "\x20\x7e\x18\xfd", "\xfd\x18\x7e\x20"),
	},
	{Traits: volume.Traits{Kind: "udf", Title: "UDF"}, marks: mark(udfAt+1, "BEA01"), sound: isUDF},
	{Traits: volume.Traits{Kind: "vdo", Title: "VDO"}, marks: mark(0, "dmvdo001")},
	{
		Traits: volume.Traits{Kind: "vxfs", Title: "VxFS"},
		marks:  slices.Concat(mark(0x400, "\xf5\xfc\x01\xa5"), mark(0x2000, "\xa5\x01\xfc\xf5")),
	},
}

var befs = volume.Traits{Kind: "befs", Title: "BeFS"}

func befsMarks(number string) []volume.Mark {
	return slices.Concat(mark(0x20, number), mark(0x220, number))
}

// befsSize is the size of a BeFS, which shows its byte order by a number, BEFS_BYTEORDER_NATIVE.
func befsSize(order binary.ByteOrder) sized {
	const native = 0x42494745
	return sized{
		at: 0x20, order: order, count: field{48, 8}, shift: field{44, 4},
		when: check{field{36, 4}, math.MaxUint32, native},
	}
}

var minix = volume.Traits{Kind: "minix", Title: "Minix"}

// mark returns magic numbers at one place.
func mark(off int, numbers ...string) (marks []volume.Mark) {
	for _, n := range numbers {
		marks = append(marks, volume.Mark{Off: off, Bytes: n})
	}
	return marks
}

// byMagic names a volume by its magic number, and reads its size. Without one it is Unknown.
func byMagic(d disk.Disk) (*volume.Volume, error) {
	for _, m := range magics {
		mark, known, err := m.known(d)
		if err != nil {
			return nil, err
		}
		if known {
			v := &volume.Volume{Kind: m.Kind}
			v.Size, err = m.size.of(d, mark)
			outgrown(v, d.Size())
			return v, err
		}
	}
	return &volume.Volume{Kind: volume.Unknown}, nil
}

// known returns the magic number that d has, and looks further where that is not enough. A disk that ends before them
// has none.
func (m magic) known(d disk.Disk) (mark volume.Mark, known bool, err error) {
	for _, mark = range m.marks {
		b, err := volume.ReadBlock(d, int64(mark.Off), int64(len(mark.Bytes)))
		known = err == nil && string(b) == mark.Bytes
		if known && m.sound != nil {
			known, err = m.sound(d)
		}
		switch {
		case errors.Is(err, ondisk.ErrNoMatch):
		case err != nil || known:
			return mark, known, err
		}
	}
	return mark, false, nil
}

const (
	gfsAt    = 64 << 10
	gfsMagic = "\x01\x16\x19\x70"
)

// gfsOf knows a GFS by its formats. Spec: Linux, include/uapi/linux/gfs2_ondisk.h, struct gfs2_sb.
func gfsOf(fs, multihost uint32) func(disk.Disk) (bool, error) {
	return func(d disk.Disk) (bool, error) {
		var s struct {
			_             [24]byte
			FS, Multihost uint32
		}
		_, err := volume.Superblock(d, gfsAt, binary.BigEndian, &s)
		return s.FS == fs && s.Multihost == multihost, err
	}
}

// minixOf knows a Minix of version 1 or 2 by what the counts say of each other. Spec: Linux,
// include/uapi/linux/minix_fs.h, struct minix_super_block.
func minixOf(order binary.ByteOrder) func(disk.Disk) (bool, error) {
	return func(d disk.Disk) (bool, error) {
		var s struct {
			Inodes, Zones16, InodeMap, ZoneMap, FirstZone, LogZone uint16
			_                                                      uint32
			_, State                                               uint16
			Zones32                                                uint32
		}
		_, err := volume.Superblock(d, atSuper, order, &s)
		zones := max(uint32(s.Zones16), s.Zones32)
		const known = 3 // mounted, with errors
		return s.State <= known && minixMaps(uint32(s.Inodes), zones, s.InodeMap, s.ZoneMap, s.FirstZone), err
	}
}

// minix3Of knows a Minix of version 3. Spec: Linux, include/uapi/linux/minix_fs.h, struct minix3_super_block.
func minix3Of(order binary.ByteOrder) func(disk.Disk) (bool, error) {
	return func(d disk.Disk) (bool, error) {
		var s struct {
			Inodes                                           uint32
			Pad0, InodeMap, ZoneMap, FirstZone, LogZone, Pad uint16
			_, Zones                                         uint32
		}
		_, err := volume.Superblock(d, atSuper, order, &s)
		return s.Pad0 == 0 && s.Pad == 0 && minixMaps(s.Inodes, s.Zones, s.InodeMap, s.ZoneMap, s.FirstZone), err
	}
}

// minixMaps reports whether both maps are large enough, and the data begin behind them: two bytes are too few to know a
// Minix by.
func minixMaps(inodes, zones uint32, inodeMap, zoneMap, first uint16) bool {
	const perBlock = units.KiB * 8 // the least, of version 1 and 2
	return inodes > 0 && inodeMap > 0 && zoneMap > 0 && int64(first) >= 2+int64(inodeMap)+int64(zoneMap) &&
		zones > uint32(first) &&
		int64(inodeMap)*perBlock > int64(inodes) && int64(zoneMap)*perBlock > int64(zones)-int64(first)
}

// isNILFS checks the sum of the first superblock, a CRC-32 that begins with a number of its own and is not inverted.
// Spec: Linux, include/uapi/linux/nilfs2_ondisk.h, struct nilfs_super_block.
func isNILFS(d disk.Disk) (bool, error) {
	var s struct {
		_         [8]byte
		Bytes     uint16
		_         uint16
		Seed, Sum uint32
	}
	if _, err := volume.Superblock(d, atSuper, binary.LittleEndian, &s); err != nil {
		return false, err
	}
	const sumAt, least, most = 16, 256, 1024
	if s.Bytes < least || s.Bytes > most {
		return false, nil
	}
	b, err := volume.ReadBlock(d, atSuper, int64(s.Bytes))
	if err != nil {
		return false, err
	}
	clear(b[sumAt : sumAt+4])
	return s.Sum == ^crc32.Update(^s.Seed, crc32.IEEETable, b), nil
}

// isUDF looks for the descriptor that names UDF behind the first one, whose distance is a block of 2048 or of 4096
// bytes. Spec: ECMA-167, 2/8.
func isUDF(d disk.Disk) (bool, error) {
	for _, block := range []int64{2048, 4096} {
		b, err := volume.ReadBlock(d, udfAt+block+1, 5)
		if err != nil {
			return false, err
		}
		if string(b) == "NSR02" || string(b) == "NSR03" {
			return true, nil
		}
	}
	return false, nil
}

// Places of superblocks and descriptors, in bytes.
const (
	atSuper = 1024
	atMinix = atSuper + 0x10
	udfAt   = 32 << 10
)

// superSize is the number of bytes from the start of a superblock in which all fields lie.
const superSize = 256

// of returns the size that the superblock around a magic number stores; 0: none, or none that can be.
func (s sized) of(d disk.Disk, mark volume.Mark) (int64, error) {
	if s.order == nil {
		return 0, nil
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
