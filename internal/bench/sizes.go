package bench

import (
	"math"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Size is the value of a flag: a number of bytes.
type Size int64

func (n *Size) String() string { return units.Short(int64(*n)) }

// Set parses a flag argument.
func (n *Size) Set(arg string) error {
	x, err := units.Parse(arg)
	*n = Size(x)
	return err
}

// Type is the word that help texts show for the argument.
func (n *Size) Type() string { return "SIZE" }

// Sizes is the value of a flag: numbers of bytes with commas between them. They may have fractions: "63.5K,64K".
type Sizes []int64

func (s *Sizes) String() string {
	var out []string
	for _, n := range *s {
		if n%units.KiB == 0 {
			out = append(out, units.Short(n))
		} else {
			out = append(out, strconv.FormatFloat(float64(n)/float64(units.KiB), 'f', -1, 64)+"K")
		}
	}
	return strings.Join(out, ",")
}

// Set parses a flag argument.
func (s *Sizes) Set(arg string) error {
	*s = nil
	for one := range strings.SplitSeq(arg, ",") {
		one = strings.TrimSpace(one)
		digits := strings.TrimRight(one, "BbKkMmGgTtIiSs")
		unit, err := units.Parse("1" + one[len(digits):])
		x, errX := strconv.ParseFloat(digits, 64)
		n := x * float64(unit)
		if err != nil || errX != nil || n < 0 || n != math.Trunc(n) || n > math.MaxInt32*float64(units.KiB) {
			return ondisk.In(ondisk.ErrUsage, "size %.40q: want a number with K, M, G or s (512-byte sectors), "+
				"such as 63.5K",
				one)
		}
		*s = append(*s, int64(n))
	}
	return nil
}

// Type is the word that help texts show for the argument.
func (s *Sizes) Type() string { return "SIZES" }
