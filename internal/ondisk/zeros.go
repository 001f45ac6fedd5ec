package ondisk

import (
	"io"
	"iter"

	"github.com/trueup/trueup/internal/disk"
)

// IsZero reports whether all of b is zero. Comparing b with itself shifted by one byte is the fastest way that needs no
// assembly: bytes.Equal stops at the first differing block.
func IsZero(b []byte) bool {
	return len(b) == 0 || (b[0] == 0 && string(b[:len(b)-1]) == string(b[1:]))
}

// DataRuns returns the runs of units of b that are not all zero, in order. The last unit of b may be cut.
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

// zerosRead is how many bytes AllZero reads at once.
const zerosRead = 1 << 20

// AllZero reports whether ranges of r hold only zeros. It reads up to the first other byte.
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
