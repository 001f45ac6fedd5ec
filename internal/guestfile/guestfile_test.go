package guestfile_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"slices"
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
			if slices.Contains(m[off:off+n], -1) {
				require.ErrorIs(t, err, guestfile.ErrHole)
				require.ErrorIs(t, err, ondisk.ErrUnsupported)
				continue
			}
			require.NoError(t, err)
			var expected []disk.Range // neighbours in one
			for _, at := range m[off : off+n] {
				if k := len(expected) - 1; k >= 0 && expected[k].End() == at {
					expected[k].Len++
				} else {
					expected = append(expected, disk.Range{Off: at, Len: 1})
				}
			}
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

func run(off, n, at int64) guestfile.Run { return guestfile.Run{Off: off, Len: n, At: at} }

func TestPieces(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		streams [][]guestfile.Run
		pieces  int64
	}{
		"no runs":                    {nil, 0},
		"one run":                    {[][]guestfile.Run{{run(0, 10, 100)}}, 1},
		"two that follow each other": {[][]guestfile.Run{{run(0, 10, 100), run(10, 5, 110)}}, 1},
		"two apart":                  {[][]guestfile.Run{{run(0, 10, 100), run(10, 5, 111)}}, 2},
		"backwards":                  {[][]guestfile.Run{{run(0, 10, 100), run(10, 10, 90)}}, 2},
		"a hole without room":        {[][]guestfile.Run{{run(0, 10, 100), run(50, 5, 110)}}, 1},
		"a hole with its room":       {[][]guestfile.Run{{run(0, 10, 100), run(50, 5, 150)}}, 1},
		"a hole with other room":     {[][]guestfile.Run{{run(0, 10, 100), run(50, 5, 149)}}, 2},
		"a hole at the start":        {[][]guestfile.Run{{run(50, 5, 7)}}, 1},
		"streams apart":              {[][]guestfile.Run{{run(0, 10, 100)}, {run(0, 10, 500)}}, 1},
		"streams of pieces": {
			[][]guestfile.Run{{run(0, 1, 9), run(1, 1, 5)}, {run(0, 1, 50), run(1, 1, 70)}},
			3,
		},
		"the first stream is a hole":  {[][]guestfile.Run{{}, {run(0, 10, 500)}}, 1},
		"three, of which two are one": {[][]guestfile.Run{{run(0, 1, 9), run(1, 1, 20), run(2, 1, 21)}}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &guestfile.Census{Budget: guestfile.NewFragmentBudget()}
			tally := c.Begin()
			var bytes int64
			for _, s := range tc.streams {
				tally.Stream()
				for _, r := range s {
					tally.Add(r)
					bytes += r.Len
				}
			}
			tally.End(false)
			require.Equal(t, tc.pieces, c.Files.Pieces)
			require.Equal(t, bytes, c.Files.Bytes)
			require.Equal(t, tc.pieces > 1, c.Files.Fragmented == 1)
			require.Zero(t, c.Folders)
		})
	}
}

// A piece costs more than the bytes that name it: small structures can name many of them.
func TestPiecesCost(t *testing.T) {
	t.Parallel()
	c := &guestfile.Census{Budget: guestfile.NewFragmentBudget()}
	tally := c.Begin()
	for i := range int64(10) {
		tally.Add(run(2*i, 1, 7*i)) // the second of each two follows the first
		tally.Add(run(2*i+1, 1, 7*i+1))
	}
	require.EqualValues(t, 10*guestfile.RunCost, c.Budget.Work.Spent())
}

// The sums of many files do not depend on their order.
func TestSumsOfFiles(t *testing.T) {
	t.Parallel()
	c := &guestfile.Census{Budget: guestfile.NewFragmentBudget()}
	for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(1000) {
		tally := c.Begin()
		for n := range int64(i) {
			tally.Add(run(n, 1, 2*n))
		}
		tally.End(false)
	}
	require.Equal(t, guestfile.Group{
		Number: 1000, Placed: 999, Fragmented: 998, Pieces: 999 * 1000 / 2, Bytes: 999 * 1000 / 2,
		Apart: 999*1000/2 - 1,
	}, c.Files)
}

// Bitmaps of any length and content are what their bits are.
func TestFreeSpace(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		var f guestfile.FreeRuns
		var want guestfile.Free
		last := int64(0)
		base := int64(0)
		for range 3 { // bitmaps that follow each other
			raw := make([]byte, 1+r.IntN(20))
			for i := range raw {
				raw[i] = []byte{0, 0xff, byte(r.Uint32())}[r.IntN(3)]
			}
			n := int64(len(raw))*8 - r.Int64N(8)
			for i := range n {
				if raw[i/8]>>(i%8)&1 != 0 {
					last = 0
					continue
				}
				if last == 0 {
					want.Pieces++
				}
				last += 512
				want.Bytes, want.Largest = want.Bytes+512, max(want.Largest, last)
			}
			f.Bitmap(raw, n, base, 512)
			base += n * 512
		}
		require.Equal(t, want, f.Free)
	}
}

func TestErrorsOfAWalk(t *testing.T) {
	t.Parallel()
	c := &guestfile.Census{Budget: guestfile.NewFragmentBudget()}
	disk := errors.New("input/output error")
	require.True(t, c.Skip(ondisk.Field("x", "y", 0, 1, 2)))
	require.True(t, c.Skip(ondisk.ErrUnsupported))
	require.False(t, c.Skip(disk))
	require.Equal(t, int64(2), c.Unread)
	require.ErrorIs(t, c.End(disk), disk)
	require.ErrorIs(t, c.End(ondisk.ErrFormat), ondisk.ErrFormat)
	require.False(t, c.Ended)
	c.Budget.Work.Limit = 10
	err := c.Budget.Work.Spend(11)
	require.False(t, c.Skip(err))
	require.NoError(t, c.End(err))
	require.True(t, c.Ended)
	require.ErrorIs(t, c.End(disk), disk)
	require.Equal(t, int64(2), c.Unread)
}

func TestStride(t *testing.T) {
	t.Parallel()
	c := &guestfile.Census{}
	for records, want := range map[int64]int64{
		0: 1, 1: 1, guestfile.MaxRecords: 1, guestfile.MaxRecords + 1: 2,
		1 << 30: 1 << 11,
	} {
		require.Equal(t, want, c.Stride(records))
		require.Equal(t, records, c.Of)
	}
}
