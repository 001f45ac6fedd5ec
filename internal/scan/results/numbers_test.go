package results_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/scan/results"
)

// A worker that was taken over may give each number, and a sparse file may have the largest: the sums never turn
// negative.
func TestSumsOfTheLargestNumbers(t *testing.T) {
	sum := results.NewSummary()
	for range 2 {
		i := crowded(1)
		i.Stored, i.Read, i.Disks[0].Fix.NewSize = math.MaxInt64, math.MaxInt64, math.MaxInt64
		require.NoError(t, i.Check())
		i.Assess(nil)
		sum.Add(i)
	}
	require.Equal(t, results.FixSum{Images: 2, Copies: math.MaxInt64, Grows: math.MaxInt64}, sum.Fix)
	require.Equal(t, int64(math.MaxInt64), sum.Read)
}
