package align

import (
	"encoding/json"
	"fmt"
	"iter"
	"strconv"

	"github.com/trueup/trueup/internal/units"
)

// Boundary is a boundary in bytes: a start is aligned on its multiples. Only this file does arithmetic on it. The zero
// value means auto: GoalFor chooses by the boot code of the disk.
type Boundary struct{ bytes int64 }

// BoundaryOf returns a boundary of some bytes. It does not check their number; Check does.
func BoundaryOf(bytes int64) Boundary { return Boundary{bytes} }

// DefaultBoundary is the criterion of inspect and of every move. It divides the stripes and chunks of all storage in
// the manual of virt-alignment-scan.
var DefaultBoundary = Boundary{64 * units.KiB}

// Kept is the default target. No storage gains from a larger one, so a partition that makes room for another keeps at
// most this alignment.
var Kept = Boundary{units.MiB}

// SmallestBoundary is the smallest valid boundary.
var SmallestBoundary = Boundary{Block}

const maxBoundary = units.GiB

// autoBoundary is the text of the zero value.
const autoBoundary = "auto"

// Check returns an error if the boundary is not valid for --boundary.
func (b Boundary) Check() error {
	if b.bytes < Block || b.bytes > maxBoundary || !units.IsPowerOfTwo(b.bytes) {
		return fmt.Errorf("boundary of %d bytes: must be a power of two from %s to %s", b.bytes, units.Short(Block),
			units.Short(maxBoundary))
	}
	return nil
}

// String returns the argument of --boundary: 64K, auto.
func (b Boundary) String() string {
	if b == (Boundary{}) {
		return autoBoundary
	}
	return units.Short(b.bytes)
}

// Text returns the boundary in words: 64 KiB.
func (b Boundary) Text() string { return units.Format(b.bytes) }

// Bytes returns the number of bytes.
func (b Boundary) Bytes() int64 { return b.bytes }

// Type returns the placeholder of the argument in help texts.
func (b Boundary) Type() string { return "SIZE" }

// Set parses the argument of --boundary. The error for a number of bytes suggests the same number of KiB.
func (b *Boundary) Set(arg string) error {
	if *b = (Boundary{}); arg == autoBoundary {
		return nil
	}
	n, err := units.Parse(arg)
	if err != nil {
		return err
	}
	*b = Boundary{n}
	if err = b.Check(); err == nil || arg != strconv.FormatInt(n, 10) || n >= Block {
		return err
	}
	for _, near := range []int64{n, n - 1, n + 1} {
		if kib := (Boundary{near * units.KiB}); kib.Check() == nil {
			return fmt.Errorf("%s is %d bytes; did you mean %s?", arg, n, kib)
		}
	}
	return err
}

// MarshalJSON writes the number of bytes.
func (b Boundary) MarshalJSON() ([]byte, error) { return json.Marshal(b.bytes) }

// UnmarshalJSON reads the number of bytes. It does not check it.
func (b *Boundary) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, &b.bytes) }

// Target converts the criterion of an inspection to the boundary of a copy: the default criterion becomes the default
// target.
func (b Boundary) Target() Boundary {
	if b == DefaultBoundary {
		return Boundary{}
	}
	return b
}

// Criterion returns the boundary for verdicts: b, or DefaultBoundary if b is the zero value.
func (b Boundary) Criterion() Boundary {
	if b == (Boundary{}) {
		return DefaultBoundary
	}
	return b
}

// Verdict returns the verdict on a start at a byte offset.
func (b Boundary) Verdict(off int64) Verdict {
	switch {
	case off%min(Block, b.bytes) != 0:
		return Misaligned
	case !b.On(off):
		return BelowBoundary
	}
	return Aligned
}

// On reports whether a byte offset is a multiple of the boundary.
func (b Boundary) On(off int64) bool { return off%b.bytes == 0 }

// Past returns the distance in bytes from a byte offset back to the last multiple of the boundary.
func (b Boundary) Past(off int64) int64 { return off % b.bytes }

// Up returns the first multiple of the boundary that is not below a byte offset.
func (b Boundary) Up(off int64) int64 { return units.AlignUp(off, b.bytes) }

// Above reports whether the boundary is larger than another one.
func (b Boundary) Above(other Boundary) bool { return b.bytes > other.bytes }

// below returns the largest boundary up to b that divides a byte offset.
func (b Boundary) below(off int64) Boundary { return Boundary{min(units.Alignment(off), b.bytes)} }

// Smaller yields the boundaries below b, the largest first.
func (b Boundary) Smaller() iter.Seq[Boundary] {
	return func(yield func(Boundary) bool) {
		for n := b.bytes / 2; n >= Block; n /= 2 {
			if !yield(Boundary{n}) {
				return
			}
		}
	}
}

// Last returns the highest of the offsets low, low plus the boundary and so on up to most that fits. If an offset fits,
// all lower ones must fit too.
func (b Boundary) Last(low, most int64, fits func(off int64) bool) (off int64, ok bool) {
	// The number of offsets can exceed an int.
	first, none := int64(-1), max(0, (most-low)/b.bytes+1)
	for none-first > 1 {
		if k := first + (none-first)/2; fits(low + k*b.bytes) {
			first = k
		} else {
			none = k
		}
	}
	return low + first*b.bytes, first >= 0
}
