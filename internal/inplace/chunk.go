package inplace

import (
	"fmt"
	"io"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// chunk is a stretch that is under way: the units of it that are not zero, one behind the other.
type chunk struct {
	n, unit int64 // bytes
	units   []byte
	data    []byte
}

func (c *chunk) empty() bool { return len(c.data) == 0 }

func (c *chunk) has(i int64) bool { return c.units[i/8]>>(i%8)&1 == 1 }

// runs calls use for each run of units that are alike: where it lies in the stretch, and its bytes, nil for zeros.
func (c *chunk) runs(use func(off int64, n int64, data []byte) error) error {
	data := c.data
	for off := int64(0); off < c.n; {
		filled, end := c.has(off/c.unit), off
		for end < c.n && c.has(end/c.unit) == filled {
			end = min(c.n, end+c.unit)
		}
		var b []byte
		if filled {
			b, data = data[:end-off], data[end-off:]
		}
		if err := use(off, end-off, b); err != nil {
			return err
		}
		off = end
	}
	return nil
}

// stored returns how many bytes the units that are not zero have.
func (c *chunk) stored() (n int64) {
	for i := int64(0); i*c.unit < c.n; i++ {
		if c.has(i) {
			n += min(c.unit, c.n-i*c.unit)
		}
	}
	return n
}

// write puts the stretch to a place. sure writes zeros where there seem to be zeros already, too.
func (c *chunk) write(s Storage, to int64, sure bool) error {
	return c.runs(func(off, n int64, data []byte) error {
		switch {
		case data != nil:
			_, err := s.WriteAt(data, to+off)
			return err
		case !sure && allZero(s, disk.Range{Off: to + off, Len: n}):
			return nil
		}
		return s.Zero(to+off, n)
	})
}

// read reads a stretch. Units that are holes are neither read nor looked at.
func (m *mover) read(off, n int64) (chunk, error) {
	c := chunk{n: n, unit: m.plan.unit(), units: make([]byte, m.plan.bitmap(n)), data: m.buf[:0]}
	next := int64(0) // of the stretch, at a border of units
	for e, err := range disk.Extents(m.disk, disk.Range{Off: off, Len: n}) {
		if err != nil {
			return c, err
		}
		from, end := max(next, units.AlignDown(e.Off-off, c.unit)), min(n, units.AlignUp(e.End()-off, c.unit))
		if e.Zero || from >= end {
			continue
		}
		if err := ondisk.ReadFull(m.disk, m.buf[from:end], off+from); err != nil {
			return c, err
		}
		for next = from; next < end; next += c.unit {
			if u := m.buf[next:min(end, next+c.unit)]; !ondisk.IsZero(u) {
				c.units[next/c.unit/8] |= 1 << (next / c.unit % 8)
				c.data = append(c.data, u...) // never in front of what is read next
			}
		}
	}
	return c, nil
}

// allZero reports whether a range is known to read as zero. An error is left to a later call, which meets it too.
func allZero(s Storage, r disk.Range) bool {
	for e, err := range disk.Extents(s, r) {
		if err != nil || !e.Zero {
			return false
		}
	}
	return true
}

// wantZero returns the error of an extent that holds something.
func wantZero(s io.ReaderAt, e disk.Extent) error {
	const step = 1 << 20
	buf := make([]byte, min(step, e.Len))
	for off := e.Off; off < e.End() && !e.Zero; off += step {
		b := buf[:min(step, e.End()-off)]
		if err := ondisk.ReadFull(s, b, off); err != nil {
			return err
		}
		if !ondisk.IsZero(b) {
			return fmt.Errorf("%w between byte %d and %d: not zero", errDiffers, off, off+int64(len(b)))
		}
	}
	return nil
}
