// Package volumeforge forges volumes of other file systems: as much of them as a prober reads.
package volumeforge

import (
	"crypto/sha256"
	"hash/crc32"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
)

// These volumes are only superblocks, enough for libblkid and our probers. Each begins at sector lba of 512 bytes.

const forgedUUID = "forged fs uuid.."

func castagnoli(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// PutXFS writes the superblock of an XFS of version 5. Spec: XFS Algorithms & Data Structures, "Superblocks".
func PutXFS(f forge.Bytes, lba, sectors int64) {
	v := f[lba*512:]
	v.Text(0, "XFSB")
	v.BE32(4, 4096)
	v.BE64(8, uint64(sectors/8))
	v.Text(32, forgedUUID)
	v.BE64(48, 100) // log
	v.BE64(56, 128) // root inode
	v.BE32(80, 1)
	v.BE32(84, 1024)
	v.BE32(88, 1) // groups
	v.BE32(96, 64)
	v.BE16(100, 0xb4a5)
	v.BE16(102, 512)
	v.BE16(104, 512)
	v.BE16(106, 8)
	v.Text(108, "forged")
	v.Put(120, []byte{12, 9, 9, 3, 10, 0, 0, 25})
	SealXFS(v)
}

// SealXFS computes the checksum over the first sector again.
func SealXFS(f forge.Bytes) {
	f.U32(224, 0)
	f.U32(224, castagnoli(f[:512]))
}

// BtrfsAt is the offset of the first superblock of a btrfs.
const BtrfsAt = 64 << 10

// PutBtrfs writes the first superblock of a btrfs. Spec: Linux, include/uapi/linux/btrfs_tree.h.
func PutBtrfs(f forge.Bytes, lba, sectors int64) {
	v := f[lba*512:]
	s := make(forge.Bytes, 4096)
	s.Text(0x20, forgedUUID)
	s.U64(0x30, BtrfsAt)
	s.Text(0x40, "_BHRfS_M")
	s.U64(0x48, 7)
	s.U64(0x70, uint64(sectors*512))
	s.U64(0x88, 1)
	s.U32(0x90, 4096)
	s.U32(0x94, 16384)
	s.U64(0xc9, 1) // device
	s.U64(0xd1, uint64(sectors*512))
	s.Text(0x11b, forgedUUID)
	s.Text(0x12b, "forged")
	v.Put(BtrfsAt, s)
	SealBtrfs(v, false)
}

// SealBtrfs computes the checksum again: CRC-32C, or SHA-256 if the superblock shall name it.
func SealBtrfs(f forge.Bytes, sha bool) {
	s := f[BtrfsAt : BtrfsAt+4096]
	clear(s[:32])
	if sha {
		s.U16(0xc4, 2)
		sum := sha256.Sum256(s[32:])
		s.Put(0, sum[:])
		return
	}
	s.U32(0, castagnoli(s[32:]))
}

// JFSAt is the offset of the superblock of a JFS.
const JFSAt = 32 << 10

// PutJFS writes the superblock of a JFS. Spec: Linux, fs/jfs/jfs_superblock.h.
func PutJFS(f forge.Bytes, lba, sectors int64) {
	s := f[lba*512+JFSAt:]
	s.Text(0, "JFS1")
	s.U32(4, 1)
	s.U64(8, uint64(sectors/8*8-64*8)) // the log has the last 64 blocks
	s.U32(16, 4096)
	s.U16(20, 12)
	s.U16(22, 3)
	s.U32(24, 512)
	s.U16(28, 9)
	s.U32(32, 8192)
	s.U32(36, 0x10200900)
	s.U32(72, 64)
	s.U32(76, uint32(sectors/8-64))
	s.Text(136, forgedUUID)
	s.Text(152, "forged")
}

// ReiserAt is the offset of the superblock of a ReiserFS.
const ReiserAt = 64 << 10

// PutReiserFS writes the superblock of a ReiserFS 3.6. Spec: Linux, fs/reiserfs/reiserfs.h.
func PutReiserFS(f forge.Bytes, lba, sectors int64) {
	s := f[lba*512+ReiserAt:]
	s.U32(0, uint32(sectors/8))
	s.U32(4, 10)
	s.U32(8, 300)
	s.U32(12, 18)
	s.U32(20, 200)
	s.U16(44, 4096)
	s.U16(46, 972)
	s.U16(48, 2)
	s.U16(50, 1)
	s.Text(52, "ReIsEr2Fs")
	s.U16(68, 2)
	s.U16(70, 1)
	s.U16(72, 2)
	s.Text(84, forgedUUID)
	s.Text(100, "forged")
}

// PutF2FS writes the first superblock of an F2FS with a checksum. Spec: Linux, include/linux/f2fs_fs.h.
func PutF2FS(f forge.Bytes, lba, sectors int64) {
	v := f[lba*512:]
	s := v[fsforge.ExtSuper:]
	s.U32(0, 0xf2f52010)
	s.U16(4, 1)
	s.U16(6, 15)
	for i, n := range []uint32{9, 3, 12, 9, 1, 1, 3068} {
		s.U32(8+4*int64(i), n)
	}
	s.U64(36, uint64(sectors/8))
	s.U32(48, 1) // segment
	s.U32(96, 3)
	s.U32(100, 1)
	s.U32(104, 2)
	s.Text(108, forgedUUID)
	s.Text(124, "f\x00o\x00r\x00g\x00e\x00d\x00")
	s.U32(2180, 0x800)
	SealF2FS(v)
}

// SealF2FS computes the checksum again, bit by bit: a CRC-32 that starts with the magic, not inverted.
func SealF2FS(f forge.Bytes) {
	s := f[fsforge.ExtSuper:]
	sum := uint32(0xf2f52010)
	for _, b := range s[:3068] {
		sum ^= uint32(b)
		for range 8 {
			sum = sum>>1 ^ 0xedb88320*(sum&1)
		}
	}
	s.U32(3068, sum)
}

// UFS1At and UFS2At are the offsets of the superblocks.
const (
	UFS1At = 8 << 10
	UFS2At = 64 << 10
)

// PutUFS1 writes the superblock of a big-endian UFS1. Spec: FreeBSD, sys/ufs/ffs/fs.h.
func PutUFS1(f forge.Bytes, lba, sectors int64) {
	s := f[lba*512+UFS1At:]
	s.BE32(36, uint32(sectors/2))
	s.BE32(44, 1)
	s.BE32(48, 8192)
	s.BE32(52, 1024)
	s.BE32(56, 8)
	s.BE32(144, 0x11223344)
	s.BE32(148, 0x55667788)
	s.BE32(1372, 0x00011954)
}

// PutUFS2 writes the superblock of a little-endian UFS2.
func PutUFS2(f forge.Bytes, lba, sectors int64) {
	s := f[lba*512+UFS2At:]
	s.U32(44, 1)
	s.U32(48, 32768)
	s.U32(52, 4096)
	s.U32(56, 8)
	s.U32(144, 0x11223344)
	s.U32(148, 0x55667788)
	s.Text(680, "forged")
	s.U64(1000, UFS2At)
	s.U64(1080, uint64(sectors/8))
	s.U32(1372, 0x19540119)
}
