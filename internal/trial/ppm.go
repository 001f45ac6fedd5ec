package trial

import (
	"bytes"
	"image"
	"strconv"

	"github.com/trueup/trueup/internal/ondisk"
)

// MaxPixels bounds a screen: 2560 by 1600 fit.
const MaxPixels = 4 << 20

// DecodePPM decodes a picture of QEMU's screendump: a binary PPM of 8 bits without comments. Spec: netpbm, ppm(5).
func DecodePPM(b []byte) (*image.NRGBA, error) {
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
	if pixels := int64(width) * int64(height); pixels == 0 || pixels > MaxPixels || int64(len(rest)) != 3*pixels {
		return nil, ondisk.Field("PPM picture", "length", 0, len(rest),
			"3 bytes for each pixel, and 4 Mi pixels at most")
	}
	p := image.NewNRGBA(image.Rect(0, 0, width, height))
	for i := range width * height {
		copy(p.Pix[4*i:4*i+3], rest[3*i:])
		p.Pix[4*i+3] = 0xff
	}
	return p, nil
}
