package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// A partition with a forged volume: at LBA 63, so that it has to move. FAT16 needs some 4100 clusters.
const (
	volumeStart   = 63
	volumeSectors = 6000
	volumeAt      = volumeStart * 512
)

// volumeDisk is a disk with one partition, whose volume the caller puts there and changes.
func volumeDisk(kind byte, put func(disk forge.Bytes)) forge.Bytes {
	disk := tableforge.NewMBR(8192, slot(kind, volumeStart, volumeSectors))
	put(disk)
	return disk
}

// volumeImage is volumeDisk as an image. Offsets of change count from the volume.
func volumeImage(kind byte, put func(disk forge.Bytes, lba, sectors int64), change func(volume forge.Bytes)) func(
	testing.TB, string) string {
	return writeForged("disk.raw", volumeDisk(kind, func(disk forge.Bytes) {
		put(disk, volumeStart, volumeSectors)
		change(disk[volumeAt:])
	}))
}

func ntfsImage(change func(forge.Bytes)) func(testing.TB, string) string {
	return volumeImage(0x07, fsforge.PutNTFS, change)
}

// fatImage is a FAT16 with two reserved sectors, so that its data lie off 4 KiB, unlike behind one.
func fatImage(change func(forge.Bytes)) func(testing.TB, string) string {
	return volumeImage(0x06, fsforge.PutFAT16, func(v forge.Bytes) {
		v.U16(fsforge.BootReserved, 2)
		copy(v[2*512:], v[512:volumeSectors*512-512])
		clear(v[512 : 2*512])
		change(v)
	})
}

func extImage(change func(forge.Bytes)) func(testing.TB, string) string {
	return volumeImage(0x83, fsforge.PutExt, change)
}

// TestHostileVolumes breaks NTFS, ext and FAT. A volume that is broken does not hide the rest of the report; a
// copy is not made unless the user asks for opaque bytes (TestBrokenVolumesAsOpaqueBytes).
func TestHostileVolumes(t *testing.T) {
	t.Parallel()
	runHostile(t, brokenNTFS(), brokenExt(), brokenFAT())
}

// brokenVolume expects a message about the field at an offset from the volume's start.
func brokenVolume(name, what string, at int64, image func(testing.TB, string) string, says ...string) hostile {
	return hostile{
		name: name, image: image, code: "format", report: true,
		says: append(says, fmt.Sprintf("%s at %#x", what, volumeAt+at)),
	}
}

func brokenNTFS() []hostile {
	const what = "ntfs boot sector"
	row := func(name string, at int64, change func(forge.Bytes), says ...string) hostile {
		return brokenVolume("T55 "+name, what, at, ntfsImage(change), says...)
	}
	var out []hostile
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
	// A stored start that is not the partition's is no damage: the issue has it refused, since its meaning is not
	// known.
	for _, n := range []uint32{1, 64, 2048, 1<<32 - 1} {
		out = append(out, hostile{
			name: fmt.Sprintf("T55 %d hidden sectors", n), code: "unsupported", inspect: 3, copy: 4, report: true,
			image: ntfsImage(func(v forge.Bytes) { v.U32(fsforge.BootHidden, n) }),
			says: []string{
				"ntfs hidden sectors at 0x7e1c", fmt.Sprintf("point to byte %d", int64(n)*512),
				"the partition starts at byte 32256",
			},
		})
	}
	return out
}

func brokenExt() []hostile {
	row := func(name string, at int64, change func(super forge.Bytes), says ...string) hostile {
		return brokenVolume("T60 "+name, "ext superblock", fsforge.ExtSuper+at,
			extImage(func(v forge.Bytes) { change(v[fsforge.ExtSuper:]) }), says...)
	}
	var out []hostile
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
			s.U32(fsforge.ExtIncompat, 0x82) // with 64-bit block numbers, where the field counts
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
		row("more blocks than the partition", fsforge.ExtBlocks, func(s forge.Bytes) { s.U32(fsforge.ExtBlocks, 3001) },
			"block count 3001", "want 1 to 3000"),
		row("2^63 blocks", fsforge.ExtBlocks, func(s forge.Bytes) {
			s.U32(fsforge.ExtIncompat, 0x82)
			s.U16(fsforge.ExtDescSize, 64)
			s.U32(fsforge.ExtBlocks, 0)
			s.U32(fsforge.ExtBlocksHi, 1<<31)
		}, "block count 9223372036854775808", "want 1 to 3000"))
}

func brokenFAT() []hostile {
	row := func(name string, at int64, change func(forge.Bytes), says ...string) hostile {
		return brokenVolume("T62 "+name, "fat boot sector", at, fatImage(change), says...)
	}
	var out []hostile
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
		// Sound but for the end, like an image that was cut: a move would make the loss final.
		out = append(out, hostile{
			name: fmt.Sprintf("T62 %d sectors in total", n), code: "format", report: true,
			image: fatImage(func(v forge.Bytes) { v.U32(fsforge.BootSectors32, n) }),
			says: []string{
				fmt.Sprintf("the fat16 has %d bytes by its own structures", int64(n)*512),
				"the partition has 3072000",
			},
		})
	}
	out = append(out,
		row("no sectors", fsforge.BootSectors32, func(v forge.Bytes) { v.U32(fsforge.BootSectors32, 0) },
			"total sectors 0", "want 1 to 6000"),
		row("FAT of 4000 sectors", fsforge.BootFATSize, func(v forge.Bytes) { v.U16(fsforge.BootFATSize, 4000) },
			"FAT size 4000", "want less"),
		// Without a size here it is that of FAT32 which counts, behind the common fields.
		row("FAT of 0 sectors", 0x24, func(v forge.Bytes) { v.U16(fsforge.BootFATSize, 0) }, "FAT size", "want less"),
		row("FAT32 of 0 sectors", 0x24, func(v forge.Bytes) { v.U16(fsforge.BootFATSize, 0); v.U32(0x24, 0) },
			"FAT size 0", "want 1 or more"))
	return append(out, row("no reserved sectors", fsforge.BootReserved,
		func(v forge.Bytes) { v.U16(fsforge.BootReserved, 0) }, "reserved sectors 0", "want 1 or more"))
}

// TestSoundOddVolumes tries what looks odd and moves. Nothing in an ext file system depends on its
// place, so neither an unknown feature nor a journal that was not replayed keeps it from moving; the threat list would
// block patching, which does not exist.
func TestSoundOddVolumes(t *testing.T) {
	t.Parallel()
	big := func(disk forge.Bytes, lba, sectors int64) {
		fsforge.PutNTFS(disk, lba, sectors)
		for _, copy := range []int64{lba, lba + sectors - 1} {
			disk.U8(copy*512+fsforge.BootSectorsPerCluster, 0x80)
		}
	}
	incompat := func(n uint32) func(forge.Bytes) {
		return func(v forge.Bytes) { v.U32(fsforge.ExtSuper+fsforge.ExtIncompat, n) }
	}
	runSound(t, map[string]sound{
		"T55 clusters of 64 KiB": {volumeImage(0x07, big, func(forge.Bytes) {}), "ntfs", ""},
		"T60 unknown incompatible bit": {
			extImage(incompat(0x40000002)), "ext4",
			"unknown incompatible ext features 0x40000000",
		},
		"T60 journal to be replayed": {extImage(incompat(0x6)), "ext2", "journal has not been replayed"},
		"T62 FAT without a name":     {fatImage(func(v forge.Bytes) { v.Text(0x36, "        ") }), "fat16", ""},
		"T62 broken and without a name": {fatImage(func(v forge.Bytes) {
			v.Text(0x36, "        ")
			v.U8(fsforge.BootFATs, 0)
		}), "unknown", ""},
	})
}

// TestBrokenVolumesAsOpaqueBytes moves a broken volume because the user asks for it: nothing in it is rewritten.
func TestBrokenVolumesAsOpaqueBytes(t *testing.T) {
	t.Parallel()
	for name, image := range map[string]func(testing.TB, string) string{
		"T55": ntfsImage(func(v forge.Bytes) { v.U16(fsforge.BootBytesPerSector, 3) }),
		"T60": extImage(func(v forge.Bytes) { v.U32(fsforge.ExtSuper+fsforge.ExtBlocksPerGroup, 0) }),
		"T62": fatImage(func(v forge.Bytes) { v.U8(fsforge.BootFATs, 0) }),
	} {
		t.Run(name, func(t *testing.T) {
			path := image(t, t.TempDir())
			dest := filepath.Join(t.TempDir(), "dest.raw")
			r := measure(t, []string{"align", "--allow-unbootable", path, dest})[0]
			require.Equal(t, 0, r.code, r.stderr)
			const size, to = volumeSectors * 512, 1 << 20
			require.True(t, slices.Equal(readAt(t, path, volumeAt, size), readAt(t, dest, to, size)))
		})
	}
}

// TestForgedVolumesAreValid makes sure that the cases above differ from a good volume in nothing but what they change.
func TestForgedVolumesAreValid(t *testing.T) {
	t.Parallel()
	same := func(forge.Bytes) {}
	for kind, image := range map[string]func(testing.TB, string) string{
		"ntfs": ntfsImage(same), "vfat": fatImage(same),
		"ext2": extImage(same),
	} {
		t.Run(kind, func(t *testing.T) {
			path := image(t, t.TempDir())
			volume := filepath.Join(t.TempDir(), "volume")
			require.NoError(t, os.WriteFile(volume, readAt(t, path, volumeAt, volumeSectors*512), 0o644))
			require.Equal(t, kind+"\n", disktest.Output(t, "blkid", "-p", "-s", "TYPE", "-o", "value", volume))
			r := measure(t, []string{"inspect", path})[0]
			require.Equal(t, 3, r.code, r.stderr)
		})
	}
}
