package driver

import (
	"io"
	"sync"
)

// Unpacked keeps those units of a compressed image that were unpacked last: a reader that takes a unit in pieces, as
// one of a shifted disk does, unpacks it once. Safe for concurrent use.
type Unpacked struct {
	size   int64 // bytes of a unit
	unpack func(dst []byte, key int64) error

	mu    sync.Mutex
	units []*unpackedUnit // the one that was used last comes first
}

type unpackedUnit struct {
	key  int64
	once sync.Once
	data []byte
	err  error
}

// NewUnpacked keeps at most limit bytes in units of size bytes. unpack fills dst, of exactly size bytes, with the
// unit that key names; it runs for several units at once.
func NewUnpacked(limit, size int64, unpack func(dst []byte, key int64) error) *Unpacked {
	return &Unpacked{size: size, unpack: unpack, units: make([]*unpackedUnit, 0, max(1, limit/size))}
}

// Unit returns the source of a run: the bytes of one unit. Nothing is unpacked before they are read.
func (u *Unpacked) Unit(key int64) io.ReaderAt { return packedUnit{u, key} }

type packedUnit struct {
	of  *Unpacked
	key int64
}

// ReadAt reads from the unpacked bytes.
func (p packedUnit) ReadAt(b []byte, off int64) (int, error) {
	if off == 0 && int64(len(b)) == p.of.size {
		// As a whole: it is not asked for again.
		if err := p.of.unpack(b, p.key); err != nil {
			return 0, err // a reader that has all of its bytes need not look at the error
		}
		return len(b), nil
	}
	data, err := p.of.get(p.key)
	if err != nil {
		return 0, err
	}
	if off >= int64(len(data)) {
		return 0, io.EOF
	}
	n := copy(b, data[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// get unpacks a unit, or waits for the goroutine that does.
func (u *Unpacked) get(key int64) ([]byte, error) {
	unit := u.find(key)
	unit.once.Do(func() {
		unit.data = make([]byte, u.size)
		unit.err = u.unpack(unit.data, key)
	})
	return unit.data, unit.err
}

// find moves a unit to the front of the list; a new one takes the place of the last. The list is short.
func (u *Unpacked) find(key int64) *unpackedUnit {
	u.mu.Lock()
	defer u.mu.Unlock()
	i := 0
	for i < len(u.units) && u.units[i].key != key {
		i++
	}
	var found *unpackedUnit
	switch {
	case i < len(u.units):
		found = u.units[i]
	case i < cap(u.units):
		found = &unpackedUnit{key: key}
		u.units = append(u.units, nil)
	default:
		found = &unpackedUnit{key: key}
		i--
	}
	copy(u.units[1:], u.units[:i])
	u.units[0] = found
	return found
}
