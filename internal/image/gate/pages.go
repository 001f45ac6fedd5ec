package gate

import (
	"sync"

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
