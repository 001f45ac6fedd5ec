package library_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/library"
)

// A worker that was taken over may give each number, and a sparse file may have the largest: the sums never turn negative.
func TestSumsOfTheLargestNumbers(t *testing.T) {
	sum := library.NewSummary()
	for range 2 {
		i := crowded(1)
		i.Stored, i.Read, i.Disks[0].Fix.NewSize = math.MaxInt64, math.MaxInt64, math.MaxInt64
		require.NoError(t, i.Check())
		i.Settle(nil)
		sum.Add(i)
	}
	require.Equal(t, library.FixSum{Images: 2, Copies: math.MaxInt64, Grows: math.MaxInt64}, sum.Fix)
	require.Equal(t, int64(math.MaxInt64), sum.Read)
}
