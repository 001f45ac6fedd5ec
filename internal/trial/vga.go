package trial

import (
	"context"
	"fmt"
	"strconv"
	"strings"
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
