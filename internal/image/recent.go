package image

import (
	"sync"

	"github.com/trueup/trueup/internal/sys"
)

const (
	// pageBytes is the unit in which a file is read whose reads are counted: what a file system reads at least, in bytes.
	pageBytes = 4 << 10
	// maxRun is the largest read that goes through the pages, in bytes: what is larger is data, or a table that is read once.
	maxRun = 32 << 10
	// maxRecent is how many pages are kept, 1 MiB of them.
	maxRecent = 256
)

// recent are the pages of an image's files that were read lately. Who looks at an image without copying it reads the same sectors again
// and again: to know the format, to open it, for the table, for the volumes, for the boot chain. Safe for concurrent use.
type recent struct {
	mu    sync.Mutex
	pages map[pageKey][]byte
}

// pageKey is the place of a page. An image and the package around it open one file twice.
type pageKey struct {
	file   sys.ID
	number int64
}

func newRecent() *recent { return &recent{pages: map[pageKey][]byte{}} }

// read fills p from off of f. ok is false when that must be read in the plain way: it is too much, leaves the file, or cannot be read.
func (r *recent) read(f *file, p []byte, off int64) (ok bool) {
	end := off + int64(len(p))
	if r == nil || len(p) == 0 || len(p) > maxRun || off < 0 || end > f.stat.Size {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	first, last := off/pageBytes, (end-1)/pageBytes
	if !r.fill(f, first, last) {
		return false
	}
	for n := first; n <= last; n++ {
		from := max(0, off-n*pageBytes)
		copy(p[n*pageBytes+from-off:], r.pages[f.page(n)][from:])
	}
	return true
}

// fill reads what is missing of some pages, neighbours at once.
func (r *recent) fill(f *file, first, last int64) bool {
	if len(r.pages)+int(last-first) >= maxRecent {
		clear(r.pages)
	}
	for n := first; n <= last; n++ {
		if r.pages[f.page(n)] != nil {
			continue
		}
		until := n + 1
		for until <= last && r.pages[f.page(until)] == nil {
			until++
		}
		b := make([]byte, min(until*pageBytes, f.stat.Size)-n*pageBytes)
		if _, err := f.readAt(b, n*pageBytes); err != nil {
			return false // a sector beside those that are wanted can be the one that is damaged
		}
		for ; n < until; n++ {
			r.pages[f.page(n)], b = b[:min(pageBytes, len(b))], b[min(pageBytes, len(b)):]
		}
	}
	return true
}

// page is the place of page n.
func (f *file) page(n int64) pageKey { return pageKey{f.stat.ID, n} }
