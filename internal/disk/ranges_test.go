package disk_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/disk"
)

func TestRanges(t *testing.T) {
	t.Parallel()
	r := disk.Range{Off: 100, Len: 50}
	require.Equal(t, int64(150), r.End())
	require.True(t, r.Contains(r))
	require.True(t, r.Contains(disk.Range{Off: 149, Len: 1}))
	require.False(t, r.Contains(disk.Range{Off: 149, Len: 2}))
	require.False(t, r.Contains(disk.Range{Off: 99, Len: 2}))
	require.True(t, r.Overlaps(disk.Range{Off: 149, Len: 100}))
	require.True(t, r.Overlaps(disk.Range{Off: 0, Len: 101}))
	require.False(t, r.Overlaps(disk.Range{Off: 150, Len: 1}), "half-open: neighbours share no byte")
	require.False(t, r.Overlaps(disk.Range{Off: 0, Len: 100}))
	require.False(t, r.Overlaps(disk.Range{Off: 120}), "an empty range has no byte to share")
}

func TestMerge(t *testing.T) {
	t.Parallel()
	in := []disk.Range{{Off: 30, Len: 5}, {Off: 0, Len: 10}, {Off: 10, Len: 2}, {Off: 32, Len: 1}, {Off: 13, Len: 1}}
	require.Equal(t, []disk.Range{{Off: 0, Len: 12}, {Off: 13, Len: 1}, {Off: 30, Len: 5}}, disk.Merge(in))
	require.Empty(t, disk.Merge(nil))
}

// Gaps lie before, between and behind pieces.
func TestGaps(t *testing.T) {
	t.Parallel()
	at := func(off, n int64) disk.Piece { return disk.Piece{Range: disk.Range{Off: off, Len: n}} }
	for want, pieces := range map[string][]disk.Piece{
		"[{0 100}]":                nil,
		"[]":                       {at(0, 40), at(40, 60)},
		"[{0 10} {20 10} {40 60}]": {at(10, 10), at(30, 10)},
		"[{0 10} {30 70}]":         {at(10, 10), at(20, 10)},
		"[{50 50}]":                {at(0, 50)},
		"[{0 50}]":                 {at(50, 50)},
	} {
		require.Equal(t, want, fmt.Sprint(disk.Gaps(disk.Range{Len: 100}, pieces)))
	}
}

// setSize is the space that random ranges lie in, in bytes.
const setSize = 64

// set has each byte that ranges cover.
type set [setSize]bool

func setOf(t *rapid.T, ranges []disk.Range) (s set) {
	for _, r := range ranges {
		require.Positive(t, r.Len)
		for i := r.Off; i < r.End(); i++ {
			require.False(t, s[i], "ranges %v have byte %d twice", ranges, i)
			s[i] = true
		}
	}
	return s
}

func drawRange(t *rapid.T) disk.Range {
	off := rapid.Int64Range(0, setSize-1).Draw(t, "off")
	return disk.Range{Off: off, Len: rapid.Int64Range(1, setSize-off).Draw(t, "len")}
}

func drawRanges(t *rapid.T) []disk.Range {
	short := rapid.Custom(func(t *rapid.T) disk.Range {
		r := drawRange(t)
		return disk.Range{Off: r.Off, Len: min(r.Len, 9)}
	})
	return rapid.SliceOfN(short, 0, 9).Draw(t, "ranges")
}

// Ranges combine as the sets of their bytes do.
func TestRangesAreSetsOfBytes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		drawn := drawRanges(t)
		var want set
		for _, r := range drawn {
			for i := r.Off; i < r.End(); i++ {
				want[i] = true
			}
		}
		a, b, r := disk.Merge(drawn), disk.Merge(drawRanges(t)), drawRange(t)
		inA, inB := setOf(t, a), setOf(t, b)
		require.Equal(t, want, inA)
		for i := 1; i < len(a); i++ {
			require.Less(t, a[i-1].End(), a[i].Off, "merged ranges do not touch")
		}

		overlapping := setOf(t, disk.Overlapping(a, r))
		for _, x := range a {
			require.Equal(t, x.Overlaps(r), overlapping[x.Off])
		}
		common, gaps := setOf(t, disk.Intersect(a, b)), setOf(t, disk.Gaps(r, a))
		for i := range int64(setSize) {
			require.Equal(t, inA[i] && inB[i], common[i])
			require.Equal(t, r.Contains(disk.Range{Off: i, Len: 1}) && !inA[i], gaps[i])
		}
	})
}

// Append keeps the bytes of ranges in order, and joins those that touch.
func TestAppend(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		merged := disk.Merge(drawRanges(t))
		var out []disk.Range
		for _, r := range merged {
			cut := rapid.Int64Range(1, r.Len).Draw(t, "cut")
			out = disk.Append(out, disk.Range{Off: r.Off, Len: cut})
			if cut < r.Len {
				out = disk.Append(out, disk.Range{Off: r.Off + cut, Len: r.Len - cut})
			}
		}
		require.Len(t, out, len(merged))
		require.Equal(t, setOf(t, merged), setOf(t, out))
	})
}
