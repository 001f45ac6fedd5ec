package ntfs

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/trueup/trueup/internal/ondisk"
)

const (
	pageSize    = 4096
	noClient    = 0xffff
	markedClean = 2 // flag of the restart area

	restartFixups = 0x1e // lowest offset of the fix-ups in a restart page
	chkdskMagic   = "CHKD"
	clientName    = "N\x00T\x00F\x00S\x00"
)

// restartHead begins both restart pages. Spec: ntfs-3g logfile.h, RESTART_PAGE_HEADER.
type restartHead struct {
	Magic      [4]byte // "RSTR", or "CHKD" when chkdsk made it
	USAOffset  uint16
	USACount   uint16
	ChkdskLSN  uint64 // valid with "CHKD"
	SystemPage uint32 // bytes
	LogPage    uint32
	AreaOffset uint16
	Minor      uint16
	Major      uint16
	_          [2]byte
}

// restartArea lies at AreaOffset. Spec: ntfs-3g logfile.h, RESTART_AREA.
type restartArea struct {
	CurrentLSN   uint64
	Clients      uint16
	FreeList     uint16
	InUseList    uint16 // index of a client, 0xffff without one
	Flags        uint16
	SequenceBits uint32
	Length       uint16
	ClientOffset uint16
	FileSize     uint64
	LastLength   uint32 // bytes of data of the current LSN
	RecordHeader uint16 // bytes
	PageData     uint16 // offset of records in their page
}

// logClient is a record of the client array. Spec: ntfs-3g logfile.h, LOG_CLIENT_RECORD.
type logClient struct {
	OldestLSN  uint64
	RestartLSN uint64
	Previous   uint16
	Next       uint16
	Sequence   uint16
	_          [6]byte
	NameLength uint32
	Name       [8]byte // 64 characters at most; "NTFS" has four
}

// restartPage is a valid restart page.
type restartPage struct {
	restartHead
	area   restartArea
	client logClient
	at     int64 // offset of the restart area in the log
}

// blank reports whether a log is new: all bytes of both restart pages are 0xff.
func blank(src ondisk.Source) (bool, error) {
	b, err := ondisk.Bytes(src, 0, min(src.Size(), 2*pageSize))
	if err != nil {
		return false, err
	}
	for _, c := range b {
		if c != 0xff {
			return false, nil
		}
	}
	return len(b) > 0, nil
}

// newest returns the valid restart page with the higher LSN. Windows writes the two pages in turn, and one may be torn.
func newest(src ondisk.Source) (*restartPage, error) {
	var valid []*restartPage
	for off := int64(0); off < 2*pageSize; off += pageSize {
		p, err := readRestart(src, off)
		if err != nil {
			return nil, err
		}
		if p != nil {
			valid = append(valid, p)
		}
	}
	switch len(valid) {
	case 0:
		return nil, ondisk.Field("$LogFile", "restart pages", 0, "none valid", "RSTR or CHKD with intact fix-ups")
	case 1:
		return valid[0], nil
	}
	a, b := valid[0], valid[1]
	if a.lsn() < b.lsn() {
		a, b = b, a
	}
	if a.Magic != b.Magic || a.Major != b.Major || a.Minor != b.Minor {
		return nil, ondisk.Field("$LogFile restart page", "version", a.at, a.version(),
			b.version()+" as in the other restart page")
	}
	if a.lsn() == b.lsn() && (a.state() != b.state() || a.client != b.client) {
		return nil, ondisk.Field("$LogFile restart page", "area", a.at, a.state(),
			fmt.Sprintf("%s as in the other page of LSN %d", b.state(), b.lsn()))
	}
	return a, nil
}

// readRestart reads a restart page. It returns nil if the page is torn or absent.
func readRestart(src ondisk.Source, off int64) (*restartPage, error) {
	if src.Size() < off+pageSize {
		return nil, nil
	}
	raw, err := ondisk.Bytes(src, off, pageSize)
	if err != nil {
		return nil, err
	}
	p := &restartPage{}
	ondisk.Fill(raw[:binary.Size(p.restartHead)], binary.LittleEndian, &p.restartHead)
	if magic := string(p.Magic[:]); magic != "RSTR" && magic != chkdskMagic {
		return nil, nil
	}
	if p.SystemPage != pageSize || p.LogPage != pageSize {
		return nil, ondisk.In(ondisk.ErrUnsupported, "$LogFile with pages of %d and %d bytes is not "+
			"supported, only 4096", p.SystemPage, p.LogPage)
	}
	if !UndoFixups(raw, restartFixups) {
		return nil, nil // torn
	}
	return p, p.decode(raw, off)
}

// decode decodes the restart area and its client.
func (p *restartPage) decode(raw []byte, off int64) error {
	start := int(p.AreaOffset)
	p.at = off + int64(start)
	bad := func(at int, field string, got, want any) error {
		return ondisk.Field("$LogFile restart page", field, off+int64(at), got, want)
	}
	if start < binary.Size(p.restartHead) || start+binary.Size(p.area) > len(raw) {
		return bad(0x18, "offset of restart area", start, fmt.Sprintf("%d to %d", binary.Size(p.restartHead),
			len(raw)-binary.Size(p.area)))
	}
	ondisk.Fill(raw[start:start+binary.Size(p.area)], binary.LittleEndian, &p.area)
	if p.area.InUseList == noClient {
		return nil
	}
	if p.area.Clients != 1 || p.area.InUseList != 0 {
		return bad(start+8, "clients", fmt.Sprintf("%d, the first of them %d", p.area.Clients, p.area.InUseList),
			"1, 0")
	}
	at := start + int(p.area.ClientOffset)
	if at+binary.Size(p.client) > len(raw) {
		return bad(start+0x16, "offset of clients", p.area.ClientOffset, "one within the page")
	}
	ondisk.Fill(raw[at:at+binary.Size(p.client)], binary.LittleEndian, &p.client)
	if string(p.client.Name[:]) != clientName || int(p.client.NameLength) != len(clientName) {
		return bad(at+0x20, "client name", p.client.Name[:], "NTFS")
	}
	return nil
}

// lsn returns the LSN that orders the two pages.
func (p *restartPage) lsn() uint64 {
	if string(p.Magic[:]) == chkdskMagic {
		return p.ChkdskLSN
	}
	return p.area.CurrentLSN
}

func (p *restartPage) version() string { return fmt.Sprintf("%s %d.%d", p.Magic[:], p.Major, p.Minor) }

func (p *restartPage) state() State {
	switch {
	case string(p.Magic[:]) == chkdskMagic:
		return Checked
	case p.area.InUseList == noClient:
		return Closed
	case p.area.Flags&markedClean != 0:
		return Clean
	}
	return OpenLog
}

// check returns an error if a reader of records cannot rely on the restart area. size is the size of the log in bytes.
func (p *restartPage) check(size int64) error {
	a := &p.area
	bad := func(at int64, field string, got, want any) error {
		return ondisk.Field("$LogFile restart area", field, p.at+at, got, want)
	}
	c := &p.client
	switch {
	case p.Major<<8|p.Minor != 0x101 && p.Major<<8|p.Minor != 0x200:
		return ondisk.In(ondisk.ErrUnsupported, "$LogFile of version %d.%d is not supported, only 1.1 and 2.0 are",
			p.Major, p.Minor)
	case a.RecordHeader != headerSize || a.PageData != pageData:
		return ondisk.In(ondisk.ErrUnsupported, "$LogFile with headers of %d bytes and records from byte %d of a "+
			"page is not supported, only %d and %d", a.RecordHeader, a.PageData, headerSize, pageData)
	case a.FileSize > ondisk.U64(size):
		return bad(0x18, "file size", a.FileSize, fmt.Sprintf("at most the %d bytes of the file", size))
	case a.FileSize%pageSize != 0 || a.FileSize < pageSize*ondisk.U64(p.firstPage()+1):
		return bad(0x18, "file size", a.FileSize, "a multiple of 4096, with pages of records")
	case int(a.SequenceBits) != 67-bits.Len64(a.FileSize):
		return bad(0x10, "sequence bits", a.SequenceBits, 67-bits.Len64(a.FileSize))
	case c.RestartLSN > a.CurrentLSN || c.OldestLSN > c.RestartLSN:
		return bad(0, "LSNs", fmt.Sprintf("oldest %d, restart %d, current %d", c.OldestLSN, c.RestartLSN, a.CurrentLSN),
			"each at most the next")
	}
	return nil
}

// firstPage returns the number of the first page of records; page copies precede it.
func (p *restartPage) firstPage() int64 {
	if p.Major == 1 {
		return 4
	}
	return 34
}

// clientData is the restart record of NTFS at the end of a checkpoint. Spec: Linux fs/ntfs3/fslog.c, NTFS_RESTART;
// dfir_ntfs LogFile.py, NTFSRestartArea. Since Windows Vista another LSN follows.
type clientData struct {
	Major, Minor uint32
	Start        uint64 // LSN in front of the first record that the checkpoint does not cover
	Attributes   uint64 // LSN of a table, as the next three
	Names        uint64
	DirtyPages   uint64
	Transactions uint64

	AttributesLength   uint32 // bytes, as the next three
	NamesLength        uint32
	DirtyPagesLength   uint32
	TransactionsLength uint32

	_            [16]byte // place in the change journal, last LSN
	ClusterBytes uint32
	_            [20]byte
}

const (
	fileNumber  = 1<<48 - 1  // bits of a reference that hold the record number
	liveEntry   = 0xffffffff // first field of an entry of a table
	tableHeader = 0x18
	active      = 1 // state of a transaction
)

// readClient decodes the restart record of NTFS.
func readClient(r *logRecord) (*clientData, error) {
	c := &clientData{}
	size := binary.Size(c)
	if r.Type != clientRestart {
		return nil, r.broken(0x20-headerSize, "type", r.Type, "2, as the restart area says")
	}
	if len(r.data) < size {
		return nil, r.broken(0x18-headerSize, "data length", len(r.data), fmt.Sprintf("%d at least", size))
	}
	ondisk.Fill(r.data[:size], binary.LittleEndian, c)
	if c.Major > 1 {
		return nil, ondisk.In(ondisk.ErrUnsupported, "$LogFile with NTFS records of version %d.%d is not supported, "+
			"only 0 and 1 are", c.Major, c.Minor)
	}
	return c, nil
}

// table is the dump of an NTFS restart table. Spec: Linux fs/ntfs3/fslog.c, struct RESTART_TABLE.
type table struct {
	entrySize int
	used      int // entries, live or not
	entries   []byte
}

// readTable decodes the table dump of a record. length is its size in bytes, from the checkpoint. least is the minimum
// size of an entry in bytes.
func readTable(r *logRecord, op Op, length uint32, least int) (*table, error) {
	if r.Type != ordinary {
		return nil, r.broken(0x20-headerSize, "type", r.Type, "1, a dump")
	}
	a, err := decodeAction(r)
	if err != nil {
		return nil, err
	}
	if a.Redo != op || a.Flags&noRedoData != 0 {
		return nil, r.broken(0, "operation", a.Redo, op)
	}
	from := int(a.RedoOffset) // RedoLength has only 16 bits
	if from+tableHeader > len(r.data) || int64(length) < tableHeader || int64(length) > int64(len(r.data)-from) {
		return nil, r.broken(4, "table", fmt.Sprintf("%d bytes at %d", length, from),
			fmt.Sprintf("%d at least, within %d", tableHeader, len(r.data)))
	}
	b := r.data[from : from+int(length)]
	t := &table{
		entrySize: int(binary.LittleEndian.Uint16(b)), used: int(binary.LittleEndian.Uint16(b[2:])),
		entries: b[tableHeader:],
	}
	if t.entrySize < least || t.used*t.entrySize > len(t.entries) {
		return nil, r.broken(int64(from), "entries of the table", fmt.Sprintf("%d of %d bytes", t.used, t.entrySize),
			fmt.Sprintf("of %d at least, within %d bytes", least, len(t.entries)))
	}
	return t, nil
}

// live visits the entries in use. An entry's index is its offset in the table.
func (t *table) live(visit func(index int, entry []byte) error) error {
	for i := range t.used {
		e := t.entries[i*t.entrySize : (i+1)*t.entrySize]
		if binary.LittleEndian.Uint32(e) != liveEntry {
			continue
		}
		if err := visit(tableHeader+i*t.entrySize, e); err != nil {
			return err
		}
	}
	return nil
}

// layouts holds the layouts of table entries, by the major version of the client. Spec: dfir_ntfs LogFile.py; Linux
// fs/ntfs3/fslog.c, struct OPEN_ATTR_ENRTY_32, OPEN_ATTR_ENRTY, DIR_PAGE_ENTRY_32, DIR_PAGE_ENTRY.
var layouts = [...]struct {
	attribute, attrFile, attrType int // entry size and field offsets, in bytes
	dirtyPage, oldest             int
}{
	{0x2c, 0x08, 0x1c, 0x24, 0x1c},
	{0x28, 0x10, 0x08, 0x20, 0x18},
}

const (
	transactionSize     = 0x28
	transactionState    = 0x04
	transactionFirst    = 0x08
	transactionUndoNext = 0x18
)

// Target is an attribute that log records refer to.
type Target struct {
	File int64  // base record of the MFT
	Type uint32 // of the attribute
}

// $MFT's own attributes.
const (
	typeData   = 0x80
	typeBitmap = 0xb0
)

// target decodes an entry of the table of open attributes.
func target(major uint32, e []byte) Target {
	l := &layouts[major]
	return Target{
		File: ondisk.I64(binary.LittleEndian.Uint64(e[l.attrFile:]) & fileNumber),
		Type: binary.LittleEndian.Uint32(e[l.attrType:]),
	}
}
