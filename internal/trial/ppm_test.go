package trial

import (
	"bytes"
	"fmt"
	"image/color"
	"image/png"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
)

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
