//go:build linux || windows

package hostile

import (
	"fmt"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
)

// exfatImage is a disk with a forged exFAT whose boot region is changed, with a valid checksum unless that is the
// fault.
func exfatImage(change func(forge.Bytes)) Writer {
	return volumeImage(0x07, fsforge.PutExFAT, func(v forge.Bytes) {
		change(v)
		fsforge.SealExFAT(v, 0)
	})
}

func brokenExFAT() []Row {
	type change = func(forge.Bytes)
	row := func(name string, at int64, change change, says ...string) Row {
		return brokenVolume("T62 exFAT, "+name, "exfat boot sector", at, exfatImage(change), says...)
	}
	u32 := func(at int64, n uint32) change { return func(v forge.Bytes) { v.U32(at, n) } }
	u8 := func(at int64, n uint8) change { return func(v forge.Bytes) { v.U8(at, n) } }
	var out []Row
	for _, n := range []uint8{0, 8, 13, 255} {
		out = append(out, row(fmt.Sprintf("sectors of 2^%d bytes", n), fsforge.ExFATSectorShift,
			u8(fsforge.ExFATSectorShift, n), fmt.Sprintf("bytes per sector shift %d", n), "want 9 to 12"))
	}
	for _, n := range []uint8{17, 64, 255} {
		out = append(out, row(fmt.Sprintf("clusters of 2^%d sectors", n), fsforge.ExFATClusterShift,
			u8(fsforge.ExFATClusterShift, n), fmt.Sprintf("sectors per cluster shift %d", n), "want 0 to 16"))
	}
	for _, n := range []uint64{0, volumeSectors + 1, 1 << 55, 1<<64 - 1} {
		out = append(out, row(fmt.Sprintf("%d sectors", n), fsforge.ExFATVolumeLength,
			func(v forge.Bytes) { v.U64(fsforge.ExFATVolumeLength, n) },
			fmt.Sprintf("volume length %d", n), "want 1 to 6000"))
	}
	for _, n := range []uint32{0, 1, 744, 1<<32 - 1} {
		out = append(out, row(fmt.Sprintf("root in cluster %d", n), fsforge.ExFATRootCluster,
			u32(fsforge.ExFATRootCluster, n), fmt.Sprintf("root cluster %d", n), "want 2 to 743"))
	}
	return append(out,
		row("no FAT", fsforge.ExFATFATs, u8(fsforge.ExFATFATs, 0), "number of FATs 0", "want 1 or 2"),
		row("FAT in the boot region", fsforge.ExFATFATOffset, u32(fsforge.ExFATFATOffset, 23), "FAT offset 23",
			"want 24 or more"),
		row("FAT over the clusters", fsforge.ExFATHeapOffset, u32(fsforge.ExFATFATLength, 1<<32-1),
			"cluster heap offset 64", "want 4294967327"),
		row("FAT too short", fsforge.ExFATFATLength, u32(fsforge.ExFATFATLength, 1), "FAT length 1", "want 6 or more"),
		row("clusters behind the end", fsforge.ExFATHeapOffset, u32(fsforge.ExFATHeapOffset, 6000),
			"cluster heap offset 6000", "to 5999"),
		row("no clusters", fsforge.ExFATClusters, u32(fsforge.ExFATClusters, 0), "cluster count 0", "want 1 to 742"),
		row("too many clusters", fsforge.ExFATClusters, u32(fsforge.ExFATClusters, 1<<32-1),
			"cluster count 4294967295", "want 1 to 742"),
		row("revision 2", fsforge.ExFATRevision, u32(fsforge.ExFATRevision, 0x00000200), "revision 0x0200",
			"want 1.0"))
}

// superblock is a kind of volume, its name in messages, and the position of its superblock.
type superblock struct {
	what string
	put  func(disk forge.Bytes, lba, sectors int64)
	at   int64
	seal func(forge.Bytes)
}

func unsealed(forge.Bytes) {}

var (
	superXFS   = superblock{"xfs superblock", volumeforge.PutXFS, 0, volumeforge.SealXFS}
	superBtrfs = superblock{
		"btrfs superblock", volumeforge.PutBtrfs, volumeforge.BtrfsAt,
		func(f forge.Bytes) { volumeforge.SealBtrfs(f, false) },
	}
	superJFS    = superblock{"jfs superblock", volumeforge.PutJFS, volumeforge.JFSAt, unsealed}
	superReiser = superblock{"reiserfs superblock", volumeforge.PutReiserFS, volumeforge.ReiserAt, unsealed}
	superF2FS   = superblock{"f2fs superblock", volumeforge.PutF2FS, fsforge.ExtSuper, volumeforge.SealF2FS}
	superUFS1   = superblock{"ufs superblock", volumeforge.PutUFS1, volumeforge.UFS1At, unsealed}
	superUFS2   = superblock{"ufs superblock", volumeforge.PutUFS2, volumeforge.UFS2At, unsealed}
	superHFS    = superblock{"hfs master directory block", volumeforge.PutHFS, volumeforge.HFSAt, unsealed}
	superHFSX   = superblock{"hfs+ volume header", volumeforge.PutHFSPlus, volumeforge.HFSAt, unsealed}
	superAPFS   = superblock{"apfs container superblock", volumeforge.PutAPFS, 0, volumeforge.SealAPFS}
	superReFS   = superblock{"refs boot sector", volumeforge.PutReFS, 0, volumeforge.SealReFS}
	superISO    = superblock{"iso 9660 volume descriptor", volumeforge.PutISO9660, volumeforge.ISOAt, unsealed}
)

// row changes bytes of the superblock. The message must contain their position.
func (s superblock) row(name string, at int64, b []byte, says ...string) Row {
	return s.rowElsewhere(name, at, at, b, says...)
}

// rowElsewhere is for a message about another field than the changed one.
func (s superblock) rowElsewhere(name string, at, place int64, b []byte, says ...string) Row {
	image := volumeImage(0x83, s.put, func(v forge.Bytes) {
		v.Put(s.at+at, b)
		s.seal(v)
	})
	return brokenVolume(s.what+", "+name, s.what, s.at+place, image, says...)
}

func bytesOf(b byte, n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = b
	}
	return out
}

// brokenBySize has block sizes that divide by zero, shift by 255, or are no power of two.
func brokenBySize() []Row {
	return []Row{
		superXFS.row("blocks of 0 bytes", 4, bytesOf(0, 4), "block size 0", "want a power of two"),
		superXFS.row("blocks of 4 GiB", 4, bytesOf(0xff, 4), "block size 4294967295"),
		superXFS.rowElsewhere("blocks of 2^255 bytes", 120, 4, bytesOf(0xff, 1), "block size 4096", "2^255"),
		superXFS.row("sectors of 0 bytes", 102, bytesOf(0, 2), "sector size 0"),
		superXFS.row("inodes of 65535 bytes", 104, bytesOf(0xff, 2), "inode size 65535"),
		superBtrfs.row("sectors of 0 bytes", 0x90, bytesOf(0, 4), "sector size 0", "want a power of two"),
		superBtrfs.row("nodes of 4 GiB", 0x94, bytesOf(0xff, 4), "node size 4294967295"),
		superJFS.row("blocks of 0 bytes", 16, bytesOf(0, 4), "block size 0"),
		superJFS.rowElsewhere("blocks of 2^65535 bytes", 20, 16, bytesOf(0xff, 2), "block size 4096"),
		superJFS.row("physical blocks of 0 bytes", 24, bytesOf(0, 4), "physical block size 0"),
		superJFS.row("factor", 22, bytesOf(0xff, 2), "block size factor 65535", "want 3"),
		superJFS.row("groups of 0 blocks", 32, bytesOf(0, 4), "group size 0"),
		superReiser.row("blocks of 0 bytes", 44, bytesOf(0, 2), "block size 0"),
		superReiser.row("blocks of 65535 bytes", 44, bytesOf(0xff, 2), "block size 65535"),
		superF2FS.row("blocks of 2^(2^32-1) bytes", 16, bytesOf(0xff, 4), "log block size 4294967295",
			"want 12 to 16"),
		superF2FS.row("sectors of 2^(2^32-1) bytes", 8, bytesOf(0xff, 4), "log sector size 4294967295"),
		superF2FS.row("segments of 2^(2^32-1) blocks", 20, bytesOf(0xff, 4), "log blocks per segment 4294967295",
			"want 9"),
		superUFS1.row("blocks of 0 bytes", 48, bytesOf(0, 4), "block size 0"),
		superUFS1.row("blocks of -1 bytes", 48, bytesOf(0xff, 4), "block size 4294967295"),
		superUFS2.row("fragments of 0 bytes", 52, bytesOf(0, 4), "fragment size 0"),
		superUFS2.row("fragments of a block", 56, bytesOf(0, 4), "fragments of a block 0", "want 8"),
		superReFS.row("sectors of 0 bytes", 32, bytesOf(0, 4), "bytes per sector 0"),
		superReFS.row("clusters of 2^32-1 sectors", 36, bytesOf(0xff, 4), "sectors per cluster 4294967295"),
		superISO.row("blocks of 0 bytes", 128, bytesOf(0, 4), "block size 0", "want 512, 1024 or 2048"),
		superISO.row("two block sizes", 130, bytesOf(0xff, 2), "block size, big-endian 65535", "want 2048"),
	}
}

// brokenByCount has block counts that leave the partition or overflow in bytes.
func brokenByCount() []Row {
	return []Row{
		superXFS.rowElsewhere("2^64-1 blocks", 8, 88, bytesOf(0xff, 8), "groups 1", "18446744073709551615 blocks"),
		superXFS.row("groups of 0 blocks", 84, bytesOf(0, 4), "blocks of a group 0", "want 64 or more"),
		superXFS.row("2^32-1 groups", 88, bytesOf(0xff, 4), "groups 4294967295"),
		superXFS.row("mkfs at work", 126, bytesOf(1, 1), "in progress 1"),
		superXFS.row("version 15", 100, bytesOf(0xff, 2), "version 15", "want 1 to 5"),
		superBtrfs.row("device of 2^64-1 bytes", 0xd1, bytesOf(0xff, 8), "size of the device 18446744073709551615",
			"to 3072000"),
		superBtrfs.row("device of 0 bytes", 0xd1, bytesOf(0, 8), "size of the device 0"),
		superBtrfs.row("no device", 0x88, bytesOf(0, 8), "devices 0"),
		superBtrfs.row("another place", 0x30, bytesOf(0xff, 8), "place 18446744073709551615", "want 65536"),
		superBtrfs.row("checksum of an unknown type", 0xc4, bytesOf(0xff, 2), "checksum type 65535"),
		superBtrfs.row("device of another file system", 0x11b, bytesOf(0xff, 16), "file system of the device"),
		superJFS.row("2^64-1 blocks", 8, bytesOf(0xff, 8), "aggregate size 18446744073709551615", "want 1 to 6000"),
		superJFS.row("log past the end", 72, bytesOf(0xff, 8), "log", "750 blocks of the partition"),
		superReiser.row("2^32-1 blocks", 0, bytesOf(0xff, 4), "block count 4294967295", "want 1 to 750"),
		superReiser.row("no blocks", 0, bytesOf(0, 4), "block count 0"),
		superReiser.row("all blocks free", 4, bytesOf(0xff, 4), "free blocks 4294967295"),
		superReiser.row("root outside", 8, bytesOf(0x7f, 4), "root block 2139062143", "want less than 750"),
		superF2FS.row("2^64-1 blocks", 36, bytesOf(0xff, 8), "block count 18446744073709551615", "want 1 to 750"),
		superF2FS.row("2^32-1 segments", 48, bytesOf(0xff, 4), "segments 4294967295"),
		superF2FS.row("sections of no segment", 24, bytesOf(0, 4), "segments per section 0"),
		superF2FS.row("root inode", 96, bytesOf(0xff, 4), "inodes of root, node and meta", "want 3 1 2"),
		superF2FS.row("checksum at 2^32-1", 32, bytesOf(0xff, 4), "checksum offset 4294967295", "want 3068"),
		superF2FS.rowElsewhere("2^32-1 segments on the first of two devices", 2201+64, 2201+64,
			append(bytesOf(0xff, 4), '/', 'x'), "blocks of the first device"),
		superUFS1.row("-1 blocks", 36, bytesOf(0xff, 4), "size 4294967295"),
		superUFS2.row("2^63-1 blocks", 1080, append(bytesOf(0xff, 7), 0x7f), "size 9223372036854775807",
			"want 1 to 750"),
		superUFS2.row("-1 blocks", 1080, bytesOf(0xff, 8), "size 18446744073709551615"),
		superUFS2.row("no groups", 44, bytesOf(0, 4), "cylinder groups 0"),
		superReFS.row("2^64-1 sectors", 24, bytesOf(0xff, 8), "sectors 18446744073709551615", "want 1 to 6000"),
		superReFS.row("structure of 65535 bytes", 20, bytesOf(0xff, 2), "length 65535"),
		superReFS.row("no recognition structure", 16, bytesOf('x', 4), "identifier", "want FSRS"),
		superISO.row("no blocks", 80, bytesOf(0, 8), "volume space size 0"),
		superISO.row("2^32-1 blocks", 80, bytesOf(0xff, 8), "volume space size 4294967295", "want 1 to 1500"),
		superISO.row("two sizes", 84, bytesOf(0xff, 4), "volume space size, big-endian 4294967295", "want 1500"),
		superISO.row("file structure", 881, bytesOf(0xff, 1), "file structure version 255"),
	}
}

func brokenApple() []Row {
	return []Row{
		superHFS.row("blocks of 0 bytes", 20, bytesOf(0, 4), "block size 0", "want a multiple of 512"),
		superHFS.rowElsewhere("blocks of 4 GiB", 20, 18, []byte{0xff, 0xff, 0xfe, 0}, "blocks 2995", "want 1 to 0"),
		superHFS.row("65535 blocks", 18, bytesOf(0xff, 2), "blocks 65535", "want 1 to 2996"),
		superHFS.row("first block in the bitmap", 28, bytesOf(0, 2), "first block 0"),
		superHFSX.row("blocks of 0 bytes", 40, bytesOf(0, 4), "block size 0"),
		superHFSX.row("2^32-1 blocks", 44, bytesOf(0xff, 4), "total blocks 4294967295", "want 1 to 750"),
		superHFSX.row("all blocks free", 48, bytesOf(0xff, 4), "free blocks 4294967295"),
		superAPFS.row("blocks of 0 bytes", 36, bytesOf(0, 4), "block size 0"),
		superAPFS.row("blocks of 4 GiB", 36, bytesOf(0xff, 4), "block size 4294967295"),
		superAPFS.row("2^64-1 blocks", 40, bytesOf(0xff, 8), "block count 18446744073709551615", "want 1 to 750"),
		superAPFS.row("another object", 24, bytesOf(0, 4), "object type 0", "want 1"),
	}
}

// brokenChecksums has one wrong bit in bytes that only a checksum covers.
func brokenChecksums() []Row {
	row := func(s superblock, what string, bit, place int64) Row {
		image := volumeImage(0x83, s.put, func(v forge.Bytes) { v[bit] ^= 1 })
		return brokenVolume(s.what+", a flipped bit", what, place, image, "checksum")
	}
	exfat := superblock{"exfat boot region", fsforge.PutExFAT, 0, unsealed}
	return []Row{
		row(exfat, exfat.what, 3*512+7, 11*512),
		row(superXFS, superXFS.what, 300, 224),
		row(superBtrfs, superBtrfs.what, volumeforge.BtrfsAt+4000, volumeforge.BtrfsAt),
		row(superF2FS, superF2FS.what, fsforge.ExtSuper+2500, fsforge.ExtSuper+3068),
		row(superAPFS, superAPFS.what, 4000, 0),
		row(superReFS, superReFS.what, 0x100, 22),
	}
}
