package diskcopy_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
)

// block is a source that costs no time, for long copies.
type block []byte

func (b block) ReadAt(p []byte, off int64) (int, error) {
	for n := 0; n < len(p); {
		n += copy(p[n:], b[(off+int64(n))%int64(len(b)):])
	}
	return len(p), nil
}

func TestMemoryDoesNotGrowWithTheDisk(t *testing.T) {
	full := make(block, mib)
	for i := range full {
		full[i] = 1
	}
	allocated := func(size int64) uint64 {
		d := disk.New(size, 512,
			func(off int64) (disk.Run, error) { return disk.Run{Len: size - off, Src: full, Off: off}, nil })
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		n, err := diskcopy.Run(t.Context(), d, discard(), diskcopy.Options{Jobs: 2})
		runtime.ReadMemStats(&after)
		require.NoError(t, err)
		require.Equal(t, size, n)
		return after.TotalAlloc - before.TotalAlloc
	}
	small, large := allocated(16*mib), allocated(528*mib)
	// What a chunk allocates is its place in the queue, some hundred bytes, and not its megabyte.
	require.Less(t, int64(large)-int64(small), int64(2*mib), "allocated for 512 MiB more")
}

// Many goroutines do not take more memory than a copy may have, with one buffer each or with two.
func TestMemoryDoesNotGrowWithTheJobs(t *testing.T) {
	d := disk.New(mib, 512, func(off int64) (disk.Run, error) { return disk.Run{Len: mib - off}, nil })
	for _, disks := range [][]disk.Disk{{d}, {d, d}} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := diskcopy.Each(t.Context(), 64, &diskcopy.Data{Disks: disks},
			func(context.Context, diskcopy.Chunk, [][]byte) error { return nil })
		runtime.ReadMemStats(&after)
		require.NoError(t, err)
		allocated := int64(after.TotalAlloc - before.TotalAlloc)
		require.Greater(t, allocated, int64(40*mib))
		require.Less(t, allocated, int64(50*mib), "%d disks", len(disks))
	}
}
