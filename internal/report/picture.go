package report

import (
	"cmp"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/ondisk"
)

// state is the state of a column of a picture: the highest state of the segments in it.
type state int

const (
	free state = iota
	extended
	reserved // not judged
	aligned
	below
	misaligned
)

// glyphs holds the character and the color of each state.
var glyphs = [...]struct {
	character string
	color     Color
}{
	free: {".", Gray}, extended: {"-", Gray}, reserved: {"=", Gray}, aligned: {"#", Green}, below: {"+", Yellow},
	misaligned: {"X", Red},
}

// states maps the verdicts of partitions to states. A partition without a verdict is shown as extended.
var states = map[align.Verdict]state{
	align.Misaligned: misaligned, align.BelowBoundary: below, align.Aligned: aligned,
	align.NothingToJudge: extended, "": extended,
}

// stateOf returns the state of a partition. A partition with a volume that is not judged has a state of its own.
func stateOf(p Partition) state {
	if p.Unjudged != "" && p.Volume != nil {
		return reserved
	}
	return states[p.Verdict]
}

// segment is a range of a disk with one state, in bytes.
type segment struct {
	off, len       int64
	state          state
	number         int // of the partition, 0 outside of partitions
	columns, least int
	rest           int64 // remainder of the division for columns; the largest remainder is rounded up first
}

// segments divides a disk into partitions, extended and free space. It cuts partitions of a broken table that overlap
// others or exceed the disk, possibly to nothing.
func segments(d Disk) (out []segment) {
	sorted := slices.Clone(d.Partitions)
	slices.SortStableFunc(sorted, func(a, b Partition) int { return cmp.Compare(a.Start, b.Start) })
	// A GPT can have 16,384 partitions; extended ones are rare.
	boxes := slices.DeleteFunc(slices.Clone(sorted), func(p Partition) bool { return stateOf(p) != extended })
	at := int64(0)
	add := func(end int64, s state, number int) {
		if end > at || number > 0 {
			out = append(out, segment{off: at, len: end - at, state: s, number: number})
			at = end
		}
	}
	fill := func(to int64) {
		for _, b := range boxes {
			add(min(b.Start, to), free, 0)
			add(b.Start+min(b.Size, to-b.Start), extended, 0)
		}
		add(to, free, 0)
	}
	for _, p := range sorted {
		if s := stateOf(p); s != extended {
			fill(min(max(p.Start, at), d.Size))
			add(max(at, p.Start+min(p.Size, d.Size-p.Start)), s, p.Number)
		}
	}
	fill(d.Size)
	return out
}

// share divides the columns among the segments. Segments too small for a column get one while there are enough columns:
// first partitions, then gaps. It returns false if there are more partitions than columns.
func share(segs []segment, size int64, columns int) bool {
	left, needed := columns, 0
	for i := range segs {
		s := &segs[i]
		s.columns, s.rest = scale(s.len, size, columns)
		if s.number > 0 || len(segs) <= columns {
			s.least = 1
		}
		if s.columns < s.least {
			s.columns, s.rest = s.least, 0
		}
		left -= s.columns
		needed += s.least
	}
	if needed > columns {
		return false
	}
	for ; left > 0; left-- {
		s := most(segs, func(s segment) int64 { return s.rest })
		s.columns++
		s.rest = 0
	}
	for ; left < 0; left++ {
		most(segs, func(s segment) int64 { return int64(s.columns * min(s.columns-s.least, 1)) }).columns--
	}
	return true
}

// most returns the first segment with the highest value.
func most(segs []segment, value func(s segment) int64) *segment {
	best := 0
	for i, s := range segs {
		if value(s) > value(segs[best]) {
			best = i
		}
	}
	return &segs[best]
}

// scale returns n*columns/size and the remainder; n is at most size.
func scale(n, size int64, columns int) (int, int64) {
	hi, lo := bits.Mul64(ondisk.U64(n), ondisk.U64(int64(columns)))
	q, r := bits.Div64(hi, lo, ondisk.U64(max(size, 1)))
	return int(ondisk.I64(q)), ondisk.I64(r)
}

// crowded returns one segment per column, for a disk with more partitions than columns. Each has the worst state of the
// segments in its column.
func crowded(segs []segment, size int64, columns int) []segment {
	out := slices.Repeat([]segment{{columns: 1}}, columns)
	for _, s := range segs {
		first, _ := scale(s.off, size, columns)
		last, _ := scale(s.off+max(s.len, 1)-1, size, columns)
		for i := min(first, columns-1); i <= min(last, columns-1); i++ {
			out[i].state = max(out[i].state, s.state)
		}
	}
	return out
}

// key records the states for the legend of a picture.
type key struct {
	seen    [misaligned + 1]bool
	crowded bool
}

// bar draws a disk in a number of columns.
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
		b.WriteString(t.stretch(s.state, label, s.columns))
	}
	return b.String()
}

// stretch draws a label, padded with glyphs to a number of columns.
func (t *Text) stretch(s state, label string, columns int) string {
	return t.Paint(glyphs[s].color, label+strings.Repeat(glyphs[s].character, columns-len(label)))
}

// picture draws disks to the same scale, one per line, with a legend.
func (t *Text) picture(disks []Disk, names ...string) {
	const least = 16 // fewer columns show nothing useful
	indent, largest, partitions := 0, int64(0), 0
	for i, d := range disks {
		indent, largest, partitions = max(indent, len(names[i])), max(largest, d.Size),
			max(partitions, len(d.Partitions))
	}
	if partitions == 0 || largest == 0 {
		return
	}
	columns := max(cmp.Or(t.Columns, 80)-indent-4, least)
	t.printf("\n")
	var k key
	for i, d := range disks {
		own, _ := scale(d.Size, largest, columns)
		t.printf("  %-*s[%s]\n", indent, names[i], t.bar(d, max(own, 1), &k))
	}
	t.legend(k, disks[0].Boundary, columns+indent+4)
}

// legend explains the characters in use, in lines of at most columns characters.
func (t *Text) legend(k key, boundary align.Boundary, columns int) {
	words := [...]string{"free", "extended", "not judged", "aligned", "off " + boundary.String(), "off 4K"}
	at := 0
	for s := misaligned; s >= free; s-- {
		if !k.seen[s] {
			continue
		}
		n, lead := len(words[s])+5, "   "
		switch {
		case at == 0:
			lead = "  "
		case at+n > columns:
			lead, at = "\n  ", 0
		}
		t.printf("%s%s %s", lead, t.stretch(s, "", 1), words[s])
		at += n
	}
	t.printf("\n")
	if k.crowded {
		t.printf("  ")
		t.Para(2, "There are more partitions than columns: each column shows its worst partition.")
	}
}
