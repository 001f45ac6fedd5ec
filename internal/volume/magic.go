package volume

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/units"
)

// magic is a magic number by which a volume has a name, and nothing else is read of it.
type magic struct {
	kind  Kind
	off   int64 // bytes
	bytes string
	// sound looks further where the number is short, or common to several kinds. Nil: it says enough.
	sound func(d disk.Disk) (bool, error)
}

// magics are asked where no prober knows the volume. Kinds and places are those of libblkid.
var magics = []magic{
	{kind: "bcachefs", off: 0x1018, bytes: "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"},
	{kind: "befs", off: 0x20, bytes: "BFS1"},
	{kind: "befs", off: 0x20, bytes: "1SFB"},
	{kind: "befs", off: 0x220, bytes: "BFS1"},
	{kind: "befs", off: 0x220, bytes: "1SFB"},
	{kind: "bfs", off: 0, bytes: "\xce\xfa\xad\x1b"}, // of SCO
	{kind: "ceph_bluestore", off: 0, bytes: "bluestore block device"},
	{kind: "cramfs", off: 0, bytes: "\x45\x3d\xcd\x28"},
	{kind: "cramfs", off: 0, bytes: "\x28\xcd\x3d\x45"},
	{kind: "dm_integrity", off: 0, bytes: "integrt\x00"},
	{kind: "dm_verity_hash", off: 0, bytes: "verity\x00\x00"},
	{kind: "erofs", off: 0x400, bytes: "\xe2\xe1\xf5\xe0"},
	{kind: "gfs", off: gfsAt, bytes: gfsMagic, sound: gfsOf(1309, 1401)},
	{kind: "gfs2", off: gfsAt, bytes: gfsMagic, sound: gfsOf(1801, 1900)},
	{kind: "minix", off: atSuper + 0x10, bytes: "\x7f\x13", sound: minixOf(binary.LittleEndian)},
	{kind: "minix", off: atSuper + 0x10, bytes: "\x8f\x13", sound: minixOf(binary.LittleEndian)},
	{kind: "minix", off: atSuper + 0x10, bytes: "\x68\x24", sound: minixOf(binary.LittleEndian)},
	{kind: "minix", off: atSuper + 0x10, bytes: "\x78\x24", sound: minixOf(binary.LittleEndian)},
	{kind: "minix", off: atSuper + 0x10, bytes: "\x13\x7f", sound: minixOf(binary.BigEndian)},
	{kind: "minix", off: atSuper + 0x10, bytes: "\x13\x8f", sound: minixOf(binary.BigEndian)},
	{kind: "minix", off: atSuper + 0x10, bytes: "\x24\x68", sound: minixOf(binary.BigEndian)},
	{kind: "minix", off: atSuper + 0x10, bytes: "\x24\x78", sound: minixOf(binary.BigEndian)},
	{kind: "minix", off: atSuper + 0x18, bytes: "\x5a\x4d", sound: minix3Of(binary.LittleEndian)},
	{kind: "minix", off: atSuper + 0x18, bytes: "\x4d\x5a", sound: minix3Of(binary.BigEndian)},
	{kind: "nilfs2", off: atSuper + 6, bytes: "\x34\x34", sound: isNILFS},
	{kind: "nss", off: 0x1000, bytes: "SPB5"}, // of NetWare
	{kind: "ocfs2", off: 0x400, bytes: "OCFSV2"},
	{kind: "ocfs2", off: 0x800, bytes: "OCFSV2"},
	{kind: "ocfs2", off: 0x1000, bytes: "OCFSV2"},
	{kind: "ocfs2", off: 0x2000, bytes: "OCFSV2"},
	{kind: "oracleasm", off: 0x20, bytes: "ORCLDISK"},
	{kind: "reiser4", off: 0x10000, bytes: "ReIsEr4"},
	{kind: "romfs", off: 0, bytes: "-rom1fs-"},
	{kind: "squashfs", off: 0, bytes: "hsqs"},
	{kind: "squashfs", off: 0, bytes: "sqsh"},
	{kind: "stratis", off: 0x204, bytes: "!Stra0tis\x86\xff\x02^\x41rh"},
	{kind: "stratis", off: 0x1204, bytes: "!Stra0tis\x86\xff\x02^\x41rh"},
	{kind: "sysv", off: 0x3f8, bytes: "\x20\x7e\x18\xfd"},
	{kind: "sysv", off: 0x3f8, bytes: "\xfd\x18\x7e\x20"},
	{kind: "udf", off: isoAt + 1, bytes: "BEA01", sound: isUDF},
	{kind: "vdo", off: 0, bytes: "dmvdo001"},
	{kind: "vxfs", off: 0x400, bytes: "\xf5\xfc\x01\xa5"},
	{kind: "vxfs", off: 0x2000, bytes: "\xa5\x01\xfc\xf5"},
}

// byMagic names a volume that no prober knows by its magic number, and is Unknown without one.
func byMagic(d disk.Disk) (*Volume, error) {
	for _, m := range magics {
		b, err := readBlock(d, m.off, int64(len(m.bytes)))
		if isNoMatch(err) || (err == nil && string(b) != m.bytes) {
			continue
		}
		sound := true
		if err == nil && m.sound != nil {
			sound, err = m.sound(d)
		}
		switch {
		case isNoMatch(err) || (err == nil && !sound):
		case err != nil:
			return nil, err
		default:
			return &Volume{Kind: m.kind}, nil
		}
	}
	return &Volume{Kind: Unknown}, nil
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
		_, err := superblock(d, gfsAt, binary.BigEndian, &s)
		return s.FS == fs && s.Multihost == multihost, err
	}
}

// minixOf knows a Minix of version 1 or 2 by what the counts say of each other. Spec: Linux, include/uapi/linux/minix_fs.h, struct
// minix_super_block.
func minixOf(order binary.ByteOrder) func(disk.Disk) (bool, error) {
	return func(d disk.Disk) (bool, error) {
		var s struct {
			Inodes, Zones16, InodeMap, ZoneMap, FirstZone, LogZone uint16
			_                                                      uint32
			_, State                                               uint16
			Zones32                                                uint32
		}
		_, err := superblock(d, atSuper, order, &s)
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
		_, err := superblock(d, atSuper, order, &s)
		return s.Pad0 == 0 && s.Pad == 0 && minixMaps(s.Inodes, s.Zones, s.InodeMap, s.ZoneMap, s.FirstZone), err
	}
}

// minixMaps reports whether both maps are large enough, and the data begin behind them: two bytes are too few to know a Minix by.
func minixMaps(inodes, zones uint32, inodeMap, zoneMap, first uint16) bool {
	const perBlock = units.KiB * 8 // the least, of version 1 and 2
	return inodes > 0 && inodeMap > 0 && zoneMap > 0 && int64(first) >= 2+int64(inodeMap)+int64(zoneMap) && zones > uint32(first) &&
		int64(inodeMap)*perBlock > int64(inodes) && int64(zoneMap)*perBlock > int64(zones)-int64(first)
}

// isNILFS checks the sum of the first superblock, a CRC-32 that begins with a number of its own and is not inverted. Spec: Linux,
// include/uapi/linux/nilfs2_ondisk.h, struct nilfs_super_block.
func isNILFS(d disk.Disk) (bool, error) {
	var s struct {
		_         [8]byte
		Bytes     uint16
		_         uint16
		Seed, Sum uint32
	}
	if _, err := superblock(d, atSuper, binary.LittleEndian, &s); err != nil {
		return false, err
	}
	const sumAt, least, most = 16, 256, 1024
	if s.Bytes < least || s.Bytes > most {
		return false, nil
	}
	b, err := readBlock(d, atSuper, int64(s.Bytes))
	if err != nil {
		return false, err
	}
	clear(b[sumAt : sumAt+4])
	return s.Sum == ^crc32.Update(^s.Seed, crc32.IEEETable, b), nil
}

// isUDF looks for the descriptor that names UDF behind the first one, whose distance is a block of 2048 or of 4096 bytes. Spec: ECMA-167, 2/8.
func isUDF(d disk.Disk) (bool, error) {
	for _, block := range []int64{2048, 4096} {
		b, err := readBlock(d, isoAt+block+1, 5)
		if err != nil {
			return false, err
		}
		if string(b) == "NSR02" || string(b) == "NSR03" {
			return true, nil
		}
	}
	return false, nil
}
