// Package fsforge forges volumes of NTFS, FAT, exFAT and ext: as much of them as a prober reads.
package fsforge

import (
	"encoding/binary"
	"unicode/utf16"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// Places in the boot sectors of NTFS and FAT. Spec: Microsoft FAT specification 1.03; NTFS keeps the same BPB and adds
// its own fields after it.
const (
	BootBytesPerSector    = 0x0b
	BootSectorsPerCluster = 0x0d
	BootReserved          = 0x0e
	BootFATs              = 0x10
	bootRootEntries       = 0x11
	bootSectors16         = 0x13
	BootMedia             = 0x15
	BootFATSize           = 0x16
	BootSectorsPerTrack   = 0x18
	BootHeads             = 0x1a
	BootHidden            = 0x1c
	BootSectors32         = 0x20
	fatLabel              = 0x2b
	NTFSTotal             = 0x28
	NTFSMFT               = 0x30
	ntfsMirror            = 0x38
	NTFSRecord            = 0x40
	ntfsSerial            = 0x48
)

// PutNTFS writes the boot sectors of an NTFS volume over a partition: the first sector and, as Windows does, a copy in
// the last one. It also writes the mark of the first record of the master file table, and $Volume.
func PutNTFS(f forge.Bytes, lba, sectors int64) {
	boot := make(forge.Bytes, 512)
	boot.Put(0, []byte{0xeb, 0x52, 0x90})
	boot.Text(3, "NTFS    ")
	boot.U16(BootBytesPerSector, 512)
	boot.U8(BootSectorsPerCluster, 8)
	boot.U8(BootMedia, 0xf8)
	boot.U16(BootSectorsPerTrack, 63)
	boot.U16(BootHeads, 255)
	boot.U32(BootHidden, uint32(lba))
	boot.Put(0x24, []byte{0x80, 0, 0x80, 0})
	boot.U64(NTFSTotal, uint64(sectors-1))
	boot.U64(NTFSMFT, 4)
	boot.U64(ntfsMirror, 40)
	boot.U8(NTFSRecord, 0xf6) // 2^10 bytes
	boot.U8(0x44, 1)
	boot.U64(ntfsSerial, 0x1122334455667788)
	boot.U16(tableforge.MBRMagic, 0xaa55)
	f.Put(lba*512, boot)
	f.Put((lba+sectors-1)*512, boot)
	f.Text((lba+4*8)*512, "FILE") // all that blkid needs of the record of $MFT
	f.Put((lba+4*8)*512+3<<10, NTFSVolumeRecord("forged"))
}

// NTFSVolumeRecord returns record 3 of a master file table, $Volume, which holds the label. Spec: Linux-NTFS
// documentation, "File Record", "$VOLUME_NAME", "$VOLUME_INFORMATION".
func NTFSVolumeRecord(label string) forge.Bytes {
	const size, fixups, firstAttribute = 1024, 0x30, 0x38
	r := make(forge.Bytes, size)
	r.Text(0, "FILE")
	r.U16(4, fixups)
	r.U16(6, size/512+1)
	r.U16(0x14, firstAttribute)
	r.U32(0x1c, size)
	at := int64(firstAttribute)
	add := func(kind uint32, value []byte) {
		length := (0x18 + int64(len(value)) + 7) / 8 * 8
		r.U32(at, kind)
		r.U32(at+4, uint32(length))
		r.U32(at+0x10, uint32(len(value)))
		r.U16(at+0x14, 0x18)
		r.Put(at+0x18, value)
		at += length
	}
	var name []byte
	for _, u := range utf16.Encode([]rune(label)) {
		name = binary.LittleEndian.AppendUint16(name, u)
	}
	add(0x60, name)
	add(0x70, []byte{0, 0, 0, 0, 0, 0, 0, 0, 3, 1, 0, 0})
	r.U32(at, 0xffffffff)
	r.U32(0x18, uint32(at+8))
	r.U16(fixups, 1) // the end of both sectors, whose own bytes, zeros, follow here
	r.U16(510, 1)
	r.U16(1022, 1)
	return r
}

// PutFAT16 writes the boot sector of a FAT16 volume, its tables' first entries, and an empty root directory.
func PutFAT16(f forge.Bytes, lba, sectors int64) {
	const reserved, fats, rootEntries, perCluster = 1, 2, 512, 1
	size := (sectors/perCluster*2 + 511) / 512
	boot := make(forge.Bytes, 512)
	boot.Put(0, []byte{0xeb, 0x3c, 0x90})
	boot.Text(3, "MSDOS5.0")
	boot.U16(BootBytesPerSector, 512)
	boot.U8(BootSectorsPerCluster, perCluster)
	boot.U16(BootReserved, reserved)
	boot.U8(BootFATs, fats)
	boot.U16(bootRootEntries, rootEntries)
	boot.U8(BootMedia, 0xf8)
	boot.U16(BootFATSize, uint16(size))
	boot.U16(BootSectorsPerTrack, 63)
	boot.U16(BootHeads, 255)
	boot.U32(BootHidden, uint32(lba))
	boot.U32(BootSectors32, uint32(sectors))
	boot.U8(0x24, 0x80)
	boot.U8(0x26, 0x29)
	boot.U32(0x27, 0xcafe1234)
	boot.Text(fatLabel, "NO NAME    ")
	boot.Text(0x36, "FAT16   ")
	boot.U16(tableforge.MBRMagic, 0xaa55)
	f.Put(lba*512, boot)
	for i := range int64(fats) {
		f.Put((lba+reserved+i*size)*512, []byte{0xf8, 0xff, 0xff, 0xff})
	}
}

// Offsets in an ext superblock, which is at byte 1024 of the volume. Spec: Linux,
// Documentation/filesystems/ext4/super.rst.
const (
	ExtSuper          = 1024
	ExtBlocks         = 0x04
	ExtLogBlockSize   = 0x18
	ExtBlocksPerGroup = 0x20
	ExtInodesPerGroup = 0x28
	ExtInodeSize      = 0x58
	extCompat         = 0x5c
	ExtIncompat       = 0x60
	extLabel          = 0x78
	ExtDescSize       = 0xfe
	ExtBlocksHi       = 0x150
)

// PutExt writes the superblock of an ext2 volume with blocks of 1 KiB.
func PutExt(f forge.Bytes, lba, sectors int64) {
	s := make(forge.Bytes, 1024)
	s.U32(0, 64)
	s.U32(ExtBlocks, uint32(sectors/2))
	s.U32(0x14, 1) // the first block with data
	s.U32(ExtLogBlockSize, 0)
	s.U32(0x1c, 0)
	s.U32(ExtBlocksPerGroup, 8192)
	s.U32(0x24, 8192)
	s.U32(ExtInodesPerGroup, 64)
	s.U16(0x38, 0xef53)
	s.U16(0x3a, 1) // clean
	s.U32(0x4c, 1) // with the fields that follow
	s.U32(0x54, 11)
	s.U16(ExtInodeSize, 128)
	s.U32(ExtIncompat, 2) // directory entries have a file type
	s.Text(0x68, "superblock uuid!")
	s.Text(extLabel, "forged")
	f.Put(lba*512+ExtSuper, s)
}
