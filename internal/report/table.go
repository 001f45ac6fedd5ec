package report

import (
	"fmt"
	"iter"
	"strings"
	"unicode"

	"golang.org/x/text/width"
)

// Color is how characters look on a terminal: the number of a rendition. Spec: ECMA-48, 8.3.117, SGR.
type Color int

// Colors.
const (
	Plain  Color = 0
	Bold   Color = 1
	Faint  Color = 2
	Red    Color = 31
	Green  Color = 32
	Yellow Color = 33
	Cyan   Color = 36
	Gray   Color = 90
)

// escape begins the sequence of a color, which ends with an m.
const escape = '\x1b'

// Paint colours words, where the output has colours.
func (t *Text) Paint(c Color, s string) string {
	if !t.Color {
		return s
	}
	return fmt.Sprintf("%c[%dm%s%c[%dm", escape, c, s, escape, Plain)
}

// cellsOf returns how many cells of a terminal a character takes: most take one, those of Chinese two, and those that
// join the character before none.
func cellsOf(r rune) int {
	if r >= ' ' && r <= '~' {
		return 1
	}
	switch kind := width.LookupRune(r).Kind(); {
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf, unicode.Cc):
		return 0
	case kind == width.EastAsianWide || kind == width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// Cells returns how many cells of a terminal a text takes, without its colors.
func Cells(s string) (n int) {
	painting := false
	for _, r := range s {
		switch {
		case r == escape:
			painting = true
		case painting:
			painting = r != 'm'
		default:
			n += cellsOf(r)
		}
	}
	return n
}

// Trim returns the longest beginning of a text without colors that fits into n cells.
func Trim(s string, n int) string {
	for i, r := range s {
		if n -= cellsOf(r); n < 0 {
			return s[:i]
		}
	}
	return s
}

// TrimLeft returns the longest end of a text without colors that fits into n cells.
func TrimLeft(s string, n int) string {
	over := Cells(s) - n
	for i, r := range s {
		if over <= 0 {
			return s[i:]
		}
		over -= cellsOf(r)
	}
	return ""
}

// Pad fills s with blanks up to n cells, in front or behind.
func Pad(s string, n int, right bool) string {
	blanks := strings.Repeat(" ", max(n-Cells(s), 0))
	if right {
		return blanks + s
	}
	return s + blanks
}

// Blanks in front of a row and between its columns, and the least width of a column that is folded, in cells.
const (
	margin      = " "
	between     = "  "
	leastFolded = 24
)

// Table prints rows below the names of their columns, without lines. > marks a column of numbers, which stand at its
// right, and < a last column that is folded within the width. Cells may have several lines. rows is read twice, since
// there can be tens of thousands of them.
func (t *Text) Table(rows iter.Seq[[]string], names ...string) {
	last := len(names) - 1
	right, widths := make([]bool, len(names)), make([]int, len(names))
	for n, name := range names {
		names[n], right[n] = strings.CutPrefix(name, ">")
	}
	var folds bool
	names[last], folds = strings.CutPrefix(names[last], "<")
	measure := func(row []string) {
		for n, cell := range row {
			for line := range strings.SplitSeq(cell, "\n") {
				widths[n] = max(widths[n], Cells(line))
			}
		}
	}
	measure(names)
	for row := range rows {
		measure(row)
	}
	if folds {
		widths[last] = 0
		if t.Width > 0 {
			left := t.Width - len(margin)
			for _, n := range widths[:last] {
				left -= n + len(between)
			}
			widths[last] = max(left, leastFolded)
		}
	}
	show := func(row []string) {
		if folds {
			row[last] = strings.Join(Fold(row[last], widths[last]), "\n")
		}
		t.row(row, widths, right)
	}
	show(names)
	for row := range rows {
		show(row)
	}
}

// row prints a row of a table.
func (t *Text) row(row []string, widths []int, right []bool) {
	cells, height := make([][]string, len(row)), 0
	for n, cell := range row {
		cells[n] = strings.Split(cell, "\n")
		height = max(height, len(cells[n]))
	}
	for i := range height {
		var line []string
		for n := range cells {
			cell := ""
			if i < len(cells[n]) {
				cell = cells[n][i]
			}
			line = append(line, Pad(cell, widths[n], right[n]))
		}
		t.printf("%s\n", strings.TrimRight(margin+strings.Join(line, between), " "))
	}
}
