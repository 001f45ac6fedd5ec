// Package units parses and prints byte sizes and rounds offsets to boundaries.
//
// K, M, G and T are powers of 1024, as in qemu-img. "s" means sectors of 512 bytes. A boundary of 64K that meant 64,000
// bytes would itself be misaligned.
package units

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Powers of 1024, in bytes.
const (
	KiB int64 = 1 << 10
	MiB int64 = 1 << 20
	GiB int64 = 1 << 30
	tib int64 = 1 << 40
)

// SectorSize is the unit of the suffix "s", of LBAs in MBR tables and of every count in a VMDK, in bytes.
const SectorSize int64 = 512

var suffixes = map[string]int64{
	"": 1, "B": 1, "S": SectorSize,
	"K": KiB, "KB": KiB, "KIB": KiB,
	"M": MiB, "MB": MiB, "MIB": MiB,
	"G": GiB, "GB": GiB, "GIB": GiB,
	"T": tib, "TB": tib, "TIB": tib,
}

var errSize = errors.New(
	"must be a whole number of bytes, or one with K, M, G, T (powers of 1024) or s (512-byte sectors)")

// Parse parses "64K", "1M", "65536" or "63s" and returns bytes.
func Parse(s string) (int64, error) {
	t := strings.TrimSpace(s)
	digits := len(t)
	for i, c := range t {
		if c < '0' || c > '9' {
			digits = i
			break
		}
	}
	unit, ok := suffixes[strings.ToUpper(strings.TrimSpace(t[digits:]))]
	if digits == 0 || !ok {
		return 0, fmt.Errorf("size %q: %w", s, errSize)
	}
	n, err := strconv.ParseInt(t[:digits], 10, 64)
	if err != nil || n > math.MaxInt64/unit {
		return 0, fmt.Errorf("size %q: larger than %d bytes", s, int64(math.MaxInt64))
	}
	return n * unit, nil
}

// Format formats bytes for a reader: "31.5 KiB", "1 MiB", "8 GiB", "512 B".
func Format(n int64) string {
	size, name := unitOf(n)
	s := decimal(n, size, 2)
	if size > 1 {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s + " " + name
}

// Part formats a part of a whole in the unit of the whole: "2.7 of 6.0 GiB".
func Part(n, whole int64) string {
	size, name := unitOf(whole)
	return decimal(n, size, 1) + " of " + decimal(whole, size, 1) + " " + name
}

// unitOf returns the largest unit that n reaches, in bytes, and its name.
func unitOf(n int64) (size int64, name string) {
	for _, u := range []struct {
		size int64
		name string
	}{{tib, "TiB"}, {GiB, "GiB"}, {MiB, "MiB"}, {KiB, "KiB"}} {
		if n >= u.size {
			return u.size, u.name
		}
	}
	return 1, "B"
}

// decimal formats n in a unit. Bytes have no fractions.
func decimal(n, unit int64, digits int) string {
	if unit == 1 {
		digits = 0
	}
	return strconv.FormatFloat(float64(n)/float64(unit), 'f', digits, 64)
}

// Short formats a number of bytes as a flag value, in the largest unit that divides it: "4K", "64K", "1M".
func Short(n int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{tib, "T"}, {GiB, "G"}, {MiB, "M"}, {KiB, "K"}} {
		if n >= u.size && n%u.size == 0 {
			return strconv.FormatInt(n/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// AlignDown returns the last multiple of step that is not above n. Both are bytes; step is above 0.
func AlignDown(n, step int64) int64 { return n - n%step }

// AlignUp returns the first multiple of step that is not below n. Both are bytes; step is above 0.
func AlignUp(n, step int64) int64 { return AlignDown(n+step-1, step) }

// IsPowerOfTwo reports whether n is 1, 2, 4, …
func IsPowerOfTwo(n int64) bool { return n > 0 && n&(n-1) == 0 }

// Alignment returns the largest power of two that divides off: 512 for LBA 63. Offset 0 is aligned to anything:
// Alignment returns 1 TiB.
func Alignment(off int64) int64 {
	if off == 0 {
		return tib
	}
	return min(off&-off, tib)
}

// Counted formats a number with its noun: "1 file", "2 files".
func Counted[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
