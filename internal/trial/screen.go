package trial

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/trueup/trueup/internal/ondisk"
)

// Registers of a VGA. Spec: IBM VGA, as in QEMU's hw/display/vga_regs.h.
const (
	portMisc      = 0x3CC // bit 0 on read: the CRTC uses colour ports
	portGraphics  = 0x3CE
	graphicsMisc  = 6 // bit 0 for graphics; bits 2 and 3 for the window of the memory
	portCRTC      = 0x3D4
	portCRTCMono  = 0x3B4
	crtcColumns   = 0x01 // minus one
	crtcOverflow  = 0x07 // bit 1 and 6: bits 8 and 9 of the last line
	crtcCell      = 0x09 // bits 0 to 4: height of a cell, minus one
	crtcStartHigh = 0x0C // cell at the upper left
	crtcStartLow  = 0x0D
	crtcLastLine  = 0x12
	crtcPitch     = 0x13 // pairs of cells from line to line
)

// Windows of the text memory, in bits 2 and 3 of graphicsMisc. The other two are for graphics and fonts.
const (
	windowMono   = 2
	windowColour = 3
	textMono     = 0xB0000
	textColour   = 0xB8000
	textWindow   = 32 << 10
)

// vga reads registers through the monitor while the machine is stopped, and restores the index of each port.
type vga struct {
	monitor *QMP
	err     error
}

// in reads a port. With a nonnegative index it reads that register of an index port.
func (v *vga) in(ctx context.Context, port, index int) int {
	if v.err != nil {
		return 0
	}
	line := fmt.Sprintf("i /b %#x", port)
	if index >= 0 {
		line += fmt.Sprintf(".%d", index)
	}
	var text string
	if text, v.err = v.monitor.human(ctx, line); v.err != nil {
		return 0
	}
	// "portb[0x03cf] = 0x0e"
	_, value, _ := strings.Cut(strings.TrimSpace(text), "= 0x")
	n, err := strconv.ParseUint(value, 16, 8)
	if err != nil {
		v.err = fmt.Errorf("%w: %s: %.80q", errNoQMP, line, text)
	}
	return int(n)
}

// registers reads registers of an index port and restores its index.
func (v *vga) registers(ctx context.Context, port int, indexes ...int) map[int]int {
	was := v.in(ctx, port, -1)
	all := map[int]int{}
	for _, i := range indexes {
		all[i] = v.in(ctx, port, i)
	}
	v.in(ctx, port, was)
	return all
}

// geometry is the place of the cells of a text screen in memory.
type geometry struct {
	window, columns, rows, start, pitch int
}

// text returns the place of the text, or false in graphics and while a font is loaded. It must not access memory in
// graphics: a read changes the latches of the guest. Before the BIOS sets a mode there are no rows.
func (v *vga) text(ctx context.Context) (geometry, bool) {
	misc := v.registers(ctx, portGraphics, graphicsMisc)[graphicsMisc]
	g := geometry{window: textColour}
	if misc == 0 {
		return geometry{}, v.err == nil
	}
	switch misc >> 2 & 3 {
	case windowMono:
		g.window = textMono
	case windowColour:
	default:
		return g, false
	}
	if misc&1 != 0 {
		return g, false
	}
	port := portCRTC
	if v.in(ctx, portMisc, -1)&1 == 0 {
		port = portCRTCMono
	}
	r := v.registers(ctx, port, crtcColumns, crtcOverflow, crtcCell, crtcStartHigh, crtcStartLow, crtcLastLine,
		crtcPitch)
	lines := 1 + (r[crtcLastLine] | r[crtcOverflow]&0x02<<7 | r[crtcOverflow]&0x40<<3)
	g.columns = min(r[crtcColumns]+1, maxColumns)
	g.rows = min(lines/(r[crtcCell]&0x1F+1), maxRows)
	g.start = r[crtcStartHigh]<<8 | r[crtcStartLow]
	g.pitch = 2 * r[crtcPitch]
	return g, v.err == nil
}

// screen returns the lines of a text screen: nil in graphics, empty before there is a screen. The machine must be
// stopped.
func (v *vga) screen(ctx context.Context) ([]string, error) {
	g, ok := v.text(ctx)
	if !ok {
		return nil, v.err
	}
	if g.rows == 0 {
		return []string{}, nil
	}
	cells, err := v.cells(ctx, g)
	if err != nil {
		return nil, err
	}
	lines := make([]string, g.rows)
	for row := range lines {
		var line strings.Builder
		for column := range g.columns {
			at := (g.start + row*g.pitch + column) % (textWindow / 2)
			line.WriteRune(codePage437(byte(cells[at] & 0xFF)))
		}
		lines[row] = strings.TrimRight(line.String(), " ")
	}
	return lines, nil
}

// cells reads the part of the text window that the screen can use: character and attribute of each cell.
func (v *vga) cells(ctx context.Context, g geometry) ([]uint16, error) {
	cells := make([]uint16, textWindow/2)
	first, count := g.start%len(cells), g.rows*g.pitch+g.columns
	if first+count > len(cells) { // it wraps
		first, count = 0, len(cells)
	}
	line := fmt.Sprintf("xp /%dhx %#x", count, g.window+2*first)
	text, err := v.monitor.human(ctx, line)
	if err != nil {
		return nil, err
	}
	// "00000000000b8000: 0x0753 0x0765"
	at := first
	for row := range strings.Lines(text) {
		_, values, _ := strings.Cut(row, ":")
		for value := range strings.FieldsSeq(values) {
			n, err := strconv.ParseUint(value, 0, 16)
			if err != nil || at >= len(cells) {
				return nil, fmt.Errorf("%w: %s: %.80q", errNoQMP, line, row)
			}
			cells[at] = uint16(n)
			at++
		}
	}
	if at != first+count {
		return nil, fmt.Errorf("%w: %s: %d cells", errNoQMP, line, at-first)
	}
	return cells, nil
}

// highCharacters lists the characters of code page 437 above ASCII. Spec: IBM CP437, as in Unicode's CP437.TXT.
var highCharacters = []rune("ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»" +
	"░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■ ")

// lowCharacters lists the glyphs below the space, which menus draw with.
var lowCharacters = []rune(" ☺☻♥♦♣♠•◘○◙♂♀♪♫☼►◄↕‼¶§▬↨↑↓→←∟↔▲▼")

// codePage437 returns the character of a cell in the BIOS font. A guest can have loaded another font.
func codePage437(b byte) rune {
	switch {
	case int(b) < len(lowCharacters):
		return lowCharacters[b]
	case b == 0x7F:
		return '⌂'
	case b < 0x80:
		return rune(b)
	}
	return highCharacters[b-0x80]
}

// alphabet names the glyphs of text painted in graphics, such as on a Linux console. Glyphs of known fonts are named by
// their characters. Other names are arbitrary, but two runs share them for the same glyphs.
type alphabet map[[glyphHeight]byte]rune

// Console characters have the size of VGA characters. Source: Linux lib/fonts/font_8x16.c, the default.
const (
	glyphWidth  = 8
	glyphHeight = 16
	maxGlyphs   = 400 // of one screen: text has fewer distinct characters than an image has distinct cells
)

// Arbitrary names come from a private plane of Unicode, without its last two code points, which are noncharacters.
const (
	firstName   = 0xF0000
	maxAlphabet = 0xFFFE
)

// read returns the lines of a screen of painted text, or nil if the screen is no text.
func (a alphabet) read(p *image.RGBA) []string {
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

// readable reports whether a line contains known characters only.
func readable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r >= firstName })
}

// name returns the name of the glyph in a cell, and a blank for a cell of one colour. It returns false if the cell has
// more than two colours.
func (a alphabet) name(p *image.RGBA, x, y int) (rune, bool) {
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

// bar reports whether a glyph consists of full rows, like a cursor.
func bar(shape [glyphHeight]byte) bool {
	for _, row := range shape {
		if row != 0 && row != 0xFF {
			return false
		}
	}
	return true
}

// forgetTimes blanks the digits of the timestamps of a kernel log in an unknown font, "[    1.234567] ". At least three
// rows must share the brackets and the point. Source: Linux kernel/printk/printk.c, print_time.
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

// characters maps glyphs of the console fonts in fonts.json to characters: by the CRC-32 of the 16 rows of each glyph,
// from '!' to '~'.
var characters = sync.OnceValue(func() map[string]rune {
	all := map[string]rune{}
	for _, font := range ondisk.Embedded[[]struct {
		About string
		Sums  []string
	}](fontsText) {
		for n, sum := range font.Sums {
			all[sum] = '!' + rune(n)
		}
	}
	return all
})

//go:embed fonts.json
var fontsText []byte

// character returns the character of a glyph in a known font.
func character(shape [glyphHeight]byte) (rune, bool) {
	r, ok := characters()[fmt.Sprintf("%08x", crc32.ChecksumIEEE(shape[:]))]
	return r, ok
}

// decode decodes a screen of a film, which is an opaque true-colour PNG of this program.
func decode(b []byte) (*image.RGBA, error) {
	p, err := png.Decode(bytes.NewReader(b))
	if rgba, ok := p.(*image.RGBA); ok {
		return rgba, nil
	}
	return nil, cmp.Or(err, ondisk.ErrFormat)
}

// cell is the side of the squares for comparing images, in pixels.
const cell = 8

// grid is an image in cells, with a mark for each.
type grid struct {
	w, h int
	set  []bool
}

// visible is the smallest difference of a colour channel that counts. Smaller ones are rounding.
const visible = 16

// changed returns the cells in which two images of one size differ, and the number of differing pixels.
func changed(a, b *image.RGBA) (g grid, pixels int) {
	size := a.Bounds().Size()
	w, h := (size.X+cell-1)/cell, (size.Y+cell-1)/cell
	g = grid{w, h, make([]bool, w*h)}
	for y := range size.Y {
		p, q := a.Pix[y*a.Stride:][:4*size.X], b.Pix[y*b.Stride:][:4*size.X]
		if bytes.Equal(p, q) {
			continue
		}
		for x := range size.X {
			if far(p[4*x:4*x+3], q[4*x:4*x+3]) {
				g.set[y/cell*g.w+x/cell] = true
				pixels++
			}
		}
	}
	return g, pixels
}

func far(p, q []byte) bool {
	for i, v := range p {
		if d := int(v) - int(q[i]); d > visible || d < -visible {
			return true
		}
	}
	return false
}

// areas returns the bounds of groups of adjacent marked cells, in pixels. Two cells with one other cell between them in
// a row count as adjacent too.
func (g grid) areas() (out []image.Rectangle) {
	left := grid{g.w, g.h, slices.Clone(g.set)}
	for start := range left.set {
		if left.set[start] {
			out = append(out, left.takeArea(start))
		}
	}
	return out
}

// takeArea clears the group of the marked cell start, and returns its bounds.
func (g grid) takeArea(start int) (box image.Rectangle) {
	g.set[start] = false
	for open := []int{start}; len(open) > 0; {
		x, y := open[len(open)-1]%g.w, open[len(open)-1]/g.w
		open = open[:len(open)-1]
		box = box.Union(image.Rect(x*cell, y*cell, (x+1)*cell, (y+1)*cell))
		for ny := max(y-1, 0); ny <= min(y+1, g.h-1); ny++ {
			for nx := max(x-2, 0); nx <= min(x+2, g.w-1); nx++ {
				if n := ny*g.w + nx; g.set[n] {
					g.set[n] = false
					open = append(open, n)
				}
			}
		}
	}
	return box
}

// near reports whether two screens differ in no more than most areas, none larger than size.
func near(a, b *image.RGBA, most int, size image.Point) bool {
	if a.Bounds() != b.Bounds() {
		return false
	}
	g, _ := changed(a, b)
	all := g.areas()
	return len(all) <= most && !slices.ContainsFunc(all, func(r image.Rectangle) bool {
		return r.Dx() > size.X || r.Dy() > size.Y
	})
}

// cursor is the largest area of a cursor.
var cursor = image.Pt(3*cell, 4*cell)

// sameScreen reports whether two screens differ at most in a clock and a cursor. On a text screen only a cursor may
// differ, because each character of text counts.
func sameScreen(a, b *image.RGBA) bool {
	clock := cursor
	if size := a.Bounds().Size(); !console(a) && !console(b) {
		clock = image.Pt(max(size.X/6, cursor.X), max(size.Y/20, cursor.Y))
	}
	return near(a, b, 2, clock)
}

// colours returns the number of colours in an image, up to most+1.
func colours(p *image.RGBA, most int) int {
	seen := map[color.RGBA]bool{}
	var before color.RGBA
	size := p.Bounds().Size()
	for y := range size.Y {
		row := p.Pix[y*p.Stride:][:4*size.X]
		for x := range size.X {
			c := color.RGBA{row[4*x], row[4*x+1], row[4*x+2], row[4*x+3]}
			if c == before && len(seen) > 0 {
				continue
			}
			before = c
			if seen[c] = true; len(seen) > most {
				return len(seen)
			}
		}
	}
	return len(seen)
}

// console reports whether an image may be painted text, because it has few colours.
func console(p *image.RGBA) bool { return colours(p, 16) <= 16 }

// plain reports whether an image is empty, with one colour and at most a cursor.
func plain(p *image.RGBA) bool {
	n := colours(p, 2)
	if n > 2 {
		return false
	}
	blank := image.NewRGBA(p.Bounds())
	draw.Draw(blank, blank.Bounds(), image.NewUniform(p.At(p.Bounds().Max.X-1, p.Bounds().Max.Y-1)), image.Point{},
		draw.Src)

	return near(p, blank, 1, cursor)
}

// screens returns the differences between the last screens of two runs.
func screens(b, a *side) (out []Difference) {
	bPicture, aPicture := b.picture, a.picture
	switch {
	case bPicture == nil && aPicture == nil:
		return differing(OnScreen, b.final, a.final, b.seen, a.seen)
	case bPicture == nil || aPicture == nil:
		return []Difference{{Where: OnScreen, Before: b.endState(), After: a.endState()}}
	case bPicture.Bounds() != aPicture.Bounds():
		return []Difference{{
			Where: Picture, Before: b.endState(), After: a.endState(), Share: 1, Area: area(aPicture.Bounds()),
		}}
	}
	same := sameScreen(bPicture, aPicture)
	if len(b.final) > 0 && len(a.final) > 0 { // both are painted text
		texts := differing(OnScreen, b.final, a.final, b.seen, a.seen)
		if texts == nil {
			return nil
		}
		same = near(bPicture, aPicture, 0, cursor) // each character counts
		for _, d := range texts {
			if readable(d.Before + d.After) {
				out = append(out, d)
			}
		}
	}
	if same {
		return nil
	}
	g, pixels := changed(bPicture, aPicture)
	size := aPicture.Bounds().Size()
	share := float64(pixels) / float64(size.X*size.Y)
	for _, r := range g.areas() {
		out = append(out, Difference{Where: Picture, Area: area(r.Intersect(aPicture.Bounds())), Share: share})
	}
	return out
}

func area(r image.Rectangle) *Area { return &Area{r.Min.X, r.Min.Y, r.Dx(), r.Dy()} }

// maxPixels limits a screen: 2560 by 1600 fit.
const maxPixels = 4 << 20

// decodePPM decodes the output of QEMU's screendump: a binary PPM of 8 bits without comments. Spec: netpbm, ppm(5).
func decodePPM(b []byte) (*image.RGBA, error) {
	head := make([]int, 0, 3) // width, height, highest value
	rest, found := bytes.CutPrefix(b, []byte("P6\n"))
	for found && len(head) < 3 {
		end := bytes.IndexAny(rest, " \n")
		if end < 0 {
			break
		}
		n, err := strconv.ParseUint(string(rest[:min(end, 6)]), 10, 16)
		if err != nil {
			break
		}
		head, rest = append(head, int(n)), rest[end+1:]
	}
	if len(head) < 3 || head[2] != 255 {
		return nil, ondisk.Field("PPM picture", "header", 0, b[:min(len(b), 16)], "P6, width, height, 255")
	}
	width, height := head[0], head[1]
	if pixels := int64(width) * int64(height); pixels == 0 || pixels > maxPixels || int64(len(rest)) != 3*pixels {
		return nil, ondisk.Field("PPM picture", "length", 0, len(rest),
			"3 bytes for each pixel, and 4 Mi pixels at most")
	}
	p := image.NewRGBA(image.Rect(0, 0, width, height))
	for i := range width * height {
		copy(p.Pix[4*i:4*i+3], rest[3*i:])
		p.Pix[4*i+3] = 0xff
	}
	return p, nil
}
