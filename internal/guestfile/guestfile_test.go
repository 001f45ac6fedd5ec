package guestfile_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// model says about each byte of a file where it lies in the volume; -1 in a hole.
type model []int64

// randomFile is a file of random runs, some of which follow each other in the volume, and its model.
func randomFile(t *testing.T, r *rand.Rand, volume []byte) (*guestfile.File, model) {
	t.Helper()
	size := r.Int64N(600)
	m := make(model, size)
	for i := range m {
		m[i] = -1
	}
	var runs []guestfile.Run
	for off, at := int64(0), int64(0); len(runs) < 12; {
		if r.IntN(3) == 0 {
			off += r.Int64N(40)
		}
		if r.IntN(3) == 0 {
			at = r.Int64N(int64(len(volume)))
		}
		n := min(1+r.Int64N(80), int64(len(volume))-at)
		if n <= 0 {
			at = 0
			continue
		}
		runs = append(runs, guestfile.Run{Off: off, Len: n, At: at})
		for i := range n {
			if off+i < size {
				m[off+i] = at + i
			}
		}
		off, at = off+n, at+n
	}
	f, err := guestfile.NewFile(bytes.NewReader(volume), "a/file", size, runs)
	require.NoError(t, err)
	return f, m
}

func (m model) bytes(volume []byte, off, n int64) []byte {
	b := make([]byte, n)
	for i := range b {
		if at := m[off+int64(i)]; at >= 0 {
			b[i] = volume[at]
		}
	}
	return b
}

// where gives places as Where does: neighbours in one.
func (m model) where(off, n int64) (out []disk.Range, whole bool) {
	for i := off; i < off+n; i++ {
		if m[i] < 0 {
			return nil, false
		}
		if k := len(out) - 1; k >= 0 && out[k].End() == m[i] {
			out[k].Len++
			continue
		}
		out = append(out, disk.Range{Off: m[i], Len: 1})
	}
	return out, true
}

func TestFileIsItsModel(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	volume := make([]byte, 1000)
	for i := range volume {
		volume[i] = byte(r.Uint32())
	}
	for range 500 {
		f, m := randomFile(t, r, volume)
		size := int64(len(m))
		require.Equal(t, size, f.Size())
		require.NoError(t, iotest.TestReader(io.NewSectionReader(f, 0, size), m.bytes(volume, 0, size)))
		for range 30 {
			off, n := r.Int64N(size+50), r.Int64N(200)
			got := bytes.Repeat([]byte{0xee}, int(n))
			done, err := f.ReadAt(got, off)
			want := max(0, min(n, size-off))
			require.Equal(t, int(want), done)
			require.Equal(t, m.bytes(volume, min(off, size), want), got[:want])
			require.Equal(t, want < n, errors.Is(err, io.EOF))
			if n == 0 || want < n {
				_, err := f.Where(off, n)
				require.ErrorIs(t, err, fs.ErrInvalid)
				continue
			}
			places, err := f.Where(off, n)
			expected, whole := m.where(off, n)
			if !whole {
				require.ErrorIs(t, err, guestfile.ErrHole)
				require.ErrorIs(t, err, ondisk.ErrUnsupported)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, expected, places)
		}
	}
}

func TestFileOutsideItself(t *testing.T) {
	f, err := guestfile.NewFile(bytes.NewReader(make([]byte, 100)), "f", 50, []guestfile.Run{{Off: 0, Len: 100, At: 0}})
	require.NoError(t, err)
	require.Equal(t, []guestfile.Run{{Off: 0, Len: 50, At: 0}}, filetest.RunsOf(t, f))
	for _, r := range [][2]int64{
		{-1, 1},
		{0, 0},
		{0, -1},
		{0, 51},
		{50, 1},
		{51, 1},
		{49, 2},
		{math.MaxInt64, 1},
		{1, math.MaxInt64},
		{math.MinInt64, math.MinInt64},
	} {
		_, err := f.Where(r[0], r[1])
		require.ErrorIs(t, err, fs.ErrInvalid, r)
	}
	_, err = f.ReadAt(make([]byte, 1), -1)
	require.ErrorIs(t, err, fs.ErrInvalid)
	n, err := f.ReadAt(make([]byte, 1), math.MaxInt64)
	require.Zero(t, n)
	require.ErrorIs(t, err, io.EOF)
	f.Fixed = fmt.Errorf("%w: under a checksum", ondisk.ErrUnsupported)
	_, err = f.Where(0, 1)
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	_, err = f.ReadAt(make([]byte, 50), 0)
	require.NoError(t, err, "it can be read")
}

func TestNewFileRefuses(t *testing.T) {
	volume := bytes.NewReader(make([]byte, 100))
	for name, runs := range map[string][]guestfile.Run{
		"behind the volume":          {{Off: 0, Len: 10, At: 91}},
		"far behind the volume":      {{Off: 0, Len: 10, At: math.MaxInt64}},
		"longer than numbers":        {{Off: 0, Len: math.MaxInt64, At: 1}},
		"in front of the volume":     {{Off: 0, Len: 10, At: -1}},
		"empty":                      {{Off: 0, Len: 0, At: 0}},
		"of negative length":         {{Off: 0, Len: -1, At: 0}},
		"in front of the file":       {{Off: -5, Len: 10, At: 0}},
		"over the one before":        {{Off: 0, Len: 10, At: 0}, {Off: 9, Len: 10, At: 20}},
		"out of order":               {{Off: 20, Len: 10, At: 0}, {Off: 0, Len: 10, At: 20}},
		"broken behind the size":     {{Off: 0, Len: 60, At: 0}, {Off: 60, Len: 10, At: 95}},
		"at the place of one behind": {{Off: 0, Len: 10, At: 50}, {Off: 5, Len: 10, At: 50}},
	} {
		_, err := guestfile.NewFile(volume, "f", 50, runs)
		require.ErrorIs(t, err, ondisk.ErrFormat, name)
	}
	var many []guestfile.Run
	for i := range int64(guestfile.MaxRuns + 1) {
		many = append(many, guestfile.Run{Off: i, Len: 1, At: 1 + i%2*5})
	}
	_, err := guestfile.NewFile(volume, "f", guestfile.MaxRuns, many)
	require.NoError(t, err)
	_, err = guestfile.NewFile(volume, "f", guestfile.MaxRuns+1, many)
	require.ErrorIs(t, err, ondisk.ErrLimit)
}
