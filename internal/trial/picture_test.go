package trial

import (
	"bytes"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
