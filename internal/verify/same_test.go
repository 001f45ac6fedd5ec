package verify_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/verify"
)

const mib = 1 << 20

// empty returns a hole of size bytes.
func empty(size int64) disk.Disk {
	return disk.New(size, 512, func(off int64) (disk.Run, error) { return disk.Run{Len: size - off}, nil })
}

// holes shows b, with its zeros as holes.
func holes(b []byte) disk.Disk {
	size := int64(len(b))
	return disk.New(size, 512, func(off int64) (disk.Run, error) {
		n := min(4096-off%4096, size-off)
		r := disk.Run{Len: n, Src: bytes.NewReader(b), Off: off}
		if bytes.Count(b[off:off+n], []byte{0}) == int(n) {
			r.Src = nil
		}
		return r, nil
	})
}

func same(t *testing.T, want, got disk.Disk, jobs int) []verify.Difference {
	t.Helper()
	d, err := verify.Same(t.Context(), want, got, verify.Options{Jobs: jobs})
	require.NoError(t, err)
	return d
}

// half returns a disk whose odd MiBs are zero.
func half(size int) []byte {
	rnd := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, size)
	for i := range b {
		if i/mib%2 == 0 {
			b[i] = byte(rnd.UintN(256))
		}
	}
	return b
}

func TestEqualDisks(t *testing.T) {
	b := half(4*mib + 700)
	for _, jobs := range []int{1, 4} {
		require.Empty(t, same(t, disktest.Memory(b), disktest.Memory(bytes.Clone(b)), jobs))
		require.Empty(t, same(t, holes(b), disktest.Memory(b), jobs), "a hole equals stored zeros")
		require.Empty(t, same(t, disktest.Memory(b), holes(b), jobs))
		require.Empty(t, same(t, holes(b), holes(b), jobs))
	}
	require.Empty(t, same(t, empty(0), empty(0), 1))
	require.Empty(t, same(t, empty(16<<40), empty(16<<40), 4))
}

// One wrong byte anywhere, in data or in a hole of one side or of the other, is found and named.
func TestFindsASingleByte(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	want := half(2*mib + 700)
	places := []int{0, 511, 512, mib - 1, mib, 2*mib - 1, 2 * mib, len(want) - 1}
	for len(places) < 200 {
		places = append(places, rnd.IntN(len(want)))
	}
	for i, at := range places {
		got := bytes.Clone(want)
		got[at] ^= byte(1 << rnd.UintN(8))
		a, b := disktest.Memory(want), disktest.Memory(got)
		if i%2 == 1 {
			a = holes(want)
		}
		if i%4 > 1 {
			b = holes(got)
		}
		found := same(t, a, b, 1+i%2)
		require.Len(t, found, 1, "byte %d", at)
		require.True(t, found[0].Contains(disk.Range{Off: int64(at), Len: 1}), "byte %d, found %+v", at, found[0])
		require.LessOrEqual(t, found[0].Len, int64(512), "no more than its sector is blamed")
		require.Equal(t, fmt.Sprintf("byte %d is %#02x, want %#02x", at, got[at], want[at]), found[0].Text)
	}
}

func TestDataWhereTheOtherHasAHole(t *testing.T) {
	patch := disk.Patch{Off: 1<<40 + 12345, New: []byte{7}}
	full := disk.Overlay(empty(2<<40), []disk.Patch{patch})
	for _, found := range [][]verify.Difference{same(t, empty(2<<40), full, 4), same(t, full, empty(2<<40), 4)} {
		require.Len(t, found, 1)
		require.True(t, found[0].Contains(patch.Range()))
	}
	require.Empty(t, same(t, full, full, 4))
}

func TestSizesDiffer(t *testing.T) {
	found := same(t, empty(10*mib), empty(10*mib+512), 1)
	require.Len(t, found, 1)
	require.Equal(t, disk.Range{Off: 10 * mib, Len: 512}, found[0].Range)
	require.Equal(t, "the disk has 10486272 bytes, want 10485760", found[0].Text)
	require.Equal(t, disk.Range{Off: 10 * mib, Len: 512}, same(t, empty(10*mib+512), empty(10*mib), 1)[0].Range)
}

// Neighbours are one range, over the borders of sectors and chunks; others are apart and in order, whatever worker is
// first.
func TestDifferencesAreJoinedAndInOrder(t *testing.T) {
	want := make([]byte, 6*mib)
	got := bytes.Clone(want)
	for i := 2*mib - 1000; i < 2*mib+1000; i++ {
		got[i] = 1
	}
	got[5*mib], got[100] = 1, 1
	var ranges []disk.Range
	for _, f := range same(t, disktest.Memory(want), disktest.Memory(got), 4) {
		ranges = append(ranges, f.Range)
	}
	require.Equal(t, []disk.Range{
		{Off: 0, Len: 512}, {Off: 2*mib - 1024, Len: 2048}, {Off: 5 * mib, Len: 512},
	}, ranges)
}

// Two disks that have nothing in common must not fill the memory with the list of where they differ.
func TestTheListOfDifferencesIsCut(t *testing.T) {
	want := make([]byte, 16*mib)
	got := bytes.Clone(want)
	for i := 0; i < len(got); i += 1024 {
		got[i] = 1
	}
	first := same(t, disktest.Memory(want), disktest.Memory(got), 1)
	require.Len(t, first, 100)
	for i, f := range first {
		require.Equal(t, disk.Range{Off: int64(i) * 1024, Len: 512}, f.Range)
	}
	require.Equal(t, first, same(t, disktest.Memory(want), disktest.Memory(got), 4))
}

// brokenReader fails each read.
type brokenReader struct{ err error }

func (r brokenReader) ReadAt([]byte, int64) (int, error) { return 0, r.err }

// What cannot be read of either disk is an error: its map, or data where both say that there are some.
func TestReadErrorsAreNoDifference(t *testing.T) {
	errMedium := errors.New("input/output error")
	bad := func(behind int64, run disk.Run, err error) disk.Disk {
		return disk.New(3*mib, 512, func(off int64) (disk.Run, error) {
			if off >= behind {
				return disk.Run{Len: 3*mib - off, Src: run.Src, Off: off}, err
			}
			return disk.Run{Len: behind - off, Src: bytes.NewReader(make([]byte, behind)), Off: off}, nil
		})
	}
	lost, unread := bad(2*mib, disk.Run{}, errMedium), bad(0, disk.Run{Src: brokenReader{errMedium}}, nil)
	for _, two := range [][2]disk.Disk{{lost, empty(3 * mib)}, {unread, disktest.Memory(half(3 * mib))}} {
		for _, jobs := range []int{1, 2} {
			_, err := verify.Same(t.Context(), two[0], two[1], verify.Options{Jobs: jobs})
			require.ErrorIs(t, err, errMedium)
			_, err = verify.Same(t.Context(), two[1], two[0], verify.Options{Jobs: jobs})
			require.ErrorIs(t, err, errMedium)
		}
	}
}

// Holes are not work, unless the other disk has data there.
func TestProgressCountsData(t *testing.T) {
	b := half(5*mib + 12) // every second MiB is a hole
	for _, tc := range []struct {
		want, got disk.Disk
		bytes     int64
	}{
		{holes(b), disktest.Memory(b), int64(len(b))},
		{holes(b), holes(b), 3 * mib},
		{empty(1 << 40), empty(1 << 40), 0},
	} {
		size, err := diskcopy.Size(t.Context(), 0, tc.want, tc.got)
		require.NoError(t, err)
		require.Equal(t, tc.bytes, size)
		var told atomic.Int64
		_, err = verify.Same(t.Context(), tc.want, tc.got,
			verify.Options{Jobs: 3, Progress: func(n int64) { told.Add(n) }})
		require.NoError(t, err)
		require.Equal(t, size, told.Load())
	}
}

func TestCancellation(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := verify.Same(ctx, disktest.Memory(half(4*mib)), disktest.Memory(half(4*mib)), verify.Options{Jobs: 2})
	require.ErrorIs(t, err, context.Canceled)
}

// BenchmarkSame is the comparison of one chunk, without reading.
func BenchmarkSame(b *testing.B) {
	size := int64(b.N) * mib
	var source io.ReaderAt = zeros{}
	d := disk.New(size, 512, func(off int64) (disk.Run, error) {
		return disk.Run{Len: size - off, Src: source, Off: off}, nil
	})
	b.SetBytes(mib)
	b.ReportAllocs()
	found, err := verify.Same(b.Context(), d, d, verify.Options{Jobs: runtime.GOMAXPROCS(0)})
	require.NoError(b, err)
	require.Empty(b, found)
}

// zeros costs no time.
type zeros struct{}

func (zeros) ReadAt(p []byte, _ int64) (int, error) { return len(p), nil }
