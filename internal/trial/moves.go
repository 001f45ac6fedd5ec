package trial

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
)

// Move is a partition that lies in one place of the source, and in another one of the aligned view. A guest may print
// the place, as FreeDOS does: "C: HD1, Pri[ 1], CHS= 0-1-1, start= 0 MB".
type Move struct{ Before, After Start }

// Moves are the partitions that move.
type Moves []Move

// Start is where a partition begins: its sector, and the geometry in which the machine counts; zeros: none.
type Start struct{ LBA, Heads, Sectors int64 }

// forms returns the texts by which guests name a start. Those of one index mean the same. Source: FreeDOS kernel 2043,
// kernel/initdisk.c, printCHS, StartSector / 2048.
func (s Start) forms() []string {
	out := []string{
		decimal(s.LBA), fmt.Sprintf("%#x", s.LBA), fmt.Sprintf("%x", s.LBA), decimal(s.LBA * 512),
		decimal(s.LBA / 2), decimal(s.LBA / 2048),
	}
	if s.Heads > 0 && s.Sectors > 0 {
		c, h, sec := s.LBA/s.Sectors/s.Heads, s.LBA/s.Sectors%s.Heads, s.LBA%s.Sectors+1
		for _, between := range []string{"-", "/", ":", ","} {
			out = append(out, decimal(c)+between+decimal(h)+between+decimal(sec))
		}
	}
	return out
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// places matches what may be the place of a partition in a line.
var places = ondisk.LazyPattern(`\b(0x[0-9a-f]+|\d[0-9a-f]*([-/:,]\d+[-/:,]\d+)?)\b`)

// maxPlaces bounds the places of a line: all choices of them are tried.
const maxPlaces = 8

// sameButMoved reports whether two lines differ in nothing but places of partitions that move: each where it is before
// in the one, and where it is after in the other, whichever is which.
func (m Moves) sameButMoved(x, y string) bool {
	if len(m) == 0 {
		return false
	}
	xs, ys := places().FindAllString(x, maxPlaces+1), places().FindAllString(y, maxPlaces+1)
	if len(xs) != len(ys) || len(xs) > maxPlaces || len(xs) == 0 ||
		strings.Join(places().Split(x, -1), "\x00") != strings.Join(places().Split(y, -1), "\x00") {
		return false
	}
	for forward := range 2 {
		moved := true
		for i := range xs {
			a, b := xs[i], ys[i]
			if forward == 1 {
				a, b = b, a
			}
			moved = moved && (a == b || m.leads(a, b))
		}
		if moved {
			return true
		}
	}
	return false
}

// leads reports whether a text names where a partition is before, and another one where it is after, in one form.
func (m Moves) leads(before, after string) bool {
	for _, move := range m {
		was, is := move.Before.forms(), move.After.forms()
		for i := range min(len(was), len(is)) {
			if was[i] == before && is[i] == after {
				return true
			}
		}
	}
	return false
}

// hasMoved reports whether the pool has a line that differs from one in nothing but places of partitions that move.
func (p pool) hasMoved(norm string, m Moves) bool {
	if len(m) == 0 {
		return false
	}
	for other := range p {
		if m.sameButMoved(norm, other) {
			return true
		}
	}
	return false
}
