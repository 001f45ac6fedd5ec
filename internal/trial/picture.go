package trial

import (
	"bytes"
	"cmp"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"slices"
	"strconv"

	"github.com/trueup/trueup/internal/ondisk"
)

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
	left := append([]bool{}, g.set...)
	var open []int
	for start, set := range left {
		if !set {
			continue
		}
		left[start] = false
		open = append(open[:0], start)
		var box image.Rectangle
		for len(open) > 0 {
			x, y := open[len(open)-1]%g.w, open[len(open)-1]/g.w
			open = open[:len(open)-1]
			box = box.Union(image.Rect(x*cell, y*cell, (x+1)*cell, (y+1)*cell))
			for ny := max(y-1, 0); ny <= min(y+1, g.h-1); ny++ {
				for nx := max(x-2, 0); nx <= min(x+2, g.w-1); nx++ {
					if n := ny*g.w + nx; left[n] {
						left[n] = false
						open = append(open, n)
					}
				}
			}
		}
		out = append(out, box)
	}
	return out
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
