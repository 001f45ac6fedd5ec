package diskcopy_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
)

// A target that packs is given one unit at a time, in the order of the disk, whatever the size of the packed bytes.
func TestPackedUnits(t *testing.T) {
	const unit = 64 << 10
	src := make([]byte, 5*diskcopy.ChunkSize+3*unit+777)
	for _, at := range []int{0, unit, 7 * unit, diskcopy.ChunkSize + 3*unit, 4*diskcopy.ChunkSize - 1, len(src) - 1} {
		src[at] = byte(1 + at%200)
	}
	d := disk.New(int64(len(src)), 512, func(off int64) (disk.Run, error) {
		return disk.Run{Len: int64(len(src)) - off, Src: bytes.NewReader(src), Off: off}, nil
	})
	for _, jobs := range []int{1, 4} {
		target := &packedTarget{unit: unit, got: map[int64]string{}}
		n, err := diskcopy.Run(t.Context(), d, target,
			diskcopy.Options{Jobs: jobs, Pack: func(p []byte, off int64) ([]byte, error) {
				return fmt.Appendf(nil, "%d bytes at %d sum %d", len(p), off, sum(p)), nil
			}})
		require.NoError(t, err)
		require.Equal(t, int64(5*unit+777), n, "what was written counts in bytes of the disk")
		require.Equal(t, []int64{
			0, unit, 7 * unit, diskcopy.ChunkSize + 3*unit, 4*diskcopy.ChunkSize - unit,
			5*diskcopy.ChunkSize + 3*unit,
		}, target.order)
		for off, packed := range target.got {
			end := min(off+unit, int64(len(src)))
			require.Equal(t, fmt.Sprintf("%d bytes at %d sum %d", end-off, off, sum(src[off:end])), packed)
		}
		require.Len(t, target.got, 6)
	}
}

func sum(b []byte) (n int) {
	for _, x := range b {
		n += int(x)
	}
	return n
}

type packedTarget struct {
	unit  int64
	mu    sync.Mutex
	order []int64
	got   map[int64]string
}

func (t *packedTarget) Unit() int64 { return t.unit }

func (t *packedTarget) Reserve(off, _ int64) error {
	t.order = append(t.order, off)
	return nil
}

func (t *packedTarget) WriteAt(p []byte, off int64) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.got[off] = string(p)
	return len(p), nil
}
