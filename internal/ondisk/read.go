package ondisk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"reflect"
	"sync/atomic"

	"github.com/trueup/trueup/internal/disk"
)

// Source is the input of decoders: a file or a disk.
type Source interface {
	io.ReaderAt
	Size() int64
}

// maxBytes limits a single read of a structure. Larger tables are read in pages (see Pages).
const maxBytes = 16 << 20

// Bytes reads [off, off+n). It returns an error for a range that leaves src, before it allocates memory.
func Bytes(src Source, off, n int64) ([]byte, error) {
	if off < 0 || n < 0 || off > src.Size() || n > src.Size()-off {
		return nil, &FormatError{
			What: "structure", Off: off, Field: "length", Got: n,
			Want: fmt.Sprintf("an end within the %d bytes there are", src.Size()),
		}
	}
	if n > maxBytes {
		return nil, fmt.Errorf("structure of %d bytes at %#x: %w of %d bytes", n, off, ErrLimit, maxBytes)
	}
	b := make([]byte, n)
	if err := ReadFull(src, b, off); err != nil {
		return nil, err
	}
	return b, nil
}

// ReadFull fills b from off. An end of file in the middle is an I/O error: the caller has checked the size before, so
// the file became shorter during the read.
func ReadFull(r io.ReaderAt, b []byte, off int64) error {
	n, err := r.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return fmt.Errorf("read %d bytes at %#x: %w", len(b), off, io.ErrUnexpectedEOF)
	}
	return err // has file and offset already
}

// Decode fills the fixed-size struct v from off, little-endian, and returns the raw bytes too.
func Decode(src Source, off int64, v any) ([]byte, error) {
	b, err := Bytes(src, off, int64(binary.Size(v)))
	if err != nil {
		return nil, err
	}
	Fill(b, binary.LittleEndian, v)
	return b, nil
}

// Encode returns the bytes of fixed-size structs, one after another.
func Encode(order binary.ByteOrder, vs ...any) []byte {
	var b []byte
	for _, v := range vs {
		var err error
		if b, err = binary.Append(b, order, v); err != nil {
			panic(err) // our own bug: a struct without a fixed size
		}
	}
	return b
}

// Fill decodes the start of b into the fixed-size struct that v points to. It panics if b is too short. Zeros, the
// usual input of probers, need no walk over the fields.
func Fill(b []byte, order binary.ByteOrder, v any) {
	if IsZero(b[:binary.Size(v)]) {
		reflect.ValueOf(v).Elem().SetZero()
	} else if _, err := binary.Decode(b, order, v); err != nil {
		panic(err) // our own bug: a struct without a fixed size
	}
}

// The conversions below are for checked values: a value out of range is our own bug, and stopping is better than
// writing a wrapped number into a disk.

// U32 converts a count or offset for a 32-bit field.
func U32(n int64) uint32 {
	if n < 0 || n > math.MaxUint32 {
		panic(fmt.Sprintf("ondisk: %d does not fit 32 bits", n))
	}
	return uint32(n)
}

// U64 converts a count or offset. It panics if n is negative.
func U64(n int64) uint64 {
	if n < 0 {
		panic(fmt.Sprintf("ondisk: %d is negative", n))
	}
	return uint64(n)
}

// I64 converts an unsigned field that was checked against the size of its disk.
func I64(n uint64) int64 {
	if n > math.MaxInt64 {
		panic(fmt.Sprintf("ondisk: %d does not fit 63 bits", n))
	}
	return int64(n)
}

// Byte converts a value for a field of one byte. It panics if the value does not fit.
func Byte(n int64) byte {
	if n < 0 || n > math.MaxUint8 {
		panic(fmt.Sprintf("ondisk: %d does not fit a byte", n))
	}
	return byte(n)
}

// IsZero reports whether all of b is zero. Comparing b with itself shifted by one byte is the fastest way that needs no
// assembly: bytes.Equal stops at the first differing block.
func IsZero(b []byte) bool {
	return len(b) == 0 || (b[0] == 0 && string(b[:len(b)-1]) == string(b[1:]))
}

// DataRuns returns the runs of units of b that are not all zero, in order. The last unit of b may be shorter.
func DataRuns(b []byte, unit int64) iter.Seq[disk.Range] {
	return func(yield func(disk.Range) bool) {
		var run disk.Range
		for off := int64(0); off < int64(len(b)); off += unit {
			end := min(off+unit, int64(len(b)))
			switch {
			case !IsZero(b[off:end]):
				if run.Len == 0 {
					run.Off = off
				}
				run.Len = end - run.Off
			case run.Len > 0:
				if !yield(run) {
					return
				}
				run.Len = 0
			}
		}
		if run.Len > 0 {
			yield(run)
		}
	}
}

// zerosRead is the number of bytes per read of AllZero.
const zerosRead = 1 << 20

// AllZero reports whether ranges of r hold only zeros. It stops at the first read with another byte.
func AllZero(r io.ReaderAt, ranges ...disk.Range) (bool, error) {
	var buf []byte
	for _, x := range ranges {
		for off := x.Off; off < x.End(); off += zerosRead {
			n := min(zerosRead, x.End()-off)
			if int64(len(buf)) < n {
				buf = make([]byte, n)
			}
			if err := ReadFull(r, buf[:n], off); err != nil || !IsZero(buf[:n]) {
				return false, err
			}
		}
	}
	return true, nil
}

// Budget limits the cost of untrusted structures: bytes read, or steps. Safe for concurrent use.
type Budget struct {
	What, Unit string // for the error: "registry hive", "steps"
	Limit      int64  // 0 means unlimited

	spent atomic.Int64
}

// Spend adds a cost. It returns ErrLimit if the sum exceeds the limit.
func (b *Budget) Spend(n int64) error {
	if sum := b.spent.Add(n); b.Limit > 0 && sum > b.Limit {
		return fmt.Errorf("%s: %w of %d %s", b.What, ErrLimit, b.Limit, b.Unit)
	}
	return nil
}

// Spent returns the sum of the costs so far.
func (b *Budget) Spent() int64 { return b.spent.Load() }

// Metered is a source that charges its reads to a budget.
type Metered struct {
	Source
	Budget *Budget
}

// ReadAt implements io.ReaderAt.
func (m *Metered) ReadAt(p []byte, off int64) (int, error) {
	if err := m.Budget.Spend(int64(len(p))); err != nil {
		return 0, err
	}
	return m.Source.ReadAt(p, off)
}

// Extent returns the extent of the source at no cost. A source that cannot report holes has none.
func (m *Metered) Extent(off, limit int64) (disk.Extent, error) {
	if s, ok := m.Source.(disk.Sparse); ok {
		return s.Extent(off, limit)
	}
	return disk.Extent{Range: disk.Range{Off: off, Len: limit}}, nil
}
