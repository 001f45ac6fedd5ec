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

	restartFixups = 0x1e // where the fix-ups of a restart page begin, at the least
	chkdskMagic   = "CHKD"
	clientName    = "N\x00T\x00F\x00S\x00"
)

// restartHead is what both restart pages begin with. Spec: ntfs-3g logfile.h, RESTART_PAGE_HEADER.
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

// restartArea is what AreaOffset leads to. Spec: ntfs-3g logfile.h, RESTART_AREA.
type restartArea struct {
	CurrentLSN   uint64
	Clients      uint16
	FreeList     uint16
	InUseList    uint16 // index of a client, 0xffff: none
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
	at     int64 // of the restart area, in the log
}

// blank reports whether a log is new: both restart pages are 0xff all over.
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

// newest returns the restart page with the higher LSN: Windows writes them in turn, and a torn one does not count.
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

// readRestart reads a restart page, nil if there is no valid one.
func readRestart(src ondisk.Source, off int64) (*restartPage, error) {
	if src.Size() < off+pageSize {
		return nil, nil
	}
	raw, err := ondisk.Bytes(src, off, pageSize)
	if err != nil {
		return nil, err
	}
	p := &restartPage{}
	if err := ondisk.Fill(raw[:binary.Size(p.restartHead)], binary.LittleEndian, &p.restartHead); err != nil {
		return nil, err
	}
	if magic := string(p.Magic[:]); magic != "RSTR" && magic != chkdskMagic {
		return nil, nil
	}
	if p.SystemPage != pageSize || p.LogPage != pageSize {
		return nil, ondisk.In(ondisk.ErrUnsupported, "$LogFile with pages of %d and %d bytes is not "+
			"supported, only 4096",
			p.SystemPage, p.LogPage)
	}
	if !UndoFixups(raw, restartFixups) {
		return nil, nil // torn
	}
	return p, p.decode(raw, off)
}

// decode reads the restart area and the client that is in use.
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
	if err := ondisk.Fill(raw[start:start+binary.Size(p.area)], binary.LittleEndian, &p.area); err != nil {
		return err
	}
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
	if err := ondisk.Fill(raw[at:at+binary.Size(p.client)], binary.LittleEndian, &p.client); err != nil {
		return err
	}
	if string(p.client.Name[:]) != clientName || int(p.client.NameLength) != len(clientName) {
		return bad(at+0x20, "client name", p.client.Name[:], "NTFS")
	}
	return nil
}

// lsn returns what the newer page has more of.
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

// check holds the area to what a reader of records relies on. size is that of the log in bytes.
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

// firstPage returns the page that the oldest round of records began with: copies of pages stand in front.
func (p *restartPage) firstPage() int64 {
	if p.Major == 1 {
		return 4
	}
	return 34
}
