package ntfs

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/trueup/trueup/internal/ondisk"
)

const (
	headerSize = 0x30 // of a record
	lsnUnit    = 8    // bytes that an LSN counts

	ordinary      = 1 // types of records
	clientRestart = 2
)

// recordHeader is what a record begins with. Spec: ntfs-3g logfile.h; Linux fs/ntfs3/fslog.c, LFS_RECORD_HDR.
type recordHeader struct {
	LSN            uint64
	Previous       uint64
	UndoNext       uint64 // where an undo of the transaction goes on
	Length         uint32 // bytes of data
	ClientSequence uint16
	ClientIndex    uint16
	Type           uint32
	Transaction    uint32
	Flags          uint16
	_              [6]byte
}

// record is a record with its data, whatever pages they lie in.
type logRecord struct {
	recordHeader
	data []byte
	at   int64  // in the log
	next uint64 // LSN of the record that follows, if there is one
}

// broken returns the error of a field of the data.
func (r *logRecord) broken(off int64, field string, got, want any) error {
	return ondisk.Field(fmt.Sprintf("$LogFile page %d, record of LSN %d", r.at/pageSize, r.LSN), field,
		r.at+headerSize+off, got, want)
}

// gap is the error of a record that is not there. Behind the newest checkpoint it is the end of the log.
type gap struct {
	error
	page int64 // that lacks it
}

func (g *gap) Unwrap() error { return g.error }

// reader finds records by their LSN.
type reader struct {
	pages
	page   *restartPage
	offset uint  // bits of an LSN that are an offset; the rest counts the rounds through the log
	ended  int64 // page that lacks the record behind the last one
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
	return r, r.takeCopies(p.Major)
}

// place returns where in the log the record of an LSN begins.
func (r *reader) place(lsn uint64) int64 {
	return ondisk.I64(lsn&(1<<r.offset-1)) * lsnUnit
}

// lsn returns the LSN of a place in a round.
func (r *reader) lsn(round uint64, at int64) uint64 { return round<<r.offset | ondisk.U64(at)/lsnUnit }

// record reads the record of an LSN: a *gap when there is none.
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
	if err := ondisk.Fill(p[off:off+headerSize], binary.LittleEndian, &rec.recordHeader); err != nil {
		return nil, err
	}
	if rec.LSN != lsn {
		return nil, missing(n, "LSN", rec.LSN, lsn)
	}
	if err := r.check(rec); err != nil {
		return nil, err
	}
	return rec, r.body(rec, p, missing)
}

// check holds the header of a record to what a client can write.
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

// body collects the data of a record that begins in page p, and finds where the next one begins.
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

// follow returns the page behind another, and its round.
func (r *reader) follow(n int64, round uint64) (next int64, in uint64) {
	if n+1 < r.count {
		return n + 1, round
	}
	return r.first, round + 1
}

// each visits the record of an LSN and all that follow it. The log ends where a record is missing, which must be
// behind its current LSN. It returns the last record's LSN.
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
