package ntfs

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/ondisk"
)

// Fields of a record page. Spec: ntfs-3g logfile.h, RECORD_PAGE_HEADER; libfsntfs, "Record page header".
const (
	pageLast     = 0x08 // LSN of the last record that begins or goes on in the page; a copy of 1.1: where it belongs
	pageLastEnd  = 0x20 // LSN of the last record that ends in the page
	pageFixups   = 0x28
	pageCopyOf   = 0x3c // of a copy of 2.0: where it belongs
	pageData     = 0x40 // records begin here
	firstCopy    = 2    // page
	cachedPages  = 256
	scannedPages = 256 // that are read at once
)

// page is a valid record page with its fix-ups undone.
type page []byte

// last returns the LSN of the last record that begins or goes on in the page.
func (p page) last() uint64 { return binary.LittleEndian.Uint64(p[pageLast:]) }

// lastEnd returns the LSN of the last record that ends in the page.
func (p page) lastEnd() uint64 { return binary.LittleEndian.Uint64(p[pageLastEnd:]) }

// pages reads the record pages of a log, each in its newest copy.
type pages struct {
	src    ondisk.Source
	first  int64 // page of records
	count  int64 // pages of the log
	copies map[int64]page
	cache  [cachedPages]struct {
		number int64
		page   page
	}
	budget ondisk.Budget // bytes read
}

// load returns a page, nil when it is not a valid record page.
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

// valid undoes the fix-ups of a record page; nil when it is not one, or torn.
func valid(raw []byte) page {
	if string(raw[:4]) != "RCRD" || !UndoFixups(raw, pageFixups) {
		return nil
	}
	return raw
}

// takeCopies finds the pages whose newest state stands in a copy: Windows writes a page that is not full there first.
// Spec: Linux fs/ntfs3/fslog.c, last_log_lsn; dfir_ntfs LogFile.py, "fast pages".
func (p *pages) takeCopies(major uint16) error {
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
		tails = tails[max(0, len(tails)-1):] // the other is the state before
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

// newer returns the first valid page in which a record ends that is newer than an LSN, and that record's LSN; 0 if
// there is none.
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
