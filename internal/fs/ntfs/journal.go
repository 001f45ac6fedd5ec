// This part of the package reads the log of an NTFS volume ($LogFile), and reports which bytes its replay may write.
//
// It answers one question: would a replay of an open log by Windows change patched bytes of the volume? It replays
// nothing. Where the log is ambiguous, it assumes a write. It refuses a log with unknown structures.
//
// The facts come from the sources below, and were checked against logs written by Windows. Spec:
// https://github.com/msuhanov/dfir_ntfs, dfir_ntfs/LogFile.py; ntfs-3g, include/ntfs-3g/logfile.h; Linux,
// fs/ntfs3/fslog.c; libfsntfs, "New Technologies File System (NTFS)", "Metadata transaction journal".

package ntfs

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/ondisk"
)

// Limits of a log. A log beyond them is refused with ErrLimit.
const (
	maxLog       = 256 << 20 // bytes of a log; Windows creates 64 MiB at most by default
	maxLogRecord = 4 << 20   // bytes of one record: tables of open attributes and dirty pages are the largest
	maxWrites    = 1 << 17   // writes of a replay; Windows writes a checkpoint every five seconds
	maxPlaces    = 1 << 20   // volume ranges of these writes
	maxOwners    = 1 << 8    // owners of an MFT record, and attributes of one index, during a replay
	maxSteps     = 1 << 23   // records read, repeats included
	maxRead      = 1 << 30   // bytes of pages and of records
)

// State is the state in which a log was left.
type State int

// States of a log.
const (
	Empty   State = iota // new: filled with 0xff
	Checked              // chkdsk wrote it; Windows resets it
	Closed               // no client: shut down by Windows 2000 or earlier
	Clean                // in use, and marked clean: shut down by Windows XP or later, or a shadow copy
	OpenLog              // the volume was in use
)

func (s State) String() string {
	return [...]string{"empty", "reset by chkdsk", "closed", "clean", "open"}[s]
}

// LogVolume is the volume of a log.
type LogVolume struct {
	ondisk.Source       // the volume itself: index blocks hold the LSN of their last change
	Cluster       int64 // bytes
	Record        int64 // bytes of a record of the MFT

	// MFT returns an MFT record with its fix-ups undone, in use or not. It returns nil if the record is not valid.
	MFT func(number int64) ([]byte, error)
}

// Log is the state of a log, and the writes that a replay may make.
type Log struct {
	State        State
	Major, Minor uint16  // version of the log itself: 1.1, or 2.0 while Windows 8 and later have it mounted
	Current      uint64  // LSN of the newest checkpoint
	Since        uint64  // LSN of the first record of the redo pass, 0 without records to redo
	End          uint64  // LSN of the last record
	Writes       []Write // in the order of a replay
}

// Read reads the log src of volume v. It returns a FormatError if the log is broken before its newest checkpoint,
// ErrUnsupported for an unknown version or page size, and ErrLimit if the log exceeds the logs of any Windows.
func Read(src ondisk.Source, v LogVolume) (*Log, error) {
	if src.Size() > maxLog {
		return nil, fmt.Errorf("$LogFile of %d bytes: %w of %d bytes", src.Size(), ondisk.ErrLimit, maxLog)
	}
	blank, err := blank(src)
	if err != nil {
		return nil, err
	}
	if blank {
		return &Log{State: Empty}, nil
	}
	page, err := newest(src)
	if err != nil {
		return nil, err
	}
	l := &Log{State: page.state(), Major: page.Major, Minor: page.Minor, Current: page.area.CurrentLSN}
	if l.State == Checked || l.State == Closed {
		return l, nil
	}
	r, err := newReader(src, page)
	if err == nil {
		a := analysis{reader: r, volume: v, slots: map[int][]Target{}, transactions: map[uint32]*transaction{}}
		err = a.run(l)
	}
	if err != nil {
		if l.State == Clean && ondisk.Understood(err) {
			return &Log{State: Clean, Major: page.Major, Minor: page.Minor}, nil // Linux and ntfs-3g trust the flag
		}
		return nil, err
	}
	if l.State == Clean && len(l.Writes) > 0 {
		return nil, ondisk.Field("$LogFile restart area", "flags", page.at, "clean",
			fmt.Sprintf("no mark with %d writes pending from LSN %d on", len(l.Writes), l.Writes[0].LSN))
	}
	return l, nil
}

// ReadState returns the state of a log from its restart pages alone.
func ReadState(src ondisk.Source) (State, error) {
	if blank, err := blank(src); err != nil || blank {
		return Empty, err
	}
	page, err := newest(src)
	if err != nil {
		return Empty, err
	}
	return page.state(), nil
}

const (
	headerSize = 0x30 // of a record
	lsnUnit    = 8    // bytes per unit of an LSN

	ordinary      = 1 // types of records
	clientRestart = 2
)

// recordHeader begins a record. Spec: ntfs-3g logfile.h; Linux fs/ntfs3/fslog.c, LFS_RECORD_HDR.
type recordHeader struct {
	LSN            uint64
	Previous       uint64
	UndoNext       uint64 // LSN of the next record to undo
	Length         uint32 // bytes of data
	ClientSequence uint16
	ClientIndex    uint16
	Type           uint32
	Transaction    uint32
	Flags          uint16
	_              [6]byte
}

// logRecord is a record with its data, joined from all its pages.
type logRecord struct {
	recordHeader
	data []byte
	at   int64  // offset in the log
	next uint64 // LSN of the next record, if it exists
}

// broken returns the error for a field at an offset of the record's data.
func (r *logRecord) broken(off int64, field string, got, want any) error {
	return ondisk.Field(fmt.Sprintf("$LogFile page %d, record of LSN %d", r.at/pageSize, r.LSN), field,
		r.at+headerSize+off, got, want)
}

// gap is the error for a missing record. Behind the newest checkpoint it marks the end of the log.
type gap struct {
	error
	page int64 // page without the record
}

func (g *gap) Unwrap() error { return g.error }

// reader finds records by their LSN.
type reader struct {
	pages
	page   *restartPage
	offset uint  // low bits of an LSN that hold the offset; the others count the rounds through the log
	ended  int64 // page without the record behind the last one
	steps  ondisk.Budget
}

func newReader(src ondisk.Source, p *restartPage) (*reader, error) {
	if err := p.check(src.Size()); err != nil {
		return nil, err
	}
	r := &reader{page: p, offset: 64 - uint(p.area.SequenceBits), pages: pages{
		src: src, first: p.firstPage(), count: ondisk.I64(p.area.FileSize / pageSize), copies: map[int64]page{},
		budget: ondisk.Budget{What: "$LogFile", Unit: "bytes read", Limit: maxRead},
	}, steps: ondisk.Budget{What: "$LogFile", Unit: "records", Limit: maxSteps}}
	return r, r.loadCopies(p.Major)
}

// place returns the offset of the record of an LSN in the log.
func (r *reader) place(lsn uint64) int64 {
	return ondisk.I64(lsn&(1<<r.offset-1)) * lsnUnit
}

// lsn returns the LSN of an offset in a round.
func (r *reader) lsn(round uint64, at int64) uint64 { return round<<r.offset | ondisk.U64(at)/lsnUnit }

// record reads the record of an LSN. It returns a *gap if the record is missing.
func (r *reader) record(lsn uint64) (*logRecord, error) {
	if err := r.steps.Spend(1); err != nil {
		return nil, err
	}
	at := r.place(lsn)
	n, off := at/pageSize, at%pageSize
	missing := func(page int64, field string, got, want any) error {
		return &gap{ondisk.Field(fmt.Sprintf("$LogFile page %d", page), field, page*pageSize, got, want), page}
	}
	if n < r.first || n >= r.count || off < pageData || off > pageSize-headerSize {
		return nil, missing(n, "place of LSN", lsn, "one in a page of records")
	}
	p, err := r.load(n)
	if err != nil {
		return nil, err
	}
	if p == nil {
		return nil, missing(n, "record page", "none valid", fmt.Sprintf("RCRD with intact fix-ups and LSN %d", lsn))
	}
	rec := &logRecord{at: at}
	ondisk.Fill(p[off:off+headerSize], binary.LittleEndian, &rec.recordHeader)
	if rec.LSN != lsn {
		return nil, missing(n, "LSN", rec.LSN, lsn)
	}
	if err := r.check(rec); err != nil {
		return nil, err
	}
	return rec, r.body(rec, p, missing)
}

// check returns an error if no client can have written the header of a record.
func (r *reader) check(rec *logRecord) error {
	switch {
	case rec.Type != ordinary && rec.Type != clientRestart:
		return rec.broken(0x20-headerSize, "type", rec.Type, "1 or 2")
	case rec.ClientIndex != 0 || rec.ClientSequence != r.page.client.Sequence:
		return rec.broken(0x1c-headerSize, "client",
			fmt.Sprintf("%d of sequence %d", rec.ClientIndex, rec.ClientSequence),
			fmt.Sprintf("0 of sequence %d", r.page.client.Sequence))
	case rec.Length > maxLogRecord:
		return fmt.Errorf("$LogFile record of LSN %d of %d bytes: %w of %d", rec.LSN, rec.Length, ondisk.ErrLimit,
			maxLogRecord)
	case int64(rec.Length) > (r.count-r.first)*(pageSize-pageData):
		return rec.broken(0x18-headerSize, "data length", rec.Length, "less than the pages of the log hold")
	}
	return nil
}

// body collects the data of a record that begins in page p, and computes the LSN of the next record.
func (r *reader) body(rec *logRecord, p page, missing func(int64, string, any, any) error) error {
	if err := r.budget.Spend(int64(rec.Length)); err != nil {
		return err
	}
	round, n, from := rec.LSN>>r.offset, rec.at/pageSize, rec.at%pageSize+headerSize
	left := int64(rec.Length)
	if from+left <= pageSize {
		rec.data = p[from : from+left]
		from, left = from+left, 0
	}
	for left > 0 {
		part := min(left, pageSize-from)
		rec.data = append(rec.data, p[from:from+part]...)
		from, left = from+part, left-part
		if left == 0 {
			break
		}
		n, round = r.follow(n, round)
		var err error
		if p, err = r.load(n); err != nil {
			return err
		}
		if p == nil || p.last() < rec.LSN {
			return missing(n, "record page", "none valid", fmt.Sprintf("RCRD with the rest of LSN %d", rec.LSN))
		}
		from = pageData
	}
	from = (from + lsnUnit - 1) / lsnUnit * lsnUnit
	if p.last() == rec.LSN || pageSize-from < headerSize {
		n, round = r.follow(n, round)
		from = pageData
	}
	rec.next = r.lsn(round, n*pageSize+from)
	return nil
}

// follow returns the page behind page n, and its round.
func (r *reader) follow(n int64, round uint64) (next int64, in uint64) {
	if n+1 < r.count {
		return n + 1, round
	}
	return r.first, round + 1
}

// each visits the record of an LSN and all later records, and returns the LSN of the last one. The log ends at the
// first missing record, which must lie behind the current LSN.
func (r *reader) each(from uint64, visit func(*logRecord) error) (last uint64, err error) {
	current := r.page.area.CurrentLSN
	for lsn := from; ; {
		rec, err := r.record(lsn)
		var g *gap
		switch {
		case errors.As(err, &g) && last >= current && last != 0:
			r.ended = g.page
			return last, nil
		case err != nil:
			return 0, err
		case from <= current && last < current && lsn > current:
			return 0, rec.broken(-headerSize, "LSN", lsn, fmt.Sprintf("the current LSN %d before it", current))
		}
		if err := visit(rec); err != nil {
			return 0, err
		}
		last, lsn = lsn, rec.next
	}
}

// Fields of a record page. Spec: ntfs-3g logfile.h, RECORD_PAGE_HEADER; libfsntfs, "Record page header".
const (
	pageLast     = 0x08 // LSN of the last record that begins or continues here; offset of the original in a copy of 1.1
	pageLastEnd  = 0x20 // LSN of the last record that ends in the page
	pageFixups   = 0x28
	pageCopyOf   = 0x3c // offset of the original in a copy of 2.0
	pageData     = 0x40 // records begin here
	firstCopy    = 2    // number of the first page that holds a copy
	cachedPages  = 256
	scannedPages = 256 // pages per read
)

// page is a valid record page with its fix-ups undone.
type page []byte

// last returns the LSN of the last record that begins or continues in the page.
func (p page) last() uint64 { return binary.LittleEndian.Uint64(p[pageLast:]) }

// lastEnd returns the LSN of the last record that ends in the page.
func (p page) lastEnd() uint64 { return binary.LittleEndian.Uint64(p[pageLastEnd:]) }

// pages reads the record pages of a log. The newest copy of a page replaces it.
type pages struct {
	src    ondisk.Source
	first  int64 // first page of records
	count  int64 // pages of the log
	copies map[int64]page
	cache  [cachedPages]struct {
		number int64
		page   page
	}
	budget ondisk.Budget // bytes read
}

// load returns a page, or nil if it is not a valid record page.
func (p *pages) load(n int64) (page, error) {
	if c, ok := p.copies[n]; ok {
		return c, nil
	}
	slot := &p.cache[n%cachedPages]
	if slot.number == n { // page 0 is never loaded
		return slot.page, nil
	}
	if err := p.budget.Spend(pageSize); err != nil {
		return nil, err
	}
	raw, err := ondisk.Bytes(p.src, n*pageSize, pageSize)
	if err != nil {
		return nil, err
	}
	slot.number, slot.page = n, valid(raw)
	return slot.page, nil
}

// valid undoes the fix-ups of a record page. It returns nil for a torn page or other data.
func valid(raw []byte) page {
	if string(raw[:4]) != "RCRD" || !UndoFixups(raw, pageFixups) {
		return nil
	}
	return raw
}

// loadCopies finds the pages whose newest state is in a copy: Windows first writes a page that is not full to a copy.
// Spec: Linux fs/ntfs3/fslog.c, last_log_lsn; dfir_ntfs LogFile.py, "fast pages".
func (p *pages) loadCopies(major uint16) error {
	type tail struct {
		page
		target int64
		lsn    uint64
	}
	var tails []tail
	for n := int64(firstCopy); n < p.first; n++ {
		c, err := p.load(n)
		if err != nil {
			return err
		}
		if c == nil {
			continue
		}
		at, lsn, field := c.last(), c.lastEnd(), int64(pageLast)
		if major > 1 {
			at, lsn, field = uint64(binary.LittleEndian.Uint32(c[pageCopyOf:])), c.last(), pageCopyOf
		}
		if at%pageSize != 0 || at/pageSize < ondisk.U64(p.first) || at/pageSize >= ondisk.U64(p.count) {
			return ondisk.Field(fmt.Sprintf("$LogFile page %d", n), "place of a copied page", n*pageSize+field,
				fmt.Sprintf("%#x", at), fmt.Sprintf("a page from %#x to %#x", p.first*pageSize, p.count*pageSize))
		}
		tails = append(tails, tail{c, ondisk.I64(at / pageSize), lsn})
	}
	slices.SortFunc(tails, func(a, b tail) int { return cmp.Compare(a.lsn, b.lsn) })
	if major == 1 {
		tails = tails[max(0, len(tails)-1):] // the other copy is the previous state
	}
	for _, c := range tails {
		old, err := p.load(c.target)
		if err != nil {
			return err
		}
		known := old != nil && (major == 1 && c.lsn <= old.lastEnd() || major > 1 && c.lsn <= old.last())
		if known {
			continue
		}
		binary.LittleEndian.PutUint64(c.page[pageLast:], c.lsn)
		p.copies[c.target] = c.page
	}
	return nil
}

// newer returns the first valid page where a record newer than an LSN ends, and the LSN of that record. It returns
// zeros if no record is newer.
func (p *pages) newer(than uint64) (n int64, lsn uint64, err error) {
	for n := int64(firstCopy); n < p.count; n += scannedPages {
		part := min(scannedPages, p.count-n)
		if err := p.budget.Spend(part * pageSize); err != nil {
			return 0, 0, err
		}
		raw, err := ondisk.Bytes(p.src, n*pageSize, part*pageSize)
		if err != nil {
			return 0, 0, err
		}
		for i := range part {
			b := raw[i*pageSize : (i+1)*pageSize]
			if lsn := page(b).lastEnd(); string(b[:4]) == "RCRD" && lsn > than && valid(b) != nil {
				return n + i, lsn, nil
			}
		}
	}
	return 0, 0, nil
}
