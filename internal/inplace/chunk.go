package inplace

import (
	"cmp"
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
		if data != nil {
			_, err := s.WriteAt(data, to+off)
			return err
		}
		if sure {
			return s.Zero(to+off, n)
		}
		for e, err := range disk.Extents(s, disk.Range{Off: to + off, Len: n}) {
			if err == nil && !e.Zero {
				err = s.Zero(e.Off, e.Len)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// filled returns the units of a range that are not holes, and how many bytes they have.
func (m *mover) filled(x disk.Range) (out []disk.Range, sum int64, err error) {
	unit, next := m.plan.unit(), x.Off
	for e, err := range disk.Extents(m.disk, x) {
		if err != nil {
			return nil, 0, err
		}
		from := max(next, x.Off+units.AlignDown(e.Off-x.Off, unit))
		end := min(x.End(), x.Off+units.AlignUp(e.End()-x.Off, unit))
		if e.Zero || from >= end {
			continue
		}
		out, sum, next = append(out, disk.Range{Off: from, Len: end - from}), sum+end-from, end
	}
	return out, sum, nil
}

// read reads a stretch that is zero but for ranges, which are those of filled.
func (m *mover) read(x disk.Range, filled []disk.Range) (chunk, error) {
	c := chunk{n: x.Len, unit: m.plan.unit(), units: make([]byte, m.plan.bitmap(x.Len)), data: m.buf[:0]}
	for _, r := range filled {
		b := m.buf[len(c.data):][:r.Len]
		if err := ondisk.ReadFull(m.disk, b, r.Off); err != nil {
			return c, err
		}
		for data := range ondisk.DataRuns(b, c.unit) {
			for off := data.Off; off < data.End(); off += c.unit {
				i := (r.Off + off - x.Off) / c.unit
				c.units[i/8] |= 1 << (i % 8)
			}
			c.data = append(c.data, b[data.Off:data.End()]...) // never in front of what is read next
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
	for off := e.Off; off < e.End() && !e.Zero; off += step {
		n := min(step, e.End()-off)
		if zero, err := ondisk.AllZero(s, disk.Range{Off: off, Len: n}); err != nil || !zero {
			return cmp.Or(err, fmt.Errorf("%w between byte %d and %d: not zero", errDiffers, off, off+n))
		}
	}
	return nil
}
