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

// cell is one column of a picture.
type cell struct {
	state state
	label byte // of the number of a partition, 0 for none
}

// cells draws the partitions of a disk into so many columns. A start is rounded up, so that a gap in front shows. Each partition gets a
// column, and moves on for that if need be; where there are more of them than columns, each column shows the worst of those in it.
func cells(d Disk, columns int) (out []cell, crowded bool) {
	column := func(off int64) int {
		n, rest := scale(min(max(off, 0), d.Size), d.Size, columns)
		return n + int(min(rest, 1))
	}
	out = make([]cell, columns)
	var solid []Partition
	for _, p := range d.Partitions {
		if stateOf(p) != extended {
			solid = append(solid, p)
			continue
		}
		for i := column(p.Start); i < column(p.Start+min(p.Size, d.Size)); i++ {
			out[i].state = extended
		}
	}
	slices.SortStableFunc(solid, func(a, b Partition) int { return cmp.Compare(a.Start, b.Start) })
	crowded = len(solid) > columns
	for i, next := 0, 0; i < len(solid); i++ {
		p, last := solid[i], columns-len(solid)+i // leaves a column to each that follows
		if crowded {
			next, last = 0, columns-1
		}
		first := min(max(column(p.Start), next), last)
		next = min(max(column(p.Start+min(p.Size, d.Size)), first+1), last+1)
		for c := first; c < next; c++ {
			out[c].state = max(out[c].state, stateOf(p))
		}
		if n := strconv.Itoa(p.Number); !crowded && len(n) < next-first {
			for c := range len(n) {
				out[first+c].label = n[c]
			}
		}
	}
	return out, crowded
}

// bar is a disk in so many columns.
func (t *Text) bar(d Disk, columns int, k *key) string {
	all, crowded := cells(d, columns)
	k.crowded = k.crowded || crowded
	var b strings.Builder
	for from, to := 0, 0; from < len(all); from = to {
		var run strings.Builder
		for ; to < len(all) && all[to].state == all[from].state; to++ {
			if all[to].label != 0 {
				run.WriteByte(all[to].label)
			} else {
				run.WriteString(t.glyph(all[to].state))
			}
		}
		k.seen[all[from].state] = true
		b.WriteString(t.paint(glyphs[all[from].state].color, run.String()))
	}
	return b.String()
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
