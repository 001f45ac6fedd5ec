package guestfile_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

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
