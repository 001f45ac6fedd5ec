package hive

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unicode"

	"github.com/trueup/trueup/internal/ondisk"
)

// name reads n bytes from off of a cell: a byte for each character when it is compressed, which the spec calls ASCII
// and Windows widens like Latin-1; UTF-16LE otherwise.
func (h *Hive) name(c cell, what string, off, n int64, compressed bool) (string, error) {
	if n > c.n-off || (!compressed && n%2 != 0) {
		return "", ondisk.Field(what, "name length", c.at, n, fmt.Sprintf("at most %d, and even for UTF-16", c.n-off))
	}
	if err := h.spend(n); err != nil {
		return "", err
	}
	b, err := h.bytes(c, off, n)
	if err != nil {
		return "", err
	}
	if compressed {
		return latin1(b), nil
	}
	return ondisk.UTF16(b, binary.LittleEndian), nil
}

func latin1(b []byte) string {
	if !slices.ContainsFunc(b, func(c byte) bool { return c >= 0x80 }) {
		return string(b)
	}
	runes := make([]rune, len(b))
	for i, c := range b {
		runes[i] = rune(c)
	}
	return string(runes)
}

// sameName compares as Windows does: each character in upper case by itself.
func sameName(a, b string) bool {
	return slices.EqualFunc([]rune(a), []rune(b), func(x, y rune) bool { return x == y || upper(x) == upper(y) })
}

// upper is unicode's, but for characters such as U+017F (long s) that become an ASCII letter there. The table of
// Windows keeps them.
func upper(r rune) rune {
	if u := unicode.ToUpper(r); r < 0x80 || u >= 0x80 {
		return u
	}
	return r
}
