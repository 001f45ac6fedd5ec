package ondisk

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The bitmap with its rules must say what a plain comparison of all pairs says. Overlaps are reported for the later
// block of a pair, whatever came in between.
func TestPlaceSetFindsOverlaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		unit := rapid.SampledFrom([]uint64{4, 8, 128}).Draw(t, "unit")
		base := rapid.Uint64Range(0, unit-1).Draw(t, "base")
		start := rapid.OneOf(
			rapid.Map(rapid.Uint64Range(0, 60), func(n uint64) uint64 { return base + n*unit }), // where grains lie
			rapid.Uint64Range(0, 61*unit), // and where they do not
		)
		s := NewPlaceSet(unit)
		var seen []uint64
		for _, at := range rapid.SliceOfN(start, 1, 40).Draw(t, "starts") {
			want := false
			for _, b := range seen {
				want = want || (at < b+unit && b < at+unit)
			}
			if want {
				// A damaged image has been found out; what later answers depend on is not specified.
				require.True(t, s.Add(at), "block at %d in %v", at, seen)
				return
			}
			require.False(t, s.Add(at), "block at %d in %v", at, seen)
			seen = append(seen, at)
		}
	})
}

// A full disk of 2 TiB in grains of 64 KiB, in any order, stays within the bound and finds the one block that comes
// twice.
func TestPlaceSetOfAWholeDisk(t *testing.T) {
	s := NewPlaceSet(128)
	const grains = 1 << 18
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, i := range rnd.Perm(grains) {
		require.False(t, s.Add(uint64(i)*128+21))
	}
	require.False(t, s.Full())
	require.Empty(t, s.odd, "all grains lie alike")
	require.True(t, s.Add(12345*128+21))
	require.True(t, s.Add(12345*128+20))
	require.True(t, s.Add(12345*128+22))
}

// Above its bounds it says that it did not look at everything, and grows no further.
func TestPlaceSetIsBounded(t *testing.T) {
	s := NewPlaceSet(1)
	for i := range uint64(maxPages) {
		s.Add(i * cellsPerPage)
	}
	require.False(t, s.Full())
	s.Add(maxPages * cellsPerPage)
	require.True(t, s.Full())
	require.Len(t, s.pages, maxPages)
}
