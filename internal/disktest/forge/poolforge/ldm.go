package poolforge

import (
	"encoding/binary"

	"github.com/trueup/trueup/internal/disktest/forge"
)

// Places in the database of a dynamic disk. Spec: Linux-NTFS, "LDM Documentation"; Linux, block/partitions/ldm.h.
const (
	LDMHead        = 6 * 512 // of a disk with an MBR
	LDMConfigStart = 299     // in the private header
	LDMConfigSize  = 307
	LDMTOC         = 1 * 512 // in the database
	LDMTOCStart    = 46
	LDMVMDB        = 17 * 512
	LDMRecords     = 4
	LDMBlockSize   = 8
	LDMFirstBlock  = 12
	LDMBlocks      = LDMVMDB + 512
	LDMBlock       = 128
	ldmFragment    = 12 // in a block
	LDMTotal       = 14
	LDMBody        = 24 // behind the head of its record
	ldmSectors     = 2048
)

// ldmDiskID is the GUID of the disk.
const ldmDiskID = "11111111-2222-3333-4444-555555555555"

// PutLDM makes a disk with an MBR a dynamic one with the simple volume "Volume1", in place of the sectors from lba on.
// The database is the last MiB. It returns the byte offset of that.
func PutLDM(f forge.Bytes, lba, sectors int64) int64 {
	total := int64(len(f)) / 512
	db := (total - ldmSectors) * 512
	head := make(forge.Bytes, 512)
	head.Text(0, "PRIVHEAD")
	head.Put(12, []byte{0, 2, 0, 12})
	head.Text(48, ldmDiskID)
	head.Text(112, "1b77da20-c717-11d0-a5be-00a0c91db73c")
	head.Text(176, "99999999-8888-7777-6666-555555555555")
	head.Text(240, "ForgedDg0")
	for i, n := range []int64{lba, total - ldmSectors - lba, total - ldmSectors, ldmSectors} {
		head.BE64(283+8*int64(i), uint64(n))
	}
	for _, at := range []int64{LDMHead, db + 1856*512, db + 2047*512} {
		f.Put(at, head)
	}
	toc := make(forge.Bytes, 512)
	toc.Text(0, "TOCBLOCK")
	toc.Text(36, "config")
	toc.BE64(LDMTOCStart, LDMVMDB/512)
	toc.BE64(54, 1480)
	toc.Text(70, "log")
	toc.BE64(80, 1497)
	toc.BE64(88, 224)
	for _, sector := range []int64{1, 2, 2045, 2046} {
		f.Put(db+sector*512, toc)
	}
	putLDMRecords(f, db+LDMVMDB, sectors)
	return db
}

// putLDMRecords writes the head of the records and four of them: a disk, a partition, a component and a volume.
func putLDMRecords(f forge.Bytes, at, sectors int64) {
	v := f[at:]
	v.Text(0, "VMDB")
	v.BE32(LDMRecords, 6)
	v.BE32(LDMBlockSize, LDMBlock)
	v.BE32(LDMFirstBlock, LDMBlocks-LDMVMDB)
	v.Put(16, []byte{0, 1, 0, 4, 0, 10})
	v.Text(22, "ForgedDg0")
	v.Text(53, "99999999-8888-7777-6666-555555555555")
	for i := range int64(4) {
		v.BE32(133+4*i, 1) // committed volumes, components, partitions, disks
	}
	size := binary.BigEndian.AppendUint64([]byte{8}, uint64(sectors))
	zeros := func(n int) []byte { return make([]byte, n) }
	block(v, 4, 0x35, 0, counted("\x01"), counted("ForgedDg0"), counted("99999999-8888-7777-6666-555555555555"), zeros(4))
	block(v, 5, 0x34, 0, counted("\x02"), counted("Disk1"), counted(ldmDiskID), counted(""), zeros(12))
	block(v, 6, 0x33, 0, counted("\x05"), counted("Disk1-01"), zeros(4+8+8+8), size, counted("\x04"), counted("\x02"))
	block(v, 7, 0x32, 0, counted("\x04"), counted("Volume1-01"), counted("ACTIVE"), []byte{2}, zeros(4), counted("\x01"),
		zeros(16), counted("\x03"), zeros(1))
	block(v, 8, 0x51, 2, counted("\x03"), counted("Volume1"), counted("gen"), counted(""),
		[]byte("ACTIVE\x00\x00\x00\x00\x00\x00\x00\x00"), []byte{3, 1, 1, 0, 0, 0, 0},
		counted("\x01"), zeros(16), size, zeros(4), []byte{7}, []byte("guid of a volume"), counted("E:"))
}

// block writes a record of a type into a block. The first four blocks stand in the sector of the head, and are numbered
// all the same.
func block(f forge.Bytes, n int64, kind, flags byte, fields ...[]byte) {
	b := f[512+(n-4)*LDMBlock:][:LDMBlock]
	b.Text(0, "VBLK")
	b.BE32(4, uint32(n))
	b.BE32(8, uint32(n))
	b.Put(LDMTotal, []byte{0, 1})
	b.U8(18, flags)
	b.U8(19, kind)
	at := int64(LDMBody)
	for _, x := range fields {
		b.Put(at, x)
		at += int64(len(x))
	}
	b.BE32(20, uint32(at-LDMBody))
}

// counted returns a field that begins with its length.
func counted(s string) []byte { return append([]byte{byte(len(s))}, s...) }
