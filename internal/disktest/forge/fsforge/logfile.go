package fsforge

import (
	"encoding/binary"
	"math/bits"

	"github.com/trueup/trueup/internal/disktest/forge"
)

// LogFile is an open $LogFile of Windows XP, with a checkpoint and the following records in one page. Spec: ntfs-3g,
// include/ntfs-3g/logfile.h; Linux, fs/ntfs3/fslog.c.
type LogFile struct {
	forge.Bytes
	at, last int64 // places in the log: of the next record, and of the last one
}

// Layout of the log.
const (
	logPage    = 4096
	logRecords = 4 * logPage // the first page of records
	logMFTSlot = 0x18        // of the table of open attributes: the data of $MFT
	logAnySlot = logMFTSlot + 0x2c
	logAnyFile = 45 // record of the file whose data the other slot is
)

// NewLogFile begins a log of some bytes with a checkpoint.
func NewLogFile(size int64) *LogFile {
	l := &LogFile{Bytes: make(forge.Bytes, size), at: logRecords + 0x40}
	for i := range l.Bytes {
		l.Bytes[i] = 0xff
	}
	clear(l.Bytes[logRecords:][:logPage])
	l.Text(logRecords, "RCRD")
	l.U16(logRecords+4, 0x28)
	l.U16(logRecords+6, 9)
	l.checkpoint()
	return l
}

// lsn is the LSN of a place, in the second round.
func (l *LogFile) lsn(at int64) uint64 {
	return 2<<(64-l.sequenceBits()) | uint64(at)/8
}

func (l *LogFile) sequenceBits() uint { return uint(67 - bits.Len64(uint64(len(l.Bytes)))) }

// Add writes a record of NTFS.
func (l *LogFile) Add(record []byte) { l.add(1, record) }

// add writes a record of a kind: 1 of NTFS, 2 of a checkpoint.
func (l *LogFile) add(kind uint32, data []byte) uint64 {
	if l.at+0x30+int64(len(data)) >= logRecords+logPage {
		panic("fsforge: more records than a page of the log holds")
	}
	lsn := l.lsn(l.at)
	l.U64(l.at, lsn)
	if l.last > 0 {
		l.U64(l.at+8, l.lsn(l.last))
	}
	l.U32(l.at+0x18, uint32(len(data)))
	l.U32(l.at+0x20, kind)
	l.U32(l.at+0x24, 0x40)
	l.Put(l.at+0x30, data)
	l.last = l.at
	l.at += (0x30 + int64(len(data)) + 7) / 8 * 8
	l.U64(logRecords+8, lsn)
	l.U32(logRecords+0x10, 1)
	l.U64(logRecords+0x20, lsn)
	return lsn
}

// logged is a record of NTFS: an operation with its data, on clusters of an attribute.
func logged(op uint16, slot uint16, block uint16, vcn uint64, redo []byte, lcns ...uint64) []byte {
	b := make(forge.Bytes, 0x20+8*len(lcns))
	b.U16(0, op)
	b.U16(4, uint16(len(b)))
	b.U16(6, uint16(len(redo)))
	b.U16(8, uint16(len(b)+len(redo)))
	b.U16(0x0c, slot)
	b.U16(0x0e, uint16(len(lcns)))
	b.U16(0x14, block)
	b.U64(0x18, vcn)
	for i, lcn := range lcns {
		b.U64(int64(0x20+8*i), lcn)
	}
	return append(b, redo...)
}

// OnRecord is an operation with data on a record of the MFT, which begins at a cluster of 4 KiB.
func OnRecord(op uint16, n, mft int64, redo []byte) []byte {
	vcn := n * 1024 / 4096
	return logged(op, logMFTSlot, uint16(n*1024%4096/512), uint64(vcn), redo, uint64(mft+vcn))
}

// OnCluster is an operation on a cluster of a file that no test names.
func OnCluster(op uint16, lcn int64) []byte {
	return logged(op, logAnySlot, 0, 0, make([]byte, 8), uint64(lcn))
}

// checkpoint writes a checkpoint with the data of $MFT and of another file as open attributes.
func (l *LogFile) checkpoint() {
	start := l.add(1, logged(0, 0, 0, 0, nil))
	table := make(forge.Bytes, 0x18+2*0x2c)
	table.U16(0, 0x2c)
	table.U16(2, 2)
	for at, record := range map[int64]uint64{logMFTSlot: 1 << 48, logAnySlot: 7<<48 | logAnyFile} {
		table.U32(at, 0xffffffff)
		table.U64(at+8, record)
		table.U32(at+0x1c, 0x80)
	}
	attributes := l.add(1, logged(0x1d, 0, 0, 0, table))
	c := make(forge.Bytes, 0x68)
	c.U64(8, start)
	c.U64(0x10, attributes)
	c.U32(0x30, uint32(len(table)))
	c.U32(0x50, 4096)
	lsn := l.add(2, c)
	for off := int64(0); off < 2*logPage; off += logPage {
		clear(l.Bytes[off:][:logPage])
		l.Text(off, "RSTR")
		for at, v := range map[int64]uint16{
			4: 0x1e, 6: 9, 0x18: 0x30, 0x1a: 1, 0x1c: 1, 0x38: 1, 0x3a: 0xffff, 0x44: 0xe0, 0x46: 0x40, 0x54: 0x30,
			0x56: 0x40,
		} {
			l.U16(off+at, v)
		}
		l.U32(off+0x10, logPage)
		l.U32(off+0x14, logPage)
		l.U64(off+0x30, lsn)
		l.U32(off+0x40, uint32(l.sequenceBits()))
		l.U64(off+0x48, uint64(len(l.Bytes)))
		l.U64(off+0x70, start)
		l.U64(off+0x78, lsn)
		l.U32(off+0x8c, 8)
		l.Text(off+0x90, "N\x00T\x00F\x00S\x00")
	}
}

// Sealed is the log with the fix-ups of its pages.
func (l *LogFile) Sealed() []byte {
	for _, off := range []int64{0, logPage, logRecords} {
		page := l.Bytes[off:][:logPage]
		at := int64(binary.LittleEndian.Uint16(page[4:]))
		page.U16(at, 5)
		for i := int64(1); i < 9; i++ {
			page.Put(at+2*i, page[i*512-2:i*512])
			page.U16(i*512-2, 5)
		}
	}
	return l.Bytes
}
