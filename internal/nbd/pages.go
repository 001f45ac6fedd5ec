package nbd

import (
	"io"
	"sync"
)

const (
	pageBytes = 64 << 10 // of one request; larger reads are not kept
	maxPages  = 64       // 4 MiB
)

// pages keeps what small reads have asked for, with what lies around it. Each request to a server has to wait for it,
// and an inspection reads few sectors at few places, several times. Safe for concurrent use.
type pages struct {
	of   io.ReaderAt
	size int64

	mu    sync.Mutex
	kept  map[int64][]byte // by number
	round int              // how often all was forgotten: what was asked for before is not kept
}

// ReadAt follows the contract of io.ReaderAt.
func (c *pages) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 || off >= c.size || len(p) >= pageBytes {
		return c.of.ReadAt(p, off)
	}
	if int64(len(p)) > c.size-off {
		p, err = p[:c.size-off], io.EOF
	}
	for n < len(p) {
		at := off + int64(n)
		page, bad := c.page(at / pageBytes)
		if bad != nil {
			return n, bad
		}
		n += copy(p[n:], page[at%pageBytes:])
	}
	return n, err
}

// page returns a page, which is read if it is not known.
func (c *pages) page(number int64) ([]byte, error) {
	c.mu.Lock()
	page, round := c.kept[number], c.round
	c.mu.Unlock()
	if page != nil {
		return page, nil
	}
	page = make([]byte, min(pageBytes, c.size-number*pageBytes))
	if n, err := c.of.ReadAt(page, number*pageBytes); n < len(page) {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept == nil || len(c.kept) >= maxPages {
		c.kept = map[int64][]byte{}
	}
	if c.round == round {
		c.kept[number] = page
	}
	return page, nil
}

// forget drops all pages.
func (c *pages) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept = nil
	c.round++
}
