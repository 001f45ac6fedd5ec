package ondisk

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
)

func TestIsZero(t *testing.T) {
	require.True(t, IsZero(nil))
	b := make([]byte, 4096)
	require.True(t, IsZero(b))
	for _, i := range []int{0, 1, 2047, 4094, 4095} {
		b[i] = 1
		require.False(t, IsZero(b), "byte %d", i)
		b[i] = 0
	}
	require.False(t, IsZero(bytes.Repeat([]byte{7}, 512)), "all bytes equal, and none of them zero")
}

// Runs cover every unit that holds a byte, and no other; they do not touch.
func TestDataRuns(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(7, 11))
	for range 300 {
		const unit = 8
		b := make([]byte, rnd.IntN(20*unit))
		for range rnd.IntN(8) {
			if len(b) > 0 {
				b[rnd.IntN(len(b))] = 1
			}
		}
		in, before := make([]bool, len(b)), int64(-1)
		for r := range DataRuns(b, unit) {
			require.Positive(t, r.Len)
			require.Zero(t, r.Off%unit)
			require.Greater(t, r.Off, before, "it meets the run in front of it")
			before = r.End()
			for i := r.Off; i < r.End(); i++ {
				in[i] = true
			}
		}
		for i := range b {
			start := i - i%unit
			require.Equal(t, !IsZero(b[start:min(start+unit, len(b))]), in[i], "byte %d of %v", i, b)
		}
	}
	for range DataRuns([]byte{1, 0, 1}, 1) {
		break // a reader may stop at the first
	}
}

func TestAllZero(t *testing.T) {
	t.Parallel()
	b := make([]byte, 3*zerosRead)
	b[2*zerosRead+5] = 1
	src := bytes.NewReader(b)
	for want, ranges := range map[bool][]disk.Range{
		true:  {{Len: 2*zerosRead + 5}, {Off: 2*zerosRead + 6, Len: 10}, {Off: 9, Len: 0}},
		false: {{Len: 8}, {Off: zerosRead, Len: zerosRead + 6}},
	} {
		zero, err := AllZero(src, ranges...)
		require.NoError(t, err)
		require.Equal(t, want, zero)
	}
	_, err := AllZero(src, disk.Range{Off: 2*zerosRead + 6, Len: zerosRead})
	require.Error(t, err, "behind the end")
}
