package trial

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
)

var white = color.RGBA{250, 250, 250, 255}

func black(w, h int) *image.RGBA {
	return with(image.NewRGBA(image.Rect(0, 0, w, h)), image.Rect(0, 0, w, h), color.RGBA{A: 255})
}

// desktop is a picture of many colours.
func desktop(w, h int) *image.RGBA {
	p := image.NewRGBA(image.Rect(0, 0, w, h))
	for y := range h {
		for x := range w {
			p.SetRGBA(x, y, color.RGBA{uint8(x / 4), uint8(y / 3), 120, 255})
		}
	}
	return p
}

func with(p *image.RGBA, r image.Rectangle, c color.Color) *image.RGBA {
	draw.Draw(p, r, image.NewUniform(c), image.Point{}, draw.Src)
	return p
}

// painted is a film of screens in graphics, which settled at the last.
func painted(screens ...*image.RGBA) *Film {
	f := shown()
	for n, p := range screens {
		var b bytes.Buffer
		if err := png.Encode(&b, p); err != nil {
			panic(err)
		}
		f.Frames = append(f.Frames, Frame{At: time.Duration(n) * time.Second, Picture: b.Bytes()})
	}
	return f
}

// filmed is a film of a BIOS and then of a screen in graphics.
func filmed(p *image.RGBA) *Film {
	f := painted(black(64, 64), p)
	f.Frames[0] = shown(bios).Frames[0]
	return f
}

// typed paints a text as a console does, in glyphs that random bits draw.
func typed(w, h int, rows ...string) *image.RGBA {
	p := black(w, h)
	for y, row := range rows {
		for x, r := range row {
			bits := rand.New(rand.NewPCG(uint64(r), 7))
			for at := 0; r != ' ' && at < glyphWidth*glyphHeight; at++ {
				dx, dy := at%glyphWidth, at/glyphWidth
				if r == '_' && dy > 13 || r != '_' && dx > 0 && dy > 1 && bits.IntN(2) == 0 {
					p.SetRGBA(x*glyphWidth+dx, y*glyphHeight+dy, white)
				}
			}
		}
	}
	return p
}

func TestPaintedText(t *testing.T) {
	t.Parallel()
	rows := func(edit func([]string) []string) *Film {
		all := []string{
			"[    0.000000] Linux version 6.1.0", "[    0.500000] Memory: 1024K", "[    0.700000] sda: sda1 sda2",
			"[    1.000000] EXT4-fs (sda1): mounted filesystem", "", "Debian GNU/Linux 12 debian tty1", "",
			"debian login: ",
		}
		return filmed(typed(480, 192, edit(all)...))
	}
	same := func(s []string) []string { return s }
	for name, c := range map[string]struct {
		edit func([]string) []string
		want Verdict
	}{
		"the same":   {same, Same},
		"the cursor": {func(s []string) []string { s[7] += "_"; return s }, Same},
		"other times": {func(s []string) []string {
			for n := range s {
				s[n] = strings.NewReplacer(" 0.5", " 0.9", " 0.7", " 1.8", " 1.0", " 2.4").Replace(s[n])
			}
			return s
		}, Same},
		"scrolled": {func(s []string) []string { return append([]string{"", ""}, s...) }, Same},
		"one word": {
			func(s []string) []string { s[2] = "[    0.700000] sda: sda1"; return s },
			Differs,
		},
		"one letter of each line": {func(s []string) []string { s[0], s[5] = s[0]+"x", s[5]+"y"; return s }, Differs},
		"an error below":          {func(s []string) []string { return append(s, "I/O error, dev sda") }, Differs},
		"an error instead of it": {
			func(s []string) []string { return append(s[:4], "Unable to mount root fs") },
			Differs,
		},
		"nothing but the first": {func(s []string) []string { return s[:1] }, Differs},
		"another number of a disk": {
			func(s []string) []string { s[2] = "[    0.700000] sda: sda1 sda3 sdb"; return s },
			Differs,
		},
	} {
		require.Equal(t, c.want, Compare(rows(same), rows(c.edit)).Verdict, name)
		require.Equal(t, c.want, Compare(rows(c.edit), rows(same)).Verdict, name)
	}
}

// Glyphs of known fonts are characters. Source: Linux lib/fonts/font_8x16.c; Lat15-Fixed16 of console-setup 1.221.
func TestKnownFonts(t *testing.T) {
	t.Parallel()
	require.Len(t, characters(), 2*('~'-'!'+1), "a glyph has two characters")
	for want, shapes := range map[rune][2][glyphHeight]byte{
		'!': {{0, 0, 0x18, 0x3c, 0x3c, 0x3c, 0x18, 0x18, 0x18, 0, 0x18, 0x18}, {
			0, 0, 0, 0, 0x08, 0x08, 0x08, 0x08,
			0x08, 0x08, 0x08, 0, 0x08, 0x08,
		}},
		'$': {
			{0x18, 0x18, 0x7c, 0xc6, 0xc2, 0xc0, 0x7c, 0x06, 0x06, 0x86, 0xc6, 0x7c, 0x18, 0x18},
			{0, 0, 0, 0, 0x08, 0x3e, 0x49, 0x48, 0x38, 0x0e, 0x09, 0x49, 0x3e, 0x08},
		},
		'(': {{0, 0, 0x0c, 0x18, 0x30, 0x30, 0x30, 0x30, 0x30, 0x30, 0x18, 0x0c}, {
			0, 0, 0, 0x04, 0x08, 0x08, 0x10,
			0x10, 0x10, 0x10, 0x10, 0x10, 0x08, 0x08, 0x04,
		}},
	} {
		for _, shape := range shapes {
			got, ok := character(shape)
			require.True(t, ok)
			require.Equal(t, string(want), string(got))
		}
	}
	_, ok := character([glyphHeight]byte{})
	require.False(t, ok)
}

// FuzzDecodePPM requires that what is decoded has exactly the pixels of its bytes.
func FuzzDecodePPM(f *testing.F) {
	f.Add([]byte("P6\n2 1\n255\nrgbRGB"))
	f.Add([]byte("P6\n65535 65535\n255\n"))
	f.Add([]byte("P6\n1 1\n65535\nrrggbb"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decodePPM(b)
		if err != nil {
			require.ErrorAs(t, err, new(*ondisk.FormatError))
			return
		}
		var png1 bytes.Buffer
		require.NoError(t, png.Encode(&png1, p))
		size := p.Bounds().Size()
		pixels := b[len(b)-3*size.X*size.Y:]
		for i := range min(size.X*size.Y, 1000) {
			want := color.RGBA{pixels[3*i], pixels[3*i+1], pixels[3*i+2], 255}
			require.Equal(t, want, p.At(i%size.X, i/size.X))
		}
	})
}

func TestDecodePPM(t *testing.T) {
	t.Parallel()
	p, err := decodePPM([]byte("P6\n1 2\n255\nabcABC"))
	require.NoError(t, err)
	require.Equal(t, []byte{'a', 'b', 'c', 255, 'A', 'B', 'C', 255}, p.Pix)
	for _, wrong := range []string{
		"", "P6\n", "P5\n1 1\n255\nabc", "P6\n1 1\n255\nab", "P6\n1 1\n255\nabcd", "P6\n0 1\n255\n",
		"P6\n-1 1\n255\nabc", "P6\n1\n255\nabc", "P6\n1 1\n65535\nabcabc", "P6\n65536 1\n255\nabc",
		"P6\n# c\n1 1\n255\nabc", fmt.Sprintf("P6\n%d %d\n255\n%s", 4097, 1024, make([]byte, 3*4097*1024)),
	} {
		_, err := decodePPM([]byte(wrong))
		require.ErrorAs(t, err, new(*ondisk.FormatError), "%.20q", wrong)
	}
}

func TestWordsOfAnEnd(t *testing.T) {
	t.Parallel()
	require.Equal(t, "QEMU failed", Broken.words())
	require.Equal(t, "time over", TimeOver.words())
}

// replies is a monitor whose commands get these answers in turn.
func replies(t testing.TB, texts []string) *QMP {
	t.Helper()
	var b bytes.Buffer
	for n, text := range texts {
		quoted, err := json.Marshal(text)
		require.NoError(t, err)
		fmt.Fprintf(&b, `{"id": %d, "return": %s}`+"\n", n+1, quoted)
	}
	return NewQMP(t.Context(), io.Discard, &b)
}

// registersOf are the answers to the questions of a screen: index and register of the graphics controller, the index
// again, the miscellaneous register, and those of the CRTC with its index around them.
func registersOf(graphics int, crtc ...int) (texts []string) {
	port := func(n int) string { return fmt.Sprintf("portb[0x0000] = %#02x\r\n", n) }
	texts = []string{port(5), port(graphics), port(0), port(0x67), port(15)}
	for _, n := range crtc {
		texts = append(texts, port(n))
	}
	return append(texts, port(0))
}

// The CRTC's registers of 80 columns and 25 rows, as the BIOS sets mode 3: columns, overflow, cell, start, last line,
// pitch. Spec: IBM VGA, mode 3+.
func mode3(start int) []string {
	return registersOf(0x0E, 0x4F, 0x1F, 0x4F, start>>8, start&0xFF, 0x8F, 0x28)
}

func TestTextScreen(t *testing.T) {
	t.Parallel()
	memory := slices.Repeat([]string{"0x0720"}, textWindow/2)
	for i, c := range []byte("top \xc4\x01") {
		memory[(80*24+5+i)%len(memory)] = fmt.Sprintf("%#04x", 0x4F00|int(c))
	}
	for _, start := range []int{0, 80, textWindow/2 - 40} {
		first, count := start, 80*25+80
		if first+count > len(memory) {
			first, count = 0, len(memory)
		}
		v := vga{monitor: replies(t, append(mode3(start), "b8000: "+strings.Join(memory[first:first+count], " ")))}
		lines, err := v.screen(t.Context())
		require.NoError(t, err)
		require.Len(t, lines, 25)
		row := (80*24 - start) / 80
		if start > 80*25 {
			require.Equal(t, "top ─☺", strings.TrimSpace(strings.Join(lines, "")), "start %d", start)
			continue
		}
		require.Equal(t, "     top ─☺", lines[row], "start %d", start)
	}
}

// In graphics no memory is read: that would change the latches.
func TestGraphicsAreNotText(t *testing.T) {
	t.Parallel()
	for graphics := range 16 {
		v := vga{monitor: replies(t, registersOf(graphics, 0x4F, 0x1F, 0x4F, 0, 0, 0x8F, 0x28))}
		_, isText := v.text(t.Context())
		require.Equal(t, graphics == 0 || graphics&1 == 0 && graphics >= 8, isText, "register %#x", graphics)
	}
}

func FuzzTextScreen(f *testing.F) {
	f.Add(strings.Join(append(mode3(0), "000b8000: 0x0741"), "\x00"))
	f.Fuzz(func(t *testing.T, said string) {
		lines, err := (&vga{monitor: replies(t, strings.Split(said, "\x00"))}).screen(t.Context())
		require.LessOrEqual(t, len(lines), maxRows)
		for _, line := range lines {
			require.NoError(t, err)
			require.LessOrEqual(t, utf8.RuneCountInString(line), maxColumns)
		}
	})
}

func FuzzMonitor(f *testing.F) {
	f.Add([]byte(`{"QMP": {}}` + "\n" + `{"id": 1, "return": {}}` + "\n" + `{"id": 2, "return": {"status": "x"}}` +
		"\n"))
	f.Add([]byte(`{"event": "RESET", "data": {"guest": true}}`))
	f.Fuzz(func(t *testing.T, said []byte) {
		ctx, cancel := context.WithTimeout(t.Context(), disktest.Patience)
		defer cancel()
		m := NewQMP(ctx, io.Discard, bytes.NewReader(said))
		if m.Greet(ctx) == nil {
			var status struct{ Status string }
			_ = m.Call(ctx, "query-status", nil, &status)
		}
		require.NoError(t, ctx.Err(), "hangs")
	})
}

func TestHalves(t *testing.T) {
	t.Parallel()
	var h halves
	for range 3 * maxSerial / 4 {
		h.add([]byte("abcd"))
	}
	s := h.String()
	require.Equal(t, strings.Repeat("abcd", maxSerial/8)+"\n[...]\n"+strings.Repeat("abcd", maxSerial/8), s)
}

// A busy host takes time from a guest that computes, and not from one that waits.
func TestTimeThatCounts(t *testing.T) {
	t.Parallel()
	const clock = 10 * time.Second
	for _, c := range []struct {
		work     time.Duration
		computes bool
		want     time.Duration
	}{
		{clock, true, clock},
		{3 * time.Second, true, 3 * time.Second},
		{0, true, time.Second},
		{2 * clock, true, clock},
		{0, false, clock},
		{3 * time.Second, false, clock},
	} {
		require.Equal(t, c.want, charged(clock, c.work, c.computes), c)
	}
}
