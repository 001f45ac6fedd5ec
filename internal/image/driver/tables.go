package driver

import (
	"fmt"
	"io"
	"sync"

	"github.com/trueup/trueup/internal/ondisk"
)

// Faults counts faults in the tables of an image by kind, and keeps the first of each kind. A kind is a phrase that
// follows a number: "blocks at a place in use". The zero value is empty.
type Faults struct {
	File   string // the current file of an image in several files
	counts map[string]int64
	firsts map[string]string
}

// Add counts a fault.
func (f *Faults) Add(kind, format string, args ...any) {
	if f.counts == nil {
		f.counts, f.firsts = map[string]int64{}, map[string]string{}
	}
	if f.counts[kind]++; f.counts[kind] == 1 {
		f.firsts[kind] = f.Where() + fmt.Sprintf(format, args...)
	}
}

// Where returns the current file name as the start of a message.
func (f *Faults) Where() string {
	if f.File == "" {
		return ""
	}
	return fmt.Sprintf("%.256q: ", f.File)
}

// Count returns the number of faults of a kind.
func (f *Faults) Count(kind string) int64 { return f.counts[kind] }

// Any reports whether there are faults.
func (f *Faults) Any() bool { return len(f.counts) > 0 }

// Reset clears the count of a kind.
func (f *Faults) Reset(kind string) { delete(f.counts, kind) }

// Issues returns one issue for each of the given kinds with faults, with code, effect and remedy of like. table begins
// the error text of a broken image.
func (f *Faults) Issues(like ondisk.Issue, table string, kinds ...string) (out []ondisk.Issue) {
	for _, kind := range kinds {
		n := f.counts[kind]
		if n == 0 {
			continue
		}
		i := like
		i.Text = fmt.Sprintf("%d %s; first: %s", n, kind, f.firsts[kind])
		if i.Effect == ondisk.Broken {
			i.Err = fmt.Errorf("%s: %w: %s", table, ondisk.ErrFormat, i.Text)
		}
		out = append(out, i)
	}
	return out
}

// Unchecked returns the issue of an image with too many blocks or grains for a search for duplicate offsets.
func Unchecked(code, units string) ondisk.Issue {
	return ondisk.Issue{
		Code: code,
		Text: "the image is too large to look for " + units + " in use twice; a copy is still compared byte by byte",
	}
}

// Unpacked caches the most recently decompressed units of an image. A reader that needs a unit in pieces, as for a
// shifted disk, decompresses it once. Safe for concurrent use.
type Unpacked struct {
	size   int64 // bytes of a unit
	unpack func(dst []byte, key int64) error

	mu    sync.Mutex
	units []*unpackedUnit // most recently used first
}

type unpackedUnit struct {
	key  int64
	once sync.Once
	data []byte
	err  error
}

// NewUnpacked returns a cache of at most limit bytes, in units of size bytes. unpack fills dst, of exactly size bytes,
// with the unit named by key. It may run for several units at once.
func NewUnpacked(limit, size int64, unpack func(dst []byte, key int64) error) *Unpacked {
	return &Unpacked{size: size, unpack: unpack, units: make([]*unpackedUnit, 0, max(1, limit/size))}
}

// Unit returns the source of a run, the bytes of one unit. They are decompressed on the first read.
func (u *Unpacked) Unit(key int64) io.ReaderAt { return packedUnit{u, key} }

type packedUnit struct {
	of  *Unpacked
	key int64
}

// ReadAt reads decompressed bytes.
func (p packedUnit) ReadAt(b []byte, off int64) (int, error) {
	if off == 0 && int64(len(b)) == p.of.size {
		// A read of the whole unit bypasses the cache: no second read follows.
		if err := p.of.unpack(b, p.key); err != nil {
			return 0, err // with a full count, callers would ignore the error
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

// get decompresses a unit, or waits for the goroutine that does.
func (u *Unpacked) get(key int64) ([]byte, error) {
	unit := u.find(key)
	unit.once.Do(func() {
		unit.data = make([]byte, u.size)
		unit.err = u.unpack(unit.data, key)
	})
	return unit.data, unit.err
}

// find returns the unit with a key and moves it to the front of the list. A new unit replaces the last one of a full
// list. The list is short.
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
