package ondisk

import (
	"bytes"
	"encoding/binary"
	"sync"
)

const (
	// pageSize is the unit in which Pages reads where much is wanted, in bytes: 16 grain tables of a VMDK.
	pageSize = 32 << 10
	// firstRead is the unit of what is read of a page at first, in bytes: who only looks at the start of a disk needs a few entries of its tables.
	firstRead = 4 << 10
)

// Pages reads big on-disk tables through a small cache, so that memory does not grow with the image. Safe for
// concurrent use.
type Pages struct {
	src Source
	max int // pages kept

	mu    sync.Mutex
	pages map[int64]*page
	clock uint64
	holes *Holes // nil when src does not know its holes
}

type page struct {
	at   int64 // of data, which is all of the page or the first that was read of it
	data []byte
	used uint64
}

// NewPages keeps at most limit bytes of src in memory.
func NewPages(src Source, limit int64) *Pages {
	p := &Pages{src: src, max: max(1, int(limit/pageSize)), pages: map[int64]*page{}}
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
			return ReadFull(p.src, b, off) // past the end: let the source name the error
		}
		n := copy(b, data)
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// Zeros counts the zero bytes from off on, at most so many, without a copy of them.
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

// U32 reads the little-endian number at off without a buffer of the caller's.
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

// number gives n bytes at off, n at most 8.
func (p *Pages) number(off, n int64) (b [8]byte, err error) {
	data, err := p.from(off, n)
	if err != nil {
		return b, err
	}
	if int64(len(data)) < n { // across the border of two pages, or past the end
		var wide [8]byte // escapes, unlike b
		err := p.Read(wide[:n], off)
		return wide, err
	}
	copy(b[:n], data)
	return b, nil
}

// from gives bytes from off on, where so many are of use, as many as are at hand: none only past the end of the source. The read
// happens under the lock: two workers that miss on one page would read it twice otherwise, and hits are short.
func (p *Pages) from(off, useful int64) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clock++
	start := off - off%pageSize
	pg := p.pages[start]
	if pg != nil && off >= pg.at && off-pg.at < int64(len(pg.data)) {
		pg.used = p.clock
		return pg.data[off-pg.at:], nil
	}
	at, n := p.want(off, min(useful, pageSize), pg)
	if off >= at+n {
		return nil, nil
	}
	if p.holes != nil && p.holes.Has(at, n) {
		return empty[off-at : n], nil
	}
	data, err := Bytes(p.src, at, n)
	if err != nil {
		return nil, err
	}
	if pg == nil && len(p.pages) >= p.max {
		p.evict()
	}
	p.pages[start] = &page{at: at, data: data, used: p.clock}
	return data[off-at:], nil
}

// want tells what to read of the page that has the byte at off: at first no more than the useful bytes from there are in, and all of it
// when more of it is wanted or all of the page in front of it was.
func (p *Pages) want(off, useful int64, known *page) (at, n int64) {
	start := off - off%pageSize
	end := min(start+pageSize, p.src.Size())
	before := p.pages[start-pageSize]
	if known != nil || (before != nil && len(before.data) == pageSize) {
		return start, end - start
	}
	at = off - off%firstRead
	useful += firstRead - 1
	return at, min(off+useful-(off+useful)%firstRead, end) - at
}

// empty is the page that all holes share. Nobody writes to it.
var empty [pageSize]byte

// evict drops the page that was not used for longest. A scan of the map is fine: there are few pages and each miss
// costs a read.
func (p *Pages) evict() {
	var oldest int64
	first := true
	for off, pg := range p.pages {
		if first || pg.used < p.pages[oldest].used {
			oldest, first = off, false
		}
	}
	delete(p.pages, oldest)
}
