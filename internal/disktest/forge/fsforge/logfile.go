package fsforge

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/trueup/trueup/internal/disktest/forge"
)

// Log is an open $LogFile, which is written record by record, like LFS does. Spec: ntfs-3g,
// include/ntfs-3g/logfile.h; Linux, fs/ntfs3/fslog.c.
type Log struct {
	forge.Bytes
	Major  uint16           // of the version: 1.1 or 2.0
	At     int64            // place of the next record
	Round  uint64           // in the ring of pages
	Last   uint64           // LSN of the last record
	Copied map[int64][]byte // copies of pages, by the page that holds them
	begun  map[int64]uint64 // round of each page
}

const (
	logPage    = 4096
	logData    = 0x40 // place of the records in a page
	logLast    = 0x08 // LSN of the last record of a page; in a copy of version 1.1 the place of the original
	logCopyOf  = 0x3c // the place of the original in a copy of version 2.0
	logHeader  = 0x30 // size of the header of a record
	logMFTSlot = 0x18 // of the table of open attributes: the data of $MFT
	logAnySlot = logMFTSlot + 0x2c
	logAnyFile = 45 // record of the file whose data the other slot is
)

// NewLog begins a log of some bytes, in round 2 like Windows.
func NewLog(major uint16, size int64) *Log {
	l := &Log{
		Bytes: bytes.Repeat([]byte{0xff}, int(size)), Major: major, Round: 2, Copied: map[int64][]byte{},
		begun: map[int64]uint64{},
	}
	l.At = l.First()*logPage + logData
	return l
}

// First returns the number of the first page of records.
func (l *Log) First() int64 {
	if l.Major == 1 {
		return 4
	}
	return 34
}

// Offset returns the number of bits of an LSN that are the place of its record.
func (l *Log) Offset() uint { return 64 - uint(67-bits.Len64(uint64(len(l.Bytes)))) }

func (l *Log) follow(n int64) int64 {
	if n+1 < int64(len(l.Bytes))/logPage {
		return n + 1
	}
	l.Round++
	return l.First()
}

// Append writes a record of a kind, 1 of NTFS or 2 of a checkpoint, and returns its LSN.
func (l *Log) Append(kind, tx uint32, flags uint16, undoNext uint64, data []byte) uint64 {
	lsn := l.Round<<l.Offset() | uint64(l.At)/8
	head := make(forge.Bytes, logHeader)
	head.U64(0, lsn)
	head.U64(8, l.Last)
	head.U64(0x10, undoNext)
	head.U32(0x18, uint32(len(data)))
	head.U32(0x20, kind)
	head.U32(0x24, tx)
	head.U16(0x28, flags)
	rest := slices.Concat(head, data)
	n, from := l.At/logPage, l.At%logPage
	for {
		p := l.Bytes[n*logPage : (n+1)*logPage]
		if l.begun[n] != l.Round { // a new page in this round
			l.begun[n] = l.Round
			clear(p)
			p.Text(0, "RCRD")
			p.U16(4, 0x28)
			p.U16(6, 9)
		}
		part := copy(p[from:], rest)
		rest, from = rest[part:], from+int64(part)
		p.U64(logLast, lsn)
		if len(rest) == 0 {
			p.U64(0x20, lsn) // of the last record that ends in the page
			p.U32(0x10, 1)
			break
		}
		n, from = l.follow(n), logData
	}
	if from = (from + 7) / 8 * 8; logPage-from < logHeader {
		n, from = l.follow(n), logData
	}
	l.At, l.Last = n*logPage+from, lsn
	return lsn
}

// NextPage leaves the rest of a page empty, like Windows when it flushes the page.
func (l *Log) NextPage() { l.At = l.follow(l.At/logPage)*logPage + logData }

// CopyPage moves a page into one of the pages for copies, and replaces it by an older state.
func (l *Log) CopyPage(n, to int64, older []byte) {
	page := l.Bytes[n*logPage : (n+1)*logPage]
	c := forge.Bytes(bytes.Clone(page))
	if l.Major == 1 {
		c.U64(logLast, uint64(n*logPage))
	} else {
		c.U32(logCopyOf, uint32(n*logPage))
	}
	l.Copied[to] = c
	copy(page, older)
}

// Restart writes both restart pages.
func (l *Log) Restart(current, restart, oldest uint64, flags uint16) {
	for off := int64(0); off < 2*logPage; off += logPage {
		p := l.Bytes[off : off+logPage]
		clear(p)
		p.Text(0, "RSTR")
		p.U16(4, 0x1e)
		p.U16(6, 9)
		p.U32(0x10, logPage)
		p.U32(0x14, logPage)
		p.U16(0x18, 0x30)
		p.U16(0x1a, l.Major%2) // minor: 1.1 and 2.0
		p.U16(0x1c, l.Major)
		a := p[0x30:]
		a.U64(0, current)
		a.U16(8, 1)
		a.U16(0x0a, 0xffff) // no client
		a.U16(0x0e, flags)
		a.U32(0x10, 64-uint32(l.Offset()))
		a.U16(0x14, 0xe0)
		a.U16(0x16, 0x40)
		a.U64(0x18, uint64(len(l.Bytes)))
		a.U16(0x24, logHeader)
		a.U16(0x26, logData)
		c := a[0x40:]
		c.U64(0, oldest)
		c.U64(8, restart)
		c.U32(0x1c, 8)
		c.Text(0x20, "N\x00T\x00F\x00S\x00")
	}
}

// Sealed returns the log as it is on a disk, with the copies of pages and with fix-ups.
func (l *Log) Sealed() []byte {
	log := bytes.Clone(l.Bytes)
	for n, c := range l.Copied {
		copy(log[n*logPage:], c)
	}
	SealLog(log)
	return log
}

// SealLog applies the fix-ups of the pages that have any.
func SealLog(log []byte) {
	for off := 0; off+logPage <= len(log); off += logPage {
		p := forge.Bytes(log[off : off+logPage])
		at, n := int64(binary.LittleEndian.Uint16(p[4:])), binary.LittleEndian.Uint16(p[6:])
		if n != 9 || at+2*9 > 512-2 {
			continue
		}
		p.U16(at, 5)
		for i := int64(1); i < 9; i++ {
			p.Put(at+2*i, p[i*512-2:i*512])
			p.U16(i*512-2, 5)
		}
	}
}

// LogFile is the log of a Windows XP after a checkpoint.
type LogFile struct{ *Log }

// NewLogFile begins a log of some bytes with a checkpoint.
func NewLogFile(size int64) *LogFile {
	l := &LogFile{NewLog(1, size)}
	l.checkpoint()
	return l
}

// Add writes a record of NTFS.
func (l *LogFile) Add(record []byte) { l.add(record) }

func (l *LogFile) add(record []byte) uint64 { return l.Append(1, 0x40, 0, 0, record) }

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
	start := l.add(logged(0, 0, 0, 0, nil))
	table := make(forge.Bytes, 0x18+2*0x2c)
	table.U16(0, 0x2c)
	table.U16(2, 2)
	for at, record := range map[int64]uint64{logMFTSlot: 1 << 48, logAnySlot: 7<<48 | logAnyFile} {
		table.U32(at, 0xffffffff)
		table.U64(at+8, record)
		table.U32(at+0x1c, 0x80)
	}
	attributes := l.add(logged(0x1d, 0, 0, 0, table))
	c := make(forge.Bytes, 0x68)
	c.U64(8, start)
	c.U64(0x10, attributes)
	c.U32(0x30, uint32(len(table)))
	c.U32(0x50, 4096)
	lsn := l.Append(2, 0, 0, 0, c)
	l.Restart(lsn, lsn, start, 0)
}
