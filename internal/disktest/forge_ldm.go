package disktest

import "encoding/binary"

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
	LDMFragment    = 12 // in a block
	LDMTotal       = 14
	LDMBody        = 24 // behind the head of its record
	ldmSectors     = 2048
)

// ldmDiskID is the GUID of the disk.
const ldmDiskID = "11111111-2222-3333-4444-555555555555"

// PutLDM makes a disk with an MBR a dynamic one with the simple volume "Volume1", in place of the sectors from lba on.
// The database is the last MiB. It returns the byte offset of that.
func (f Forged) PutLDM(lba, sectors int64) int64 {
	total := int64(len(f)) / 512
	db := (total - ldmSectors) * 512
	head := make(Forged, 512)
	head.Text(0, "PRIVHEAD")
	head.Put(12, []byte{0, 2, 0, 12})
	head.Text(48, ldmDiskID)
	head.Text(112, "1b77da20-c717-11d0-a5be-00a0c91db73c")
	head.Text(176, "99999999-8888-7777-6666-555555555555")
	head.Text(240, "ForgedDg0")
	for i, n := range []int64{lba, total - ldmSectors - lba, total - ldmSectors, ldmSectors} {
		head.Big64(283+8*int64(i), uint64(n))
	}
	for _, at := range []int64{LDMHead, db + 1856*512, db + 2047*512} {
		f.Put(at, head)
	}
	toc := make(Forged, 512)
	toc.Text(0, "TOCBLOCK")
	toc.Text(36, "config")
	toc.Big64(LDMTOCStart, LDMVMDB/512)
	toc.Big64(54, 1480)
	toc.Text(70, "log")
	toc.Big64(80, 1497)
	toc.Big64(88, 224)
	for _, sector := range []int64{1, 2, 2045, 2046} {
		f.Put(db+sector*512, toc)
	}
	f.putLDMRecords(db+LDMVMDB, sectors)
	return db
}

// putLDMRecords writes the head of the records and four of them: a disk, a partition, a component and a volume.
func (f Forged) putLDMRecords(at, sectors int64) {
	v := f[at:]
	v.Text(0, "VMDB")
	v.Big32(LDMRecords, 6)
	v.Big32(LDMBlockSize, LDMBlock)
	v.Big32(LDMFirstBlock, LDMBlocks-LDMVMDB)
	v.Put(16, []byte{0, 1, 0, 4, 0, 10})
	v.Text(22, "ForgedDg0")
	v.Text(53, "99999999-8888-7777-6666-555555555555")
	for i := range int64(4) {
		v.Big32(133+4*i, 1) // committed volumes, components, partitions, disks
	}
	size := binary.BigEndian.AppendUint64([]byte{8}, uint64(sectors))
	zeros := func(n int) []byte { return make([]byte, n) }
	v.block(4, 0x35, 0, counted("\x01"), counted("ForgedDg0"), counted("99999999-8888-7777-6666-555555555555"), zeros(4))
	v.block(5, 0x34, 0, counted("\x02"), counted("Disk1"), counted(ldmDiskID), counted(""), zeros(12))
	v.block(6, 0x33, 0, counted("\x05"), counted("Disk1-01"), zeros(4+8+8+8), size, counted("\x04"), counted("\x02"))
	v.block(7, 0x32, 0, counted("\x04"), counted("Volume1-01"), counted("ACTIVE"), []byte{2}, zeros(4), counted("\x01"),
		zeros(16), counted("\x03"), zeros(1))
	v.block(8, 0x51, 2, counted("\x03"), counted("Volume1"), counted("gen"), counted(""),
		[]byte("ACTIVE\x00\x00\x00\x00\x00\x00\x00\x00"), []byte{3, 1, 1, 0, 0, 0, 0},
		counted("\x01"), zeros(16), size, zeros(4), []byte{7}, []byte("guid of a volume"), counted("E:"))
}

// block writes a record of a type into a block. The first four blocks stand in the sector of the head, and are numbered
// all the same.
func (f Forged) block(n int64, kind, flags byte, fields ...[]byte) {
	b := f[512+(n-4)*LDMBlock:][:LDMBlock]
	b.Text(0, "VBLK")
	b.Big32(4, uint32(n))
	b.Big32(8, uint32(n))
	b.Put(LDMTotal, []byte{0, 1})
	b.U8(18, flags)
	b.U8(19, kind)
	at := int64(LDMBody)
	for _, x := range fields {
		b.Put(at, x)
		at += int64(len(x))
	}
	b.Big32(20, uint32(at-LDMBody))
}

// counted returns a field that begins with its length.
func counted(s string) []byte { return append([]byte{byte(len(s))}, s...) }

// Big32 sets four bytes at off, big-endian.
func (f Forged) Big32(off int64, v uint32) { binary.BigEndian.PutUint32(f[off:], v) }

// Big64 sets eight bytes at off, big-endian.
func (f Forged) Big64(off int64, v uint64) { binary.BigEndian.PutUint64(f[off:], v) }
