package driver

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
)

// tableWindow is how many entries of a Table are in memory.
const tableWindow = 4 << 10

// Table writes a table of 32-bit entries, which are set in ascending order. All bits of an entry that is not set are
// one, which marks an absent block. Only a window of the table is in memory.
type Table struct {
	f      WriteFile
	off    int64 // of the table in the file, bytes
	size   int64 // bytes
	order  binary.ByteOrder
	window int64 // number of the window in work
	work   [4 * tableWindow]byte
}

// NewTable begins a table at an offset of the file; size and off are in bytes.
func NewTable(f WriteFile, off, size int64, order binary.ByteOrder) *Table {
	t := &Table{f: f, off: off, size: size, order: order}
	t.clear()
	return t
}

func (t *Table) clear() {
	for i := range t.work {
		t.work[i] = 0xff // absent, in every entry
	}
}

// Set sets the entry of block i.
func (t *Table) Set(i int64, entry uint32) error {
	if err := t.flush(i / tableWindow); err != nil {
		return err
	}
	t.order.PutUint32(t.work[4*(i%tableWindow):], entry)
	return nil
}

// flush writes the table up to window w.
func (t *Table) flush(w int64) error {
	for t.window < w {
		at := t.window * int64(len(t.work))
		if _, err := t.f.WriteAt(t.work[:min(int64(len(t.work)), t.size-at)], t.off+at); err != nil {
			return err
		}
		t.clear()
		t.window++
	}
	return nil
}

// Finish writes what is left of the table.
func (t *Table) Finish() error {
	whole := int64(len(t.work))
	return t.flush((t.size + whole - 1) / whole)
}

// Slots remembers where reserved ranges of the disk go in the file until they are written. Workers hold a few megabytes
// between them, so the list stays short whatever the size of the image. The zero value is empty.
type Slots struct {
	mu   sync.Mutex
	open map[int64]slot // by offset on the disk
}

type slot struct{ size, place int64 }

// Add gives the range [off, off+n) of the disk the place in the file where it goes.
func (s *Slots) Add(off, n, place int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[int64]slot{}
	}
	s.open[off] = slot{n, place}
}

// WriteAt writes p, which begins at off of the disk and covers whole slots, to the places of these and forgets them.
func (s *Slots) WriteAt(f io.WriterAt, p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		at := off + int64(done)
		place, n, ok := s.take(at, int64(len(p)-done))
		if !ok {
			panic(fmt.Sprintf("driver: write of %d bytes at %#x, which was not reserved", len(p)-done, at))
		}
		m, err := f.WriteAt(p[done:done+int(n)], place)
		done += m
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

func (s *Slots) take(off, most int64) (place, n int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.open[off]
	if !ok || o.size > most {
		return 0, 0, false
	}
	delete(s.open, off)
	return o.place, o.size, true
}

// Flat is the target that several formats share: a file that holds the disk byte for byte. What is not written stays
// a hole.
type Flat struct {
	WriteFile
}

// flatUnit is the block size of the file systems that images lie on, in bytes: a smaller hole saves nothing.
const flatUnit = 4 << 10

// NewFlat sizes f.
func NewFlat(f WriteFile, size int64) (*Flat, error) {
	if err := f.Truncate(size); err != nil {
		return nil, fmt.Errorf("%w (%d bytes)", err, size)
	}
	return &Flat{f}, nil
}

// Unit returns the smallest hole worth leaving.
func (t *Flat) Unit() int64 { return flatUnit }

// Reserve has nothing to do: offsets of the disk are offsets of the file.
func (t *Flat) Reserve(int64, int64) error { return nil }

// Finish makes the bytes durable.
func (t *Flat) Finish() error { return t.Sync() }
