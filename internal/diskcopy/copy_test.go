package diskcopy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/disktest"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// source is a disk of size bytes. Ranges in data are stored with the bytes of fill, ranges in stored are stored as
// zeros, and the rest is a hole.
type source struct {
	size         int64
	data, stored []disk.Range
	reads        *atomic.Int64
	fail         func(off int64) error
}

func (s source) disk() disk.Disk {
	return disk.New(s.size, 512, func(off int64) (disk.Run, error) {
		end := s.size
		for _, r := range append(append([]disk.Range{}, s.data...), s.stored...) {
			if off >= r.Off && off < r.End() {
				return disk.Run{Len: r.End() - off, Src: s, Off: off}, nil
			}
			if r.Off > off {
				end = min(end, r.Off)
			}
		}
		return disk.Run{Len: end - off}, nil
	})
}

// ReadAt returns bytes that depend on their offset, never zero, and zeros outside the data.
func (s source) ReadAt(p []byte, off int64) (int, error) {
	if s.reads != nil {
		s.reads.Add(1)
	}
	if s.fail != nil {
		if err := s.fail(off); err != nil {
			return 0, err
		}
	}
	clear(p)
	for _, r := range s.data {
		for i := max(r.Off, off); i < min(r.End(), off+int64(len(p))); i++ {
			p[i-off] = byte(1 + i%251)
		}
	}
	return len(p), nil
}

// bytes is the disk as it must be copied, made without the code under test.
func (s source) bytes() []byte {
	b := make([]byte, s.size)
	for _, r := range s.data {
		for i := r.Off; i < r.End(); i++ {
			b[i] = byte(1 + i%251)
		}
	}
	return b
}

func run(t *testing.T, s source, unit int64, jobs int) (*disktest.Recorder, int64) {
	t.Helper()
	rec := disktest.NewRecorder(s.size, unit)
	var told atomic.Int64
	n, err := diskcopy.Run(t.Context(), s.disk(), rec,
		diskcopy.Options{Jobs: jobs, Progress: func(n int64) { told.Add(n) }})
	require.NoError(t, err)
	require.Empty(t, rec.Faults())
	size, err := diskcopy.Size(t.Context(), unit, s.disk())
	require.NoError(t, err)
	require.Equal(t, size, told.Load(), "progress reaches what there is to copy")
	return rec, n
}

// The list of writes is the expectation: whole units that hold a byte which is not zero, joined within a chunk of 1
// MiB.
func TestZerosAreNeverWritten(t *testing.T) {
	for _, tc := range []struct {
		name string
		unit int64
		src  source
		want []disk.Range
	}{
		{"an empty disk of zeros", 4 * kib, source{size: 10 * mib}, nil},
		{"stored zeros", 4 * kib, source{size: 3 * mib, stored: []disk.Range{{Off: 0, Len: 3 * mib}}}, nil},
		{
			"one byte in stored zeros", 4 * kib,
			source{
				size: 2 * mib, data: []disk.Range{{Off: 5000, Len: 1}},
				stored: []disk.Range{{Off: 0, Len: 2 * mib}},
			},
			[]disk.Range{{Off: 4 * kib, Len: 4 * kib}},
		},
		{
			"the same in grains of 64 KiB", 64 * kib,
			source{
				size: 2 * mib, data: []disk.Range{{Off: 70000, Len: 1}},
				stored: []disk.Range{{Off: 0, Len: 2 * mib}},
			},
			[]disk.Range{{Off: 64 * kib, Len: 64 * kib}},
		},
		{
			"data over the border of two chunks", 64 * kib,
			source{size: 4 * mib, data: []disk.Range{{Off: mib - 1, Len: 2}}},
			[]disk.Range{{Off: mib - 64*kib, Len: 64 * kib}, {Off: mib, Len: 64 * kib}},
		},
		{
			"two runs in one chunk", 4 * kib,
			source{size: mib, data: []disk.Range{{Off: 0, Len: 9 * kib}, {Off: 100 * kib, Len: 4 * kib}}},
			[]disk.Range{{Off: 0, Len: 12 * kib}, {Off: 100 * kib, Len: 4 * kib}},
		},
		{
			"a tail shorter than a unit", 64 * kib,
			source{size: 2*mib + 1536, data: []disk.Range{{Off: 2*mib + 1535, Len: 1}}},
			[]disk.Range{{Off: 2 * mib, Len: 1536}},
		},
		{
			"a unit as large as a chunk", mib,
			source{size: 3*mib + 512, data: []disk.Range{{Off: mib + 5, Len: 1}, {Off: 3 * mib, Len: 512}}},
			[]disk.Range{{Off: mib, Len: mib}, {Off: 3 * mib, Len: 512}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, jobs := range []int{1, 4} {
				rec, n := run(t, tc.src, tc.unit, jobs)
				require.Equal(t, tc.want, rec.Written())
				require.Len(t, rec.Reserved(), len(tc.want))
				sum := int64(0)
				for _, r := range tc.want {
					sum += r.Len
				}
				require.Equal(t, sum, n, "the bytes that are reported as written")
				disktest.EqualBytes(t, tc.src.bytes(), rec.Bytes())
			}
		})
	}
}

// Where a sparse file puts its grains follows from the order of Reserve. The same job must give the same bytes on any
// number of processors.
func TestTheLayoutDoesNotDependOnJobs(t *testing.T) {
	for seed := range uint64(3) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		s := source{size: 6*mib + 512*rnd.Int64N(100)}
		for off := int64(0); off < s.size; {
			r := disk.Range{Off: off, Len: min(1+rnd.Int64N(600*kib), s.size-off)}
			switch rnd.IntN(3) {
			case 0:
				s.data = append(s.data, r)
			case 1:
				s.stored = append(s.stored, r)
			}
			off = r.End()
		}
		want, _ := run(t, s, 64*kib, 1)
		disktest.EqualBytes(t, s.bytes(), want.Bytes())
		for jobs := 2; jobs <= 8; jobs++ {
			got, _ := run(t, s, 64*kib, jobs)
			require.Equal(t, want.Reserved(), got.Reserved(), "%d jobs", jobs)
			disktest.EqualBytes(t, want.Bytes(), got.Bytes())
		}
	}
}

// A hole of terabytes costs no reading.
func TestHolesAreNotRead(t *testing.T) {
	s := source{
		size: 64 << 40, data: []disk.Range{{Off: 5 * mib, Len: 1}, {Off: 64<<40 - 512, Len: 512}},
		reads: new(atomic.Int64),
	}
	rec := disktest.NewRecorder(s.size, 64*kib)
	_, err := diskcopy.Run(t.Context(), s.disk(), rec, diskcopy.Options{Jobs: 4})
	require.NoError(t, err)
	require.Equal(t, []disk.Range{{Off: 5 * mib, Len: 64 * kib}, {Off: 64<<40 - 64*kib, Len: 64 * kib}}, rec.Written())
	require.Equal(t, int64(2), s.reads.Load())
}

func TestCancellationStopsSoon(t *testing.T) {
	for _, tc := range []struct {
		jobs   int
		after  int64 // reads
		rounds int
	}{
		{1, 1, 10}, // many rounds: which of two events a worker sees first is chance
		{4, 10, 2},
	} {
		for range tc.rounds {
			ctx, cancel := context.WithCancel(t.Context())
			s := source{size: 500 * mib, data: []disk.Range{{Len: 500 * mib}}, reads: new(atomic.Int64)}
			s.fail = func(int64) error {
				if s.reads.Load() >= tc.after {
					cancel()
				}
				return nil
			}
			_, err := diskcopy.Run(ctx, s.disk(), discard(), diskcopy.Options{Jobs: tc.jobs})
			require.ErrorIs(t, err, context.Canceled)
			require.Less(t, s.reads.Load(), tc.after+int64(tc.jobs),
				"each other worker may end the chunk that it reads")
			cancel()
		}
	}
}

func discard() *disktest.Recorder {
	rec := disktest.NewRecorder(1<<40, 64*kib)
	rec.Discard = true
	return rec
}

// An error ends all workers, including those that wait for their turn: a hang would be the worst result.
func TestErrorsSurface(t *testing.T) {
	errBroken := errors.New("no space left on device")
	at := func(place int64) func(off int64) error {
		return func(off int64) error {
			if off == place {
				return errBroken
			}
			return nil
		}
	}
	for _, place := range []int64{0, 3 * mib, 9 * mib} {
		for _, jobs := range []int{1, 2, 8} {
			t.Run(fmt.Sprintf("at %d MiB with %d jobs", place/mib, jobs), func(t *testing.T) {
				s := source{size: 10 * mib, data: []disk.Range{{Len: 10 * mib}}}
				for _, op := range []string{"reserve", "write"} {
					rec := discard()
					fails := at(place)
					rec.Err = func(what string, r disk.Range) error {
						if what == op {
							return fails(r.Off)
						}
						return nil
					}
					_, err := diskcopy.Run(t.Context(), s.disk(), rec, diskcopy.Options{Jobs: jobs})
					require.ErrorIs(t, err, errBroken, op)
				}
				s.fail = at(place)
				_, err := diskcopy.Run(t.Context(), s.disk(), discard(), diskcopy.Options{Jobs: jobs})
				require.ErrorIs(t, err, errBroken, "read")
			})
		}
	}
}

// A map with millions of entries takes minutes to walk, and ^C ends that too.
func TestSizeEndsWhenItIsCancelled(t *testing.T) {
	for name, stored := range map[string]bool{"data": true, "holes": false} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var asked int
			d := disk.New(1000*mib, 512, func(off int64) (disk.Run, error) {
				if asked++; asked == 10 {
					cancel()
				}
				if stored || off/mib%2 == 0 {
					return disk.Run{Len: mib, Src: source{}}, nil
				}
				return disk.Run{Len: mib}, nil
			})
			_, err := diskcopy.Size(ctx, 0, d)
			require.ErrorIs(t, err, context.Canceled)
			require.Less(t, asked, 100)
		})
	}
}

// Scattered data are read in stretches of 64 KiB, not in whole chunks: the gaps are omitted.
func TestScatteredDataAreReadAlone(t *testing.T) {
	data := []disk.Range{
		{Off: 0, Len: 1}, {Off: mib - 1, Len: 2}, {Off: 5*mib + 200*kib, Len: 64 * kib}, {Off: 64*mib - 512, Len: 512},
	}
	s := source{size: 64 * mib, data: data}
	var chunks []disk.Range
	d := &diskcopy.Data{Disks: []disk.Disk{s.disk()}}
	err := diskcopy.Each(t.Context(), 1, d, func(_ context.Context, c diskcopy.Chunk, _ [][]byte) error {
		chunks = append(chunks, c.Range)
		return nil
	})
	require.NoError(t, err)
	want := []disk.Range{
		{Off: 0, Len: 64 * kib},
		{Off: mib - 64*kib, Len: 64 * kib},
		{Off: mib, Len: 64 * kib},
		{Off: 5*mib + 192*kib, Len: 128 * kib},
		{Off: 64*mib - 64*kib, Len: 64 * kib},
	}
	require.Equal(t, want, chunks)
}

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

// TestFewPack starts no more goroutines that pack than their memory and the processors are good for.
func TestFewPack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var packing atomic.Int64
		goOn := make(chan struct{})
		s := source{size: 40 * mib, data: []disk.Range{{Len: 40 * mib}}}
		go func() {
			synctest.Wait()
			close(goOn)
		}()
		_, err := diskcopy.Run(t.Context(), s.disk(), &packedTarget{unit: mib, got: map[int64]string{}},
			diskcopy.Options{Jobs: 64, Pack: func(p []byte, _ int64) ([]byte, error) {
				packing.Add(1)
				<-goOn
				require.LessOrEqual(t, packing.Add(-1), int64(4*runtime.GOMAXPROCS(0)))
				return p, nil
			}})
		require.NoError(t, err)
	})
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

// Unreadable data have no digest, and data that cannot be compressed are not copied.
func TestDigestAndPackFail(t *testing.T) {
	bad := errors.New("marker")
	s := source{size: mib, data: []disk.Range{{Len: mib}}, fail: func(int64) error { return bad }}
	_, err := diskcopy.Digest(t.Context(), s.disk(), diskcopy.Options{})
	require.ErrorIs(t, err, bad)
	broken := disk.New(mib, 512, func(int64) (disk.Run, error) { return disk.Run{}, bad })
	_, err = diskcopy.Digest(t.Context(), broken, diskcopy.Options{})
	require.ErrorIs(t, err, bad)
	_, err = diskcopy.Size(t.Context(), 0, broken)
	require.ErrorIs(t, err, bad)
	_, err = diskcopy.Run(t.Context(), disktest.Memory([]byte("data")), disktest.NewRecorder(mib, 64*kib),
		diskcopy.Options{Pack: func([]byte, int64) ([]byte, error) { return nil, bad }})
	require.ErrorIs(t, err, bad)
}

// A digest distinguishes disks by every byte, by their size and by the offset of their data, and not by their holes.
func TestDigest(t *testing.T) {
	digest := func(b []byte) diskcopy.Sum {
		s, err := diskcopy.Digest(t.Context(), disktest.Memory(b), diskcopy.Options{})
		require.NoError(t, err)
		return s
	}
	base := make([]byte, 4*mib)
	base[mib+5], base[3*mib] = 1, 2
	want := digest(base)
	require.Equal(t, want, digest(bytes.Clone(base)))
	for name, change := range map[string]func([]byte) []byte{
		"a byte":  func(b []byte) []byte { b[4*mib-1] = 1; return b },
		"size":    func(b []byte) []byte { return b[:4*mib-512] },
		"a place": func(b []byte) []byte { b[2*mib+5], b[mib+5] = 1, 0; return b },
	} {
		require.NotEqual(t, want, digest(change(bytes.Clone(base))), name)
	}
}

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
	most := int64(64 * kib) // a garbage collection also drops the buffers kept for the next chunk
	if disktest.Raced {
		most = 16 * mib // and the race detector throws a part of it away
	}
	require.Less(t, large-small, most, "allocated for 512 MiB more")
}

// Many goroutines use no more memory than a copy may have, with one buffer each or with two.
func TestMemoryDoesNotGrowWithTheJobs(t *testing.T) {
	full := disk.New(64*mib, 512, func(off int64) (disk.Run, error) {
		return disk.Run{Len: 64*mib - off, Src: make(block, mib), Off: off}, nil
	})
	for _, disks := range [][]disk.Disk{{full}, {full, full}} {
		runtime.GC() // twice: remains of earlier copies are kept once
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

// The buffers of a copy are reused by the next one.
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
