package identify

import (
	"encoding/binary"
	"errors"
	"hash/crc32"

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
}

// magics are tried if no prober knows the volume. Kinds and places are those of libblkid.
var magics = []magic{
	{volume.Traits{Kind: "bcachefs"}, []volume.Mark{{
		Off:   0x1018,
		Bytes: "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
	}}, nil},
	{volume.Traits{Kind: "befs", Title: "BeFS"}, []volume.Mark{
		{Off: 0x20, Bytes: "BFS1"},
		{Off: 0x20, Bytes: "1SFB"},
		{Off: 0x220, Bytes: "BFS1"},
		{Off: 0x220, Bytes: "1SFB"},
	}, nil},
	{volume.Traits{Kind: "bfs", Title: "SCO BFS"}, []volume.Mark{{Off: 0, Bytes: "\xce\xfa\xad\x1b"}}, nil},
	{
		volume.Traits{Kind: "ceph_bluestore", Title: "Ceph BlueStore"},
		[]volume.Mark{{Off: 0, Bytes: "bluestore block device"}},
		nil,
	},
	{volume.Traits{Kind: "cramfs"}, []volume.Mark{
		{Off: 0, Bytes: "\x45\x3d\xcd\x28"},
		{Off: 0, Bytes: "\x28\xcd\x3d\x45"},
	}, nil},
	{volume.Traits{Kind: "dm_integrity", Title: "dm-integrity"}, []volume.Mark{{Off: 0, Bytes: "integrt\x00"}}, nil},
	{volume.Traits{Kind: "dm_verity_hash", Title: "dm-verity"}, []volume.Mark{{Off: 0, Bytes: "verity\x00\x00"}}, nil},
	{volume.Traits{Kind: "erofs", Title: "EROFS"}, []volume.Mark{{Off: 0x400, Bytes: "\xe2\xe1\xf5\xe0"}}, nil},
	{volume.Traits{Kind: "gfs", Title: "GFS"}, []volume.Mark{{Off: gfsAt, Bytes: gfsMagic}}, gfsOf(1309, 1401)},
	{volume.Traits{Kind: "gfs2", Title: "GFS2"}, []volume.Mark{{Off: gfsAt, Bytes: gfsMagic}}, gfsOf(1801, 1900)},
	{minix, minixMarks("\x7f\x13", "\x8f\x13", "\x68\x24", "\x78\x24"), minixOf(binary.LittleEndian)},
	{minix, minixMarks("\x13\x7f", "\x13\x8f", "\x24\x68", "\x24\x78"), minixOf(binary.BigEndian)},
	{minix, []volume.Mark{{Off: atSuper + 0x18, Bytes: "\x5a\x4d"}}, minix3Of(binary.LittleEndian)},
	{minix, []volume.Mark{{Off: atSuper + 0x18, Bytes: "\x4d\x5a"}}, minix3Of(binary.BigEndian)},
	{volume.Traits{Kind: "nilfs2", Title: "NILFS2"}, []volume.Mark{{Off: atSuper + 6, Bytes: "\x34\x34"}}, isNILFS},
	{volume.Traits{Kind: "nss", Title: "NetWare NSS"}, []volume.Mark{{Off: 0x1000, Bytes: "SPB5"}}, nil},
	{
		volume.Traits{Kind: "ocfs2", Title: "OCFS2"},
		[]volume.Mark{
			{Off: 0x400, Bytes: "OCFSV2"},
			{Off: 0x800, Bytes: "OCFSV2"},
			{Off: 0x1000, Bytes: "OCFSV2"},
			{Off: 0x2000, Bytes: "OCFSV2"},
		},
		nil,
	},
	{volume.Traits{Kind: "oracleasm", Title: "Oracle ASM"}, []volume.Mark{{Off: 0x20, Bytes: "ORCLDISK"}}, nil},
	{volume.Traits{Kind: "reiser4", Title: "Reiser4"}, []volume.Mark{{Off: 0x10000, Bytes: "ReIsEr4"}}, nil},
	{volume.Traits{Kind: "romfs"}, []volume.Mark{{Off: 0, Bytes: "-rom1fs-"}}, nil},
	{volume.Traits{Kind: "squashfs"}, []volume.Mark{{Off: 0, Bytes: "hsqs"}, {Off: 0, Bytes: "sqsh"}}, nil},
	{
		volume.Traits{Kind: "stratis", Title: "Stratis"},
		[]volume.Mark{
			{Off: 0x204, Bytes: "!Stra0tis\x86\xff\x02^\x41rh"},
			{Off: 0x1204, Bytes: "!Stra0tis\x86\xff\x02^\x41rh"},
		},
		nil,
	},
	{volume.Traits{Kind: "sysv", Title: "System V"}, []volume.Mark{
		{Off: 0x3f8, Bytes: "\x20\x7e\x18\xfd"},
		{Off: 0x3f8, Bytes: "\xfd\x18\x7e\x20"},
	}, nil},
	{volume.Traits{Kind: "udf", Title: "UDF"}, []volume.Mark{{Off: udfAt + 1, Bytes: "BEA01"}}, isUDF},
	{volume.Traits{Kind: "vdo", Title: "VDO"}, []volume.Mark{{Off: 0, Bytes: "dmvdo001"}}, nil},
	{volume.Traits{Kind: "vxfs", Title: "VxFS"}, []volume.Mark{
		{Off: 0x400, Bytes: "\xf5\xfc\x01\xa5"},
		{Off: 0x2000, Bytes: "\xa5\x01\xfc\xf5"},
	}, nil},
}

var minix = volume.Traits{Kind: "minix", Title: "Minix"}

// minixMarks are magic numbers of versions 1 and 2.
func minixMarks(numbers ...string) (marks []volume.Mark) {
	for _, n := range numbers {
		marks = append(marks, volume.Mark{Off: atSuper + 0x10, Bytes: n})
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
			v.Size, err = sizeOf(d, m.Kind, mark)
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
	udfAt   = 32 << 10
)
