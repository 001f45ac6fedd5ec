package volumeforge

import (
	"encoding/binary"

	"github.com/trueup/trueup/internal/disktest/forge"
)

// HFSAt is the offset of the master directory block of HFS and the volume header of HFS+ in the volume.
const HFSAt = 1024

// PutHFS writes the master directory block of an HFS. Spec: Apple, Inside Macintosh: Files, "Master Directory Blocks".
func PutHFS(f forge.Bytes, lba, sectors int64) {
	s := f[lba*512+HFSAt:]
	s.Text(0, "BD")
	s.BE16(10, 0x100)
	s.BE16(14, 3)
	s.BE16(18, uint16((sectors-8-2)/2))
	s.BE32(20, 1024)
	s.BE16(28, 8)
	s.BE16(34, 100)
	s.U8(36, 6)
	s.Text(37, "forged")
	s.Text(116, "hfs uuid")
}

// PutHFSPlus writes the volume header of an HFS+. Spec: TN1150, "Volume Header".
func PutHFSPlus(f forge.Bytes, lba, sectors int64) {
	s := f[lba*512+HFSAt:]
	s.Text(0, "H+")
	s.BE16(2, 4)
	s.BE32(4, 0x100)
	s.Text(8, "10.0")
	s.BE32(40, 4096)
	s.BE32(44, uint32(sectors/8))
	s.BE32(48, 10)
	s.Text(104, "hfs+ uid")
}

// PutAPFS writes the superblock of an APFS container. Spec: Apple File System Reference, nx_superblock_t.
func PutAPFS(f forge.Bytes, lba, sectors int64) {
	v := f[lba*512:]
	v.U64(8, 1)
	v.U64(16, 1)
	v.U32(24, 0x80000001)
	v.Text(32, "NXSB")
	v.U32(36, 4096)
	v.U64(40, uint64(sectors/8))
	v.U64(64, 2)
	v.Text(72, forgedUUID)
	SealAPFS(v)
}

// SealAPFS computes the checksum of block 0 again. Spec: Apple File System Reference, "Objects".
func SealAPFS(f forge.Bytes) {
	const mod = 0xffffffff
	var a, b uint64
	for i := 8; i < 4096; i += 4 {
		a += uint64(binary.LittleEndian.Uint32(f[i:]))
		b += a % mod
	}
	c := mod - (a+b)%mod
	f.U64(0, (mod-(a+c)%mod)<<32|c)
}

// PutReFS writes the boot sector of a ReFS 3.4. Spec: Microsoft, FILE_SYSTEM_RECOGNITION_STRUCTURE; libfsrefs, "Volume
// header".
func PutReFS(f forge.Bytes, lba, sectors int64) {
	v := f[lba*512:]
	v.Text(3, "ReFS")
	v.Text(16, "FSRS")
	v.U16(20, 512)
	v.U64(24, uint64(sectors))
	v.U32(32, 512)
	v.U32(36, 8)
	v.Put(40, []byte{3, 4})
	v.U64(56, 0x1122334455667788)
	SealReFS(v)
}

// SealReFS recomputes the checksum of the boot sector. Spec: Microsoft, "Computing a File System Recognition Checksum".
func SealReFS(f forge.Bytes) {
	var sum uint16
	for i := 3; i < 512; i++ {
		if i == 22 || i == 23 {
			continue
		}
		top := sum & 1
		sum = top<<15 + sum>>1 + uint16(f[i])
	}
	f.U16(22, sum)
}

// ISOAt is the offset of the first volume descriptor in the volume.
const ISOAt = 32 << 10

// PutISO9660 writes a primary volume descriptor and the end of the descriptors. Spec: ECMA-119, 8.3 and 8.4.
func PutISO9660(f forge.Bytes, lba, sectors int64) {
	s := f[lba*512+ISOAt:]
	s.Text(0, "\x01CD001\x01")
	for i := range int64(32) {
		s.U8(40+i, ' ')
	}
	s.Text(40, "FORGED")
	s.U32(80, uint32(sectors/4))
	s.BE32(84, uint32(sectors/4))
	s.U16(128, 2048)
	s.BE16(130, 2048)
	s.Text(813, "2003040506070809\x00")
	s.Text(830, "0000000000000000\x00")
	s.U8(881, 1)
	s.Text(2048, "\xffCD001\x01")
}
