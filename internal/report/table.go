package report

import (
	"fmt"
	"iter"
	"strings"
	"unicode"

	"golang.org/x/text/width"
)

// Color is the look of characters on a terminal: the number of a rendition. Spec: ECMA-48, 8.3.117, SGR.
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

// escape is the first character of a color sequence, which ends with an m.
const escape = '\x1b'

// Paint colors words if the output supports colors.
func (t *Text) Paint(c Color, s string) string {
	if !t.Color {
		return s
	}
	return fmt.Sprintf("%c[%dm%s%c[%dm", escape, c, s, escape, Plain)
}

// cellsOf returns the width of a character in terminal cells: one for most, two for Chinese, none for combining
// characters.
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

// Cells returns the width of a text in terminal cells, without its colors.
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

// Trim returns the longest prefix of a text that fits into n cells. The text must not have colors.
func Trim(s string, n int) string {
	for i, r := range s {
		if n -= cellsOf(r); n < 0 {
			return s[:i]
		}
	}
	return s
}

// TrimLeft returns the longest suffix of a text that fits into n cells. The text must not have colors.
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

// Pad pads s with blanks to n cells, on the left if right is set, else on the right.
func Pad(s string, n int, right bool) string {
	blanks := strings.Repeat(" ", max(n-Cells(s), 0))
	if right {
		return blanks + s
	}
	return s + blanks
}

// Blanks before a row and between its columns, and the least width of a folded column, in cells.
const (
	margin      = " "
	between     = "  "
	leastFolded = 24
)

// Table prints rows below the names of their columns, without lines. The prefix > marks a right-aligned column of
// numbers. The prefix < marks a last column that is folded to the width. Cells may have several lines. Table reads rows
// twice instead of storing them, since there can be tens of thousands.
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
