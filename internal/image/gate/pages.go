package gate

import (
	"sync"
	"sync/atomic"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

const (
	// pageBytes is the unit in which a file is read whose reads are counted: what a file system reads at least, in
	// bytes.
	pageBytes = 4 << 10
	// maxRun is the largest read that goes through the pages, in bytes: what is larger is data, or a table that is read
	// once.
	maxRun = 32 << 10
	// maxPages is how many pages are kept, 1 MiB of them.
	maxPages = 256
)

// pageCache keeps the pages of an image's files that were read lately. An inspection rereads the same few sectors: for
// the format, the table, the volumes and the boot chain. Safe for concurrent use.
type pageCache struct {
	mu    sync.Mutex
	pages map[pageKey][]byte
}

// pageKey identifies a page. An image and the package around it open one file twice.
type pageKey struct {
	file   sys.ID
	number int64
}

func newPageCache() *pageCache { return &pageCache{pages: map[pageKey][]byte{}} }

// read fills p from off of f. ok is false if the file itself must be read: for a large read, one that leaves the file,
// or one that fails.
func (c *pageCache) read(f *File, p []byte, off int64) (ok bool) {
	end := off + int64(len(p))
	if c == nil || len(p) == 0 || len(p) > maxRun || off < 0 || end > f.Info.Size {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	first, last := off/pageBytes, (end-1)/pageBytes
	if !c.fill(f, first, last) {
		return false
	}
	for n := first; n <= last; n++ {
		from := max(0, off-n*pageBytes)
		copy(p[n*pageBytes+from-off:], c.pages[f.page(n)][from:])
	}
	return true
}

// fill reads the missing ones among some pages, adjacent ones at once.
func (c *pageCache) fill(f *File, first, last int64) bool {
	if len(c.pages)+int(last-first) >= maxPages {
		clear(c.pages)
	}
	for n := first; n <= last; n++ {
		if c.pages[f.page(n)] != nil {
			continue
		}
		until := n + 1
		for until <= last && c.pages[f.page(until)] == nil {
			until++
		}
		b := make([]byte, min(until*pageBytes, f.Info.Size)-n*pageBytes)
		if _, err := f.readAt(b, n*pageBytes); err != nil {
			return false // a sector beside those that are wanted can be the one that is damaged
		}
		for ; n < until; n++ {
			c.pages[f.page(n)], b = b[:min(pageBytes, len(b))], b[min(pageBytes, len(b)):]
		}
	}
	return true
}

// page identifies page n of the file.
func (f *File) page(n int64) pageKey { return pageKey{f.Info.ID, n} }

// Meter counts what is read from the files of one image, in bytes, and limits it. Files that have one are read in whole
// pages, each of which is read once as long as it is remembered. The zero value only counts. Safe for concurrent use.
type Meter struct {
	asked ondisk.Budget
	read  atomic.Int64
}

// NewMeter ends reading where more than limit is asked for.
func NewMeter(limit int64) *Meter {
	return &Meter{asked: ondisk.Budget{What: "reading", Unit: "bytes for one image", Limit: limit}}
}

// Read returns how much was read. It is less than what was asked for where that was known already.
func (m *Meter) Read() int64 {
	if m == nil {
		return 0
	}
	return m.read.Load()
}

// ask spends n bytes of the limit.
func (m *Meter) ask(n int) error {
	if m == nil {
		return nil
	}
	return m.asked.Spend(int64(n))
}

// count counts a read that is about to happen.
func (m *Meter) count(n int) {
	if m != nil {
		m.read.Add(int64(n))
	}
}
