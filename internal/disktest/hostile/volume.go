//go:build linux || windows

package hostile

import (
	"fmt"
	"slices"
	"testing"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
)

// Volumes returns disks with a volume that is broken, or unusual but sound.
func Volumes() []Row {
	return slices.Concat(brokenNTFS(), brokenExt(), brokenFAT(), brokenExFAT(), brokenBySize(), brokenByCount(),
		brokenApple(), brokenChecksums(), oddVolumes())
}

// A partition with a forged volume, at LBA 63, so that it has to move. FAT16 needs some 4100 clusters.
const (
	volumeStart   = 63
	volumeSectors = 6000
	volumeAt      = volumeStart * 512
)

// volumeDisk is a disk with one partition, whose volume the caller writes and changes.
func volumeDisk(kind byte, put func(disk forge.Bytes)) forge.Bytes {
	disk := tableforge.NewMBR(8192, slot(kind, volumeStart, volumeSectors))
	put(disk)
	return disk
}

// volumeImage is volumeDisk as an image. Offsets of change are relative to the volume.
func volumeImage(kind byte, put func(disk forge.Bytes, lba, sectors int64), change func(volume forge.Bytes)) Writer {
	return func(t testing.TB, dir string) string {
		t.Helper()
		return writeForged("disk.raw", volumeDisk(kind, func(disk forge.Bytes) {
			put(disk, volumeStart, volumeSectors)
			change(disk[volumeAt:])
		}))(t, dir)
	}
}

func ntfsImage(change func(forge.Bytes)) Writer {
	return volumeImage(0x07, fsforge.PutNTFS, change)
}

// fatImage is a FAT16 with two reserved sectors, so that its data are off 4 KiB, unlike with one.
func fatImage(change func(forge.Bytes)) Writer {
	return volumeImage(0x06, fsforge.PutFAT16, func(v forge.Bytes) {
		v.U16(fsforge.BootReserved, 2)
		copy(v[2*512:], v[512:volumeSectors*512-512])
		clear(v[512 : 2*512])
		change(v)
	})
}

func extImage(change func(forge.Bytes)) Writer {
	return volumeImage(0x83, fsforge.PutExt, change)
}

// brokenVolume expects a message about the field at an offset from the volume's start.
func brokenVolume(name, what string, at int64, image Writer, says ...string) Row {
	return broken(name, "format", image, append(says, fmt.Sprintf("%s at %#x", what, volumeAt+at))...)
}

func brokenNTFS() []Row {
	const what = "ntfs boot sector"
	row := func(name string, at int64, change func(forge.Bytes), says ...string) Row {
		return brokenVolume("T55 "+name, what, at, ntfsImage(change), says...)
	}
	var out []Row
	for _, n := range []uint16{0, 3, 256, 65535} {
		out = append(out, row(fmt.Sprintf("%d bytes per sector", n), fsforge.BootBytesPerSector,
			func(v forge.Bytes) { v.U16(fsforge.BootBytesPerSector, n) },
			fmt.Sprintf("bytes per sector %d", n), "want 512, 1024, 2048 or 4096"))
	}
	// The threat list starts at 0x80; that is 128 sectors, clusters of 64 KiB, which Windows formats.
	for _, n := range []uint8{0, 3, 0x81, 0xc0, 0xf0, 0xf3} {
		out = append(out, row(fmt.Sprintf("%#02x sectors per cluster", n), fsforge.BootSectorsPerCluster,
			func(v forge.Bytes) { v.U8(fsforge.BootSectorsPerCluster, n) },
			"sectors per cluster", fmt.Sprintf("%#02x", n), "want a power of two up to 128"))
	}
	for _, n := range []uint64{0, 749, 1 << 40, 1<<64 - 4} { // 5999 sectors are 749 clusters
		out = append(out, row(fmt.Sprintf("MFT at cluster %d", int64(n)), fsforge.NTFSMFT,
			func(v forge.Bytes) { v.U64(fsforge.NTFSMFT, n) }, fmt.Sprintf("MFT cluster %d", n), "want 1 to 748"))
	}
	for _, n := range []uint8{0, 0x80, 0xe1, 0xef, 3, 0x7f} {
		out = append(out, row(fmt.Sprintf("record size %#02x", n), fsforge.NTFSRecord,
			func(v forge.Bytes) { v.U8(fsforge.NTFSRecord, n) },
			fmt.Sprintf("clusters per MFT record %d", int8(n)), "want a size of 512 to 65536 bytes"))
	}
	for _, n := range []uint64{0, volumeSectors + 1, 1 << 55, 1<<64 - 1} {
		out = append(out, row(fmt.Sprintf("%d sectors in total", n), fsforge.NTFSTotal,
			func(v forge.Bytes) { v.U64(fsforge.NTFSTotal, n) },
			fmt.Sprintf("total sectors %d", n), "want 1 to 6000, the size of the partition"))
	}
	// A stored start other than the partition's is no damage: the issue is refused, since its meaning is unknown.
	for _, n := range []uint32{1, 64, 2048, 1<<32 - 1} {
		out = append(out, kept(fmt.Sprintf("T55 %d hidden sectors", n), "unsupported",
			ntfsImage(func(v forge.Bytes) { v.U32(fsforge.BootHidden, n) }), "ntfs hidden sectors at 0x7e1c",
			fmt.Sprintf("point to byte %d", int64(n)*512), "the partition starts at byte 32256"))
	}
	return out
}

func brokenExt() []Row {
	row := func(name string, at int64, change func(super forge.Bytes), says ...string) Row {
		return brokenVolume("T60 "+name, "ext superblock", fsforge.ExtSuper+at,
			extImage(func(v forge.Bytes) { change(v[fsforge.ExtSuper:]) }), says...)
	}
	var out []Row
	for _, n := range []uint32{7, 64, 1<<32 - 1} {
		out = append(out, row(fmt.Sprintf("log block size %d", n), fsforge.ExtLogBlockSize,
			func(s forge.Bytes) { s.U32(fsforge.ExtLogBlockSize, n) },
			fmt.Sprintf("log block size %d", n), "want 0 to 6"))
	}
	for _, n := range []uint16{0, 64, 129, 2048, 65535} {
		out = append(out, row(fmt.Sprintf("inode size %d", n), fsforge.ExtInodeSize,
			func(s forge.Bytes) { s.U16(fsforge.ExtInodeSize, n) },
			fmt.Sprintf("inode size %d", n), "want a power of two from 128 to 1024"))
	}
	for _, n := range []uint16{0, 63, 2048} {
		out = append(out, row(fmt.Sprintf("descriptor size %d", n), fsforge.ExtDescSize, func(s forge.Bytes) {
			s.U32(fsforge.ExtIncompat, 0x82) // with 64-bit block numbers, for which the field counts
			s.U16(fsforge.ExtDescSize, n)
		}, fmt.Sprintf("group descriptor size %d", n), "want a power of two from 32 to 1024"))
	}
	return append(out,
		row("no blocks per group", fsforge.ExtBlocksPerGroup,
			func(s forge.Bytes) { s.U32(fsforge.ExtBlocksPerGroup, 0) }, "blocks per group 0", "want 1 or more"),
		row("no inodes per group", fsforge.ExtInodesPerGroup,
			func(s forge.Bytes) { s.U32(fsforge.ExtInodesPerGroup, 0) }, "inodes per group 0", "want 1 or more"),
		row("no blocks", fsforge.ExtBlocks, func(s forge.Bytes) { s.U32(fsforge.ExtBlocks, 0) }, "block count 0",
			"want 1 to 3000"),
		row("more blocks than the partition", fsforge.ExtBlocks,
			func(s forge.Bytes) { s.U32(fsforge.ExtBlocks, 3001) }, "block count 3001", "want 1 to 3000"),
		row("2^63 blocks", fsforge.ExtBlocks, func(s forge.Bytes) {
			s.U32(fsforge.ExtIncompat, 0x82)
			s.U16(fsforge.ExtDescSize, 64)
			s.U32(fsforge.ExtBlocks, 0)
			s.U32(fsforge.ExtBlocksHi, 1<<31)
		}, "block count 9223372036854775808", "want 1 to 3000"))
}

func brokenFAT() []Row {
	row := func(name string, at int64, change func(forge.Bytes), says ...string) Row {
		return brokenVolume("T62 "+name, "fat boot sector", at, fatImage(change), says...)
	}
	var out []Row
	for _, n := range []uint16{0, 3, 256, 8192, 65535} {
		out = append(out, row(fmt.Sprintf("%d bytes per sector", n), fsforge.BootBytesPerSector,
			func(v forge.Bytes) { v.U16(fsforge.BootBytesPerSector, n) },
			fmt.Sprintf("bytes per sector %d", n), "want 512, 1024, 2048 or 4096"))
	}
	for _, n := range []uint8{0, 3, 255} {
		out = append(out, row(fmt.Sprintf("%d sectors per cluster", n), fsforge.BootSectorsPerCluster,
			func(v forge.Bytes) { v.U8(fsforge.BootSectorsPerCluster, n) },
			fmt.Sprintf("sectors per cluster %d", n), "want 1, 2, 4"))
	}
	for _, n := range []uint8{0, 5, 255} {
		out = append(out, row(fmt.Sprintf("%d FATs", n), fsforge.BootFATs,
			func(v forge.Bytes) { v.U8(fsforge.BootFATs, n) },
			fmt.Sprintf("number of FATs %d", n), "want 1 to 4"))
	}
	for _, n := range []uint32{volumeSectors + 1, 1<<32 - 1} {
		// Sound except for the end, like a truncated image: a move would make the loss final.
		out = append(out, broken(fmt.Sprintf("T62 %d sectors in total", n), "format",
			fatImage(func(v forge.Bytes) { v.U32(fsforge.BootSectors32, n) }),
			fmt.Sprintf("the fat16 has %d bytes by its own structures", int64(n)*512), "the partition has 3072000"))
	}
	out = append(out,
		row("no sectors", fsforge.BootSectors32, func(v forge.Bytes) { v.U32(fsforge.BootSectors32, 0) },
			"total sectors 0", "want 1 to 6000"),
		row("FAT of 4000 sectors", fsforge.BootFATSize, func(v forge.Bytes) { v.U16(fsforge.BootFATSize, 4000) },
			"FAT size 4000", "want less"),
		// Without a size here, that of FAT32 counts, after the common fields.
		row("FAT of 0 sectors", 0x24, func(v forge.Bytes) { v.U16(fsforge.BootFATSize, 0) }, "FAT size", "want less"),
		row("FAT32 of 0 sectors", 0x24, func(v forge.Bytes) { v.U16(fsforge.BootFATSize, 0); v.U32(0x24, 0) },
			"FAT size 0", "want 1 or more"))
	return append(out, row("no reserved sectors", fsforge.BootReserved,
		func(v forge.Bytes) { v.U16(fsforge.BootReserved, 0) }, "reserved sectors 0", "want 1 or more"))
}

// oddVolumes are unusual and move: nothing in an ext file system depends on its position, so neither an unknown feature
// nor an unreplayed journal prevents it.
func oddVolumes() []Row {
	big := func(disk forge.Bytes, lba, sectors int64) {
		fsforge.PutNTFS(disk, lba, sectors)
		for _, copy := range []int64{lba, lba + sectors - 1} {
			disk.U8(copy*512+fsforge.BootSectorsPerCluster, 0x80)
		}
	}
	incompat := func(n uint32) Writer {
		return extImage(func(v forge.Bytes) { v.U32(fsforge.ExtSuper+fsforge.ExtIncompat, n) })
	}
	exfat := func(change func(v forge.Bytes)) Writer { return volumeImage(0x07, fsforge.PutExFAT, change) }
	const fat, root, escape = 32 * 512, 4, "\x1b]0;x\a"
	return []Row{
		odd("T55 clusters of 64 KiB", "ntfs", volumeImage(0x07, big, unsealed)),
		odd("T60 unknown incompatible bit", "ext4", incompat(0x40000002),
			"the ext has unknown incompatible features 0x40000000"),
		odd("T60 journal to be replayed", "ext2", incompat(0x6), "journal has not been replayed"),
		odd("T62 FAT without a name", "fat16", fatImage(func(v forge.Bytes) { v.Text(0x36, "        ") })),
		odd("T62 broken and without a name", "unknown", fatImage(func(v forge.Bytes) {
			v.Text(0x36, "        ")
			v.U8(fsforge.BootFATs, 0)
		})),
		odd("T62 root directory of exFAT in a circle", "exfat", exfat(func(v forge.Bytes) {
			v.Put(fsforge.ExFATHeap+(root-2)*4096, bytesOf(5, 4096))
			v.U32(fat+4*root, root)
		})),
		odd("T62 exFAT of another place", "exfat",
			exfatImage(func(v forge.Bytes) { v.U64(fsforge.ExFATPartitionOffset, 1<<60) }), "left as found"),
		odd("T62 exFAT of a place that is not known", "exfat", exfat(func(v forge.Bytes) {
			for _, first := range []int64{0, 12} {
				v.U64(first*512+fsforge.ExFATPartitionOffset, 0)
				fsforge.SealExFAT(v, first)
			}
		})),
		odd("T62 XFS with escapes in its label", "xfs", volumeImage(0x83, volumeforge.PutXFS, func(v forge.Bytes) {
			v.Put(108, []byte(escape))
			volumeforge.SealXFS(v)
		})),
		odd("T62 exFAT with escapes in its label", "exfat", exfat(func(v forge.Bytes) {
			v.Put(fsforge.ExFATHeap+2*4096+2, []byte{0x1b, 0, 0x2e, 0x20, 0x9b, 0})
		})),
		odd("T62 ISO 9660 with escapes in its label", "iso9660",
			volumeImage(0x83, volumeforge.PutISO9660, func(v forge.Bytes) {
				v.Text(volumeforge.ISOAt+40, escape)
				v.Text(volumeforge.ISOAt+813, escape)
			})),
		odd("T62 HFS with escapes in its label", "hfs",
			volumeImage(0xaf, volumeforge.PutHFS, func(v forge.Bytes) {
				v.Text(volumeforge.HFSAt+37, "\x9b\xff\x1b")
			})),
		odd("T62 exFAT with a broken backup", "exfat", exfat(func(v forge.Bytes) { v.U8(15*512, 1) }),
			"wrong checksum"),
	}
}
