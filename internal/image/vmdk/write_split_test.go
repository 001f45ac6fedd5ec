package vmdk

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/image/driver"
)

// memWriter is a file in memory that keeps the bytes that are not zero, by their offset.
type memWriter struct {
	size int64
	kept map[int64]byte
}

func (w *memWriter) WriteAt(p []byte, off int64) (int, error) {
	for i, b := range p {
		if at := off + int64(i); b != 0 {
			w.kept[at] = b
		}
	}
	return len(p), nil
}

func (w *memWriter) Truncate(size int64) error { w.size = size; return nil }
func (w *memWriter) Sync() error               { return nil }

// A target may be given a range that crosses from one extent into the next, although the copier's chunks never do.
func TestRangeAcrossExtents(t *testing.T) {
	var extents []*memWriter
	o := driver.Options{Name: "disk.vmdk", Beside: func(suffix string) (driver.WriteFile, string, error) {
		w := &memWriter{kept: map[int64]byte{}}
		extents = append(extents, w)
		return w, "disk" + suffix + ".vmdk", nil
	}}
	text := &memWriter{kept: map[int64]byte{}}
	x, err := newSplitTarget(text, splitFlat, 2*splitSize+512, defaultGrain, plainDescriptor(driver.Geometry{}), o)
	require.NoError(t, err)
	require.Len(t, extents, 3)
	require.Equal(t, []int64{splitSize, splitSize, 512}, []int64{extents[0].size, extents[1].size, extents[2].size})
	p := bytes.Repeat([]byte{1}, 8192)
	p[4095], p[4096] = 2, 3
	require.NoError(t, x.Reserve(splitSize-4096, 8192))
	n, err := x.WriteAt(p, splitSize-4096)
	require.NoError(t, err)
	require.Equal(t, 8192, n)
	require.Len(t, extents[0].kept, 4096)
	require.Len(t, extents[1].kept, 4096)
	require.Equal(t, byte(2), extents[0].kept[splitSize-1])
	require.Equal(t, byte(3), extents[1].kept[0])
	require.Empty(t, text.kept, "the descriptor comes last")
	require.NoError(t, x.Finish())
	require.NotEmpty(t, text.kept)
}
