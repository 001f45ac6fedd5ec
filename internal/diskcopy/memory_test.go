package diskcopy_test

import (
	"context"
	"io"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/disktest"
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
	allocated := func(size int64) int64 {
		d := disk.New(size, 512,
			func(off int64) (disk.Run, error) { return disk.Run{Len: size - off, Src: full, Off: off}, nil })
		return disktest.Allocated(func() {
			n, err := diskcopy.Run(t.Context(), d, discard(), diskcopy.Options{Jobs: 2, Sum: new(diskcopy.Sum)})
			require.NoError(t, err)
			require.Equal(t, size, n)
		})
	}
	small, large := allocated(16*mib), allocated(528*mib)
	most := int64(64 * kib) // collected garbage takes what is kept for the next chunk along
	if disktest.Raced {
		most = 16 * mib // and the race detector throws a part of it away
	}
	require.Less(t, large-small, most, "allocated for 512 MiB more")
}

// Many goroutines do not take more memory than a copy may have, with one buffer each or with two.
func TestMemoryDoesNotGrowWithTheJobs(t *testing.T) {
	full := disk.New(64*mib, 512, func(off int64) (disk.Run, error) {
		return disk.Run{Len: 64*mib - off, Src: make(block, mib), Off: off}, nil
	})
	for _, disks := range [][]disk.Disk{{full}, {full, full}} {
		runtime.GC() // twice: what earlier copies left is kept once
		runtime.GC()
		all, left := make(chan struct{}), atomic.Int64{}
		left.Store(int64(48 / len(disks)))
		allocated := disktest.Allocated(func() {
			require.NoError(t, diskcopy.Each(t.Context(), 64, &diskcopy.Data{Disks: disks},
				func(context.Context, diskcopy.Chunk, [][]byte) error {
					if left.Add(-1) == 0 {
						close(all)
					}
					disktest.WaitClosed(t, "all goroutines", all)
					return nil
				}))
		})
		require.Greater(t, allocated, int64(40*mib))
		require.Less(t, allocated, int64(50*mib), "%d disks", len(disks))
	}
}

// What a copy has read into is there for the next one.
func TestNextCopyTakesLittleMemory(t *testing.T) {
	if disktest.Raced {
		t.Skip("the race detector throws a part of it away")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // so does the collection of garbage
	d := disk.New(4*mib, 512, func(off int64) (disk.Run, error) {
		return disk.Run{Len: 4*mib - off, Src: block{1}, Off: off}, nil
	})
	allocated := func() int64 {
		return disktest.Allocated(func() {
			require.NoError(t, diskcopy.Each(t.Context(), 1, &diskcopy.Data{Disks: []disk.Disk{d}},
				func(context.Context, diskcopy.Chunk, [][]byte) error { return nil }))
		})
	}
	allocated()
	require.Less(t, allocated(), int64(mib/2))
}

// BenchmarkCopy is one chunk of a copy, without reading and writing: with the digests of a full proof, and without; of
// such a proof; and of a walk over a disk of which every other chunk is a hole.
func BenchmarkCopy(b *testing.B) {
	full := make(block, mib)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(full)
	var source io.ReaderAt = full // an interface for each run would be allocated
	run := func(name string, step int64, work func(d disk.Disk, jobs int) error) {
		b.Run(name, func(b *testing.B) {
			size := int64(b.N) * mib * step
			d := disk.New(size, 512, func(off int64) (disk.Run, error) {
				chunk := off / mib
				if chunk%step != 0 {
					return disk.Run{Len: (chunk+1)*mib - off}, nil
				}
				return disk.Run{Len: (chunk+1)*mib - off, Src: source, Off: off}, nil
			})
			b.SetBytes(mib)
			b.ReportAllocs()
			b.ResetTimer()
			require.NoError(b, work(d, runtime.GOMAXPROCS(0)))
		})
	}
	run("structure", 1, func(d disk.Disk, jobs int) error {
		_, err := diskcopy.Run(b.Context(), d, discard(), diskcopy.Options{Jobs: jobs})
		return err
	})
	run("full", 1, func(d disk.Disk, jobs int) error {
		_, err := diskcopy.Run(b.Context(), d, discard(), diskcopy.Options{Jobs: jobs, Sum: new(diskcopy.Sum)})
		return err
	})
	run("digest", 1, func(d disk.Disk, jobs int) error {
		_, err := diskcopy.Digest(b.Context(), d, diskcopy.Options{Jobs: jobs})
		return err
	})
	run("holes", 2, func(d disk.Disk, _ int) error {
		_, err := diskcopy.Size(b.Context(), 64*kib, d)
		return err
	})
}
