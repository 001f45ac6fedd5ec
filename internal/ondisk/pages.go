package ondisk

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
	"sync"

	"github.com/trueup/trueup/internal/disk"
)

const (
	// pageSize is the unit of large reads of Pages, in bytes: 16 grain tables of a VMDK.
	pageSize = 32 << 10
	// pieceSize is the unit of small reads within a page, in bytes: a look at the start of a disk needs a few entries
	// of its tables.
	pieceSize = 4 << 10
)

// PageCache is an LRU cache shared by several sources. Safe for concurrent use.
type PageCache struct {
	max int // pages kept

	mu    sync.Mutex
	kept  []*page
	clock uint64
}

// Pages reads big on-disk tables through a small cache, so that memory does not grow with the image. Safe for
// concurrent use.
type Pages struct {
	*PageCache
	src   Source
	pages map[int64]*page // by start offset
	holes *Holes          // nil if src cannot report holes
}

// page is a range of the source, divided into pieces. A piece is nil until it is read.
type page struct {
	of     *Pages
	start  int64
	pieces [pageSize / pieceSize][]byte
	used   uint64
}

// NewPages returns Pages that keep at most limit bytes of src in memory.
func NewPages(src Source, limit int64) *Pages { return NewPageCache(limit).Of(src) }

// NewPageCache returns a cache of at most limit bytes.
func NewPageCache(limit int64) *PageCache {
	return &PageCache{max: max(1, int(limit/pageSize))}
}

// Of returns Pages that read src through the cache.
func (c *PageCache) Of(src Source) *Pages {
	p := &Pages{PageCache: c, src: src, pages: map[int64]*page{}}
	if f, ok := src.(sparseSource); ok {
		p.holes = NewHoles(f)
	}
	return p
}

// Read fills b from off.
func (p *Pages) Read(b []byte, off int64) error {
	for len(b) > 0 {
		data, err := p.from(off, int64(len(b)))
		if err != nil {
			return err
		}
		if len(data) == 0 {
			// Past the end the source returns the error. b itself would escape to the heap.
			return ReadFull(p.src, make([]byte, len(b)), off)
		}
		n := copy(b, data)
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// Zeros counts the zero bytes from off on, up to most, without copying them.
func (p *Pages) Zeros(off, most int64) (n int64, err error) {
	for n < most {
		data, err := p.from(off+n, most-n)
		if err != nil {
			return n, err
		}
		data = data[:min(int64(len(data)), most-n)]
		if len(data) == 0 || !IsZero(data) {
			i := bytes.IndexFunc(data, func(r rune) bool { return r != 0 })
			return n + int64(max(0, i)), nil
		}
		n += int64(len(data))
	}
	return n, nil
}

// U32 reads the little-endian number at off, without a buffer of the caller.
func (p *Pages) U32(off int64) (uint32, error) {
	b, err := p.number(off, 4)
	return binary.LittleEndian.Uint32(b[:]), err
}

// U64 reads the little-endian number at off.
func (p *Pages) U64(off int64) (uint64, error) {
	b, err := p.number(off, 8)
	return binary.LittleEndian.Uint64(b[:]), err
}

// BE32 reads the big-endian number at off.
func (p *Pages) BE32(off int64) (uint32, error) {
	b, err := p.number(off, 4)
	return binary.BigEndian.Uint32(b[:]), err
}

// BE64 reads the big-endian number at off.
func (p *Pages) BE64(off int64) (uint64, error) {
	b, err := p.number(off, 8)
	return binary.BigEndian.Uint64(b[:]), err
}

// number returns n bytes at off, n at most 8.
func (p *Pages) number(off, n int64) (b [8]byte, err error) {
	data, err := p.from(off, n)
	if err != nil {
		return b, err
	}
	if int64(len(data)) < n { // across the border of two pages, or past the end
		err := p.Read(b[:n], off)
		return b, err
	}
	copy(b[:n], data)
	return b, nil
}

// from returns the bytes from off to the end of their piece, or zeros for the range of want if all of it is a hole.
// useful is the number of bytes the caller can use. The result is empty only past the end of the source. The read
// happens under the lock, since two workers that miss the same page would read it twice otherwise, and hits are short.
func (p *Pages) from(off, useful int64) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clock++
	start := off - off%pageSize
	pg := p.pages[start]
	if pg != nil {
		if b := pg.pieces[(off-start)/pieceSize]; int64(len(b)) > off%pieceSize {
			pg.used = p.clock
			return b[off%pieceSize:], nil
		}
	}
	at, end := p.want(off, useful)
	if off >= end {
		return nil, nil
	}
	if p.holes != nil && p.holes.Has(at, end-at) {
		return empty[off-at : end-at], nil
	}
	data, err := Bytes(p.src, at, end-at)
	if err != nil {
		return nil, err
	}
	if pg == nil {
		if len(p.kept) == p.max {
			p.evict()
		}
		pg = &page{of: p, start: start}
		p.pages[start], p.kept = pg, append(p.kept, pg)
	}
	pg.used = p.clock
	for i := (at - start) / pieceSize; at < end; i, at = i+1, at+pieceSize {
		n := min(pieceSize, int64(len(data)))
		pg.pieces[i], data = data[:n], data[n:]
	}
	return pg.pieces[(off-start)/pieceSize][off%pieceSize:], nil
}

// has reports whether the piece at an offset is in memory.
func (p *Pages) has(at int64) bool {
	if at < 0 {
		return false
	}
	pg := p.pages[at-at%pageSize]
	return pg != nil && pg.pieces[at%pageSize/pieceSize] != nil
}

// want returns the range to read for the useful bytes from off on: their pieces, within one page. If the three pieces
// in front are in memory, the reader seems to be sequential, and the range extends to the end of the page.
func (p *Pages) want(off, useful int64) (at, end int64) {
	start := off - off%pageSize
	at, end = off-off%pieceSize, start+pageSize
	if !p.has(at-pieceSize) || !p.has(at-2*pieceSize) || !p.has(at-3*pieceSize) {
		useful = off%pieceSize + min(useful, pageSize) + pieceSize - 1
		end = min(end, at+useful-useful%pieceSize)
	}
	return at, min(end, p.src.Size())
}

// empty is the page shared by all holes. It is never written.
var empty [pageSize]byte

// evict drops the least recently used page. A scan is fine: there are few pages and each miss costs a read.
func (c *PageCache) evict() {
	oldest := 0
	for i, pg := range c.kept {
		if pg.used < c.kept[oldest].used {
			oldest = i
		}
	}
	pg := c.kept[oldest]
	delete(pg.of.pages, pg.start)
	c.kept = slices.Delete(c.kept, oldest, oldest+1)
}

// Holes reports whether structures lie in a hole of their file, where a read would return only zeros: qemu-img creates
// a VMDK of 63 TiB with 16 GiB of empty tables. Not safe for concurrent use.
type Holes struct {
	file  sparseSource
	known disk.Extent // the last extent reported by the file
}

// sparseSource is a source that reports its holes.
type sparseSource interface {
	Source
	disk.Sparse
}

// NewHoles returns the Holes of file.
func NewHoles(file sparseSource) *Holes { return &Holes{file: file} }

// Has reports whether all n bytes from off are in a hole. It returns false if the file cannot report holes.
func (h *Holes) Has(off, n int64) bool {
	r := disk.Range{Off: off, Len: n}
	if !h.known.Contains(r) {
		e, err := h.file.Extent(off, h.file.Size()-off)
		if err != nil {
			return false
		}
		h.known = e
	}
	return h.known.Zero && h.known.Contains(r)
}

// PlaceSet records the starts of blocks of one size, in any unit such as sectors, and detects overlaps. It is a bitmap
// of one bit for each block-sized cell of the file, in pages that exist only for cells with a block.
//
// Two blocks that start in one cell always overlap. Two blocks in neighbouring cells overlap if the second starts at a
// lower offset in its cell than the first. Blocks of one file nearly always start at the same offset in their cell, so
// only the exceptions are stored one by one.
type PlaceSet struct {
	unit   uint64 // units per block
	common uint64 // offset in the cell of most blocks
	any    bool
	odd    map[uint64]uint64 // cell -> start, if it differs from common
	pages  map[uint64]*placePage
	last   *placePage // the latest page, and its number
	at     uint64
	full   bool // a limit was reached: not every block was compared
}

type placePage = [cellsPerPage / 64]uint64

const (
	cellsPerPage = 1 << 15 // 4 KiB of memory
	maxPages     = 1 << 12 // 16 MiB: 8 TiB of file with grains of 64 KiB
	maxOdd       = 1 << 16
)

// NewPlaceSet returns a set for blocks of unit units each.
func NewPlaceSet(unit uint64) *PlaceSet {
	return &PlaceSet{unit: unit, odd: map[uint64]uint64{}, pages: map[uint64]*placePage{}}
}

// Add adds a block by its start, and reports whether it overlaps an earlier block.
func (s *PlaceSet) Add(at uint64) (taken bool) {
	cell, start := at/s.unit, at%s.unit
	if !s.any {
		s.common, s.any = start, true
	}
	if s.mark(cell) {
		return true
	}
	if start != s.common {
		if len(s.odd) == maxOdd {
			s.full = true
			return false
		}
		s.odd[cell] = start
	}
	if len(s.odd) == 0 {
		return false // all blocks start at the same offset in their cells: none reaches into the next one
	}
	if before, ok := s.start(cell - 1); ok && cell > 0 && before > start {
		return true
	}
	after, ok := s.start(cell + 1)
	return ok && start > after
}

// AddRange adds cells of one unit each, starting at at. It returns the number of free cells, and whether one was taken.
func (s *PlaceSet) AddRange(at, cells uint64) (free uint64, taken bool) {
	for cells > 0 {
		p := s.page(at)
		if p == nil {
			return free, taken
		}
		n := min(cells, 64-at%64)
		mask := ^uint64(0) >> (64 - n) << (at % 64)
		word := &p[at%cellsPerPage/64]
		taken = taken || *word&mask != 0
		free += uint64(bits.OnesCount64(mask &^ *word)) //nolint:gosec // at most 64
		*word |= mask
		at, cells = at+n, cells-n
	}
	return free, taken
}

// page returns the page of a cell, or nil beyond maxPages.
func (s *PlaceSet) page(cell uint64) *placePage {
	if s.last != nil && s.at == cell/cellsPerPage {
		return s.last
	}
	p := s.pages[cell/cellsPerPage]
	if p == nil {
		if len(s.pages) == maxPages {
			s.full = true
			return nil
		}
		p = new(placePage)
		s.pages[cell/cellsPerPage] = p
	}
	s.last, s.at = p, cell/cellsPerPage
	return p
}

// mark sets the bit of a cell and reports whether it was set.
func (s *PlaceSet) mark(cell uint64) bool {
	p := s.page(cell)
	if p == nil {
		return false
	}
	word, bit := &p[cell%cellsPerPage/64], uint64(1)<<(cell%64)
	was := *word&bit != 0
	*word |= bit
	return was
}

// start returns the offset within a cell at which a block starts, and whether there is one.
func (s *PlaceSet) start(cell uint64) (uint64, bool) {
	p := s.pages[cell/cellsPerPage]
	if p == nil || p[cell%cellsPerPage/64]&(1<<(cell%64)) == 0 {
		return 0, false
	}
	if o, ok := s.odd[cell]; ok {
		return o, true
	}
	return s.common, true
}

// Full reports whether a limit was reached: not all blocks were compared.
func (s *PlaceSet) Full() bool { return s.full }
