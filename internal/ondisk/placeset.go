package ondisk

import "math/bits"

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
