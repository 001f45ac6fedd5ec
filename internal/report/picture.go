package report

import (
	"cmp"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// state is what a column of a picture shows, the one to show first when several share a column last.
type state int

const (
	free state = iota
	extended
	aligned
	below
	misaligned
)

// glyphs show a state on a terminal that has block characters, and on any other.
var glyphs = [...]struct {
	block, plain string
	color        text.Color
}{
	free: {"·", ".", text.FgHiBlack}, extended: {"─", "-", text.FgHiBlack}, aligned: {"█", "#", text.FgGreen},
	below: {"▒", "+", text.FgYellow}, misaligned: {"▚", "X", text.FgRed},
}

// segment is a stretch of a disk with one state. Bytes.
type segment struct {
	off, len int64
	state    state
	number   int // of the partition, 0 for none
	columns  int
}

func stateOf(p Partition) state {
	switch p.Verdict {
	case align.Misaligned:
		return misaligned
	case align.BelowBoundary:
		return below
	case align.Aligned:
		return aligned
	case align.NothingToJudge:
	}
	return extended
}

// segments cuts a disk into partitions and what lies between. A partition of a broken table that overlaps another or
// lies beyond the end of the disk is cut, down to nothing.
func segments(d Disk) []segment {
	var solid, boxes []Partition
	for _, p := range d.Partitions {
		if stateOf(p) == extended {
			boxes = append(boxes, p)
		} else {
			solid = append(solid, p)
		}
	}
	for _, ps := range [][]Partition{solid, boxes} {
		slices.SortStableFunc(ps, func(a, b Partition) int { return cmp.Compare(a.Start, b.Start) })
	}
	var out []segment
	at := int64(0)
	for _, p := range solid {
		start := min(max(p.Start, at), d.Size)
		end := start
		if p.Start < d.Size {
			end = max(start, p.Start+min(p.Size, d.Size-p.Start))
		}
		out = append(out, between(at, start, boxes)...)
		out = append(out, segment{off: start, len: end - start, state: stateOf(p), number: p.Number})
		at = end
	}
	return append(out, between(at, d.Size, boxes)...)
}

// between cuts what no partition has into extended and free space.
func between(from, to int64, boxes []Partition) []segment {
	var out []segment
	add := func(end int64, s state) {
		if end > from {
			out = append(out, segment{off: from, len: end - from, state: s})
			from = end
		}
	}
	for _, b := range boxes {
		if b.Start < to {
			add(b.Start, free)
			add(min(b.Start+min(b.Size, to-b.Start), to), extended)
		}
	}
	add(to, free)
	return out
}

// share gives each segment its part of the columns. What is too small for one gets one as long as there are enough:
// first partitions, then gaps. False: there are more partitions than columns.
func share(segs []segment, size int64, columns int) bool {
	partitions := 0
	for _, s := range segs {
		if s.number > 0 {
			partitions++
		}
	}
	if partitions > columns || size <= 0 {
		return false
	}
	gaps := len(segs) <= columns
	rest := make([]uint64, len(segs)) // of the division, for those that may be rounded up
	least := make([]int, len(segs))
	left := columns
	for i := range segs {
		s := &segs[i]
		s.columns, rest[i] = scale(s.len, size, columns)
		if gaps || s.number > 0 {
			least[i] = 1
		}
		if s.columns < least[i] {
			s.columns, rest[i] = least[i], 0
		}
		left -= s.columns
	}
	for ; left > 0; left-- {
		i := slices.Index(rest, slices.Max(rest))
		segs[i].columns++
		rest[i] = 0
	}
	for ; left < 0; left++ {
		widest(segs, least).columns--
	}
	return true
}

// widest is the segment that can best spare a column.
func widest(segs []segment, least []int) *segment {
	best := -1
	for i, s := range segs {
		if s.columns > least[i] && (best < 0 || s.columns > segs[best].columns) {
			best = i
		}
	}
	return &segs[best]
}

// scale is n*columns/size and the rest; n is at most size.
func scale(n, size int64, columns int) (int, uint64) {
	hi, lo := bits.Mul64(ondisk.U64(n), ondisk.U64(int64(columns)))
	q, r := bits.Div64(hi, lo, ondisk.U64(size))
	return int(ondisk.I64(q)), r
}

// key is what the explanation of a picture must say.
type key struct {
	seen    map[state]bool
	crowded bool
}

// bar is a disk in so many columns.
func (t *Text) bar(d Disk, columns int, k *key) string {
	segs := segments(d)
	if !share(segs, d.Size, columns) {
		segs, k.crowded = crowded(segs, d.Size, columns), true
	}
	var b strings.Builder
	for _, s := range segs {
		if s.columns == 0 {
			continue
		}
		k.seen[s.state] = true
		label := ""
		if n := strconv.Itoa(s.number); s.number > 0 && len(n) < s.columns {
			label = n
		}
		b.WriteString(t.paint(glyphs[s.state].color, label+strings.Repeat(t.glyph(s.state), s.columns-len(label))))
	}
	return b.String()
}

// crowded shows more partitions than columns: each column has the worst of what lies in it.
func crowded(segs []segment, size int64, columns int) []segment {
	out := make([]segment, columns)
	for i := range out {
		out[i].columns = 1
	}
	for _, s := range segs {
		if size <= 0 {
			break
		}
		first, _ := scale(s.off, size, columns)
		last, _ := scale(s.off+max(s.len, 1)-1, size, columns)
		for i := min(first, columns-1); i <= min(last, columns-1); i++ {
			out[i].state = max(out[i].state, s.state)
		}
	}
	return out
}

func (t *Text) glyph(s state) string {
	if t.Unicode {
		return glyphs[s].block
	}
	return glyphs[s].plain
}

// picture draws disks to one scale, one line each, and explains the characters.
func (t *Text) picture(disks []Disk, names ...string) {
	const least = 16 // columns that still show something
	indent, largest, partitions := 0, int64(0), 0
	for i, d := range disks {
		indent, largest, partitions = max(indent, len(names[i])), max(largest, d.Size), max(partitions, len(d.Partitions))
	}
	columns := t.Columns
	if columns == 0 {
		columns = 80
	}
	columns = max(columns-indent-4, least)
	if partitions == 0 || largest == 0 {
		return
	}
	open, closed := "[", "]"
	if t.Unicode {
		open, closed = "▕", "▏"
	}
	t.printf("\n")
	k := key{seen: map[state]bool{}}
	for i, d := range disks {
		own, _ := scale(d.Size, largest, columns)
		t.printf("  %-*s%s%s%s\n", indent, names[i], open, t.bar(d, max(own, 1), &k), closed)
	}
	t.legend(k, disks[0].Boundary, columns+indent+4)
}

// legend explains the characters in use, in lines that fit.
func (t *Text) legend(k key, boundary int64, columns int) {
	words := map[state]string{
		misaligned: "off 4K", below: "off " + units.Short(boundary), aligned: "aligned", extended: "extended", free: "free",
	}
	at := 0
	add := func(glyph state, word string) {
		n := len(word) + 5
		if at > 0 && at+n > columns {
			t.printf("\n")
			at = 0
		}
		if at == 0 {
			t.printf("  ")
		} else {
			t.printf("   ")
		}
		t.printf("%s %s", t.paint(glyphs[glyph].color, t.glyph(glyph)), word)
		at += n
	}
	for s := misaligned; s >= free; s-- {
		if k.seen[s] {
			add(s, words[s])
		}
	}
	t.printf("\n")
	if k.crowded {
		t.printf("  ")
		t.para(2, "There are more partitions than columns: each one shows the worst of those in it.")
	}
}
