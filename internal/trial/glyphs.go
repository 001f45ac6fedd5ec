package trial

import (
	"image"
	"strings"
)

// alphabet names the glyphs of text that guests paint in graphics, as a Linux console does. Those of known fonts are
// their characters. The names of others mean nothing, but two runs have the same names for the same glyphs.
type alphabet map[[glyphHeight]byte]rune

// A console paints characters of the size that VGA has. Source: Linux lib/fonts/font_8x16.c, the default.
const (
	glyphWidth  = 8
	glyphHeight = 16
	maxGlyphs   = 400 // of one screen: text has fewer characters than a picture has different cells
)

// Names are in a private plane of Unicode, whose last two code points are no characters.
const (
	firstName   = 0xF0000
	maxAlphabet = 0xFFFE
)

// read returns the lines of a screen that shows text in cells of that size, or nil.
func (a alphabet) read(p *image.NRGBA) []string {
	size := p.Bounds().Size()
	if size.X%glyphWidth != 0 || !console(p) {
		return nil
	}
	rows := make([][]rune, size.Y/glyphHeight)
	used, filled := map[rune]bool{}, 0
	for y := range rows {
		rows[y] = make([]rune, size.X/glyphWidth)
		for x := range rows[y] {
			name, ok := a.name(p, x*glyphWidth, y*glyphHeight)
			if !ok {
				return nil // more than two colours in a cell
			}
			if rows[y][x] = name; name != ' ' {
				used[name] = true
				filled++
			}
		}
	}
	if len(used) > maxGlyphs || filled < 3 || len(used) > 20 && len(used) > filled*2/3 {
		return nil
	}
	forgetTimes(rows)
	out := make([]string, len(rows))
	for y, row := range rows {
		out[y] = strings.TrimRight(string(row), " ")
	}
	return joined(out, size.X/glyphWidth)
}

// readable reports whether a line has known characters only.
func readable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r >= firstName })
}

// name returns the name of the glyph in a cell, a blank for a cell of one colour. False: the cell has more than two
// colours.
func (a alphabet) name(p *image.NRGBA, x, y int) (rune, bool) {
	var shape [glyphHeight]byte
	ground := [3]byte(p.Pix[y*p.Stride+4*x:])
	ink, inked := ground, false
	for dy := range glyphHeight {
		for dx := range glyphWidth {
			c := [3]byte(p.Pix[(y+dy)*p.Stride+4*(x+dx):])
			switch {
			case c == ground:
				continue
			case !inked:
				ink, inked = c, true
			case c != ink:
				return 0, false
			}
			shape[dy] |= 0x80 >> dx
		}
	}
	if r, ok := character(shape); ok {
		return r, true
	}
	if !inked || bar(shape) {
		return ' ', true
	}
	if _, ok := a[shape]; !ok && len(a) == maxAlphabet {
		return 0, false
	} else if !ok {
		a[shape] = firstName + rune(len(a)) //nolint:gosec // at most maxAlphabet
	}
	return a[shape], true
}

// bar reports whether a glyph is made of whole lines, as a cursor is.
func bar(shape [glyphHeight]byte) bool {
	for _, row := range shape {
		if row != 0 && row != 0xFF {
			return false
		}
	}
	return true
}

// forgetTimes removes the digits of the times in a kernel log of an unknown font, "[    1.234567] ", where three rows
// and more have the brackets and the point. Source: Linux kernel/printk/printk.c, print_time.
func forgetTimes(rows [][]rune) {
	const open, point, shut, digits = 0, 6, 13, 15
	counts := map[[3]rune][]int{}
	for y, row := range rows {
		if len(row) > digits && row[open] >= firstName && row[point] != ' ' && row[shut] != ' ' && row[shut+1] == ' ' {
			key := [3]rune{row[open], row[point], row[shut]}
			counts[key] = append(counts[key], y)
		}
	}
	for _, found := range counts {
		if len(found) < 3 {
			continue
		}
		for _, y := range found {
			for x := open + 1; x < shut; x++ {
				rows[y][x] = ' '
			}
		}
	}
}
