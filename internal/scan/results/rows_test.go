package results_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
)

// crowded is an image with many partitions, only the last of which is off the boundary.
func crowded(n int) *results.Image {
	i := results.NewImage("a.img")
	i.State, i.Format = results.Judged, "raw"
	d := results.NewDisk(1<<30, align.DefaultBoundary)
	d.Verdict = align.Misaligned
	d.Fix = &results.Fix{NewSize: 1 << 20, Refusals: []align.Finding{}}
	for k := range n {
		d.Partitions = append(d.Partitions, report.Partition{Number: k + 1, Verdict: align.Aligned})
		d.Fix.Moves = append(d.Fix.Moves, report.Move{Partition: k + 1})
	}
	d.Partitions[n-1].Verdict = align.Misaligned
	i.Disks = []results.Disk{d, d}
	return i
}

func TestTrim(t *testing.T) {
	i := crowded(100)
	i.Trim(10)
	d := i.Disks[0]
	require.Len(t, d.Partitions, 10)
	require.Equal(t, 9, d.Partitions[8].Number)
	require.Equal(t, 100, d.Partitions[9].Number, "the one that is off the boundary stays")
	require.Empty(t, i.Disks[1].Partitions, "the limit is that of the row")
	require.NotNil(t, i.Disks[1].Partitions)
	require.Equal(t, align.Misaligned, d.Verdict)
	require.Equal(t, int64(2<<20), i.Grows())
	require.Len(t, i.Findings, 1)
	require.Equal(t, "details-left-out", i.Findings[0].Code)
	require.NoError(t, i.Check())
	i.Trim(5)
	require.Len(t, i.Findings, 1, "it is said once")
}

// A refused image must not look as if a copy were possible.
func TestTrimKeepsThatACopyIsRefused(t *testing.T) {
	i := crowded(10)
	i.Findings = make([]align.Finding, 20)
	i.Disks[0].Fix.Refusals = []align.Finding{{Text: "a"}, {Text: "b"}}
	i.Trim(5)
	require.Equal(t, []align.Finding{{Text: "a"}}, i.Disks[0].Fix.Refusals)
}

func TestTrimLeavesShortRows(t *testing.T) {
	i := crowded(10)
	i.Trim(20)
	require.Len(t, i.Disks[1].Partitions, 10)
	require.Empty(t, i.Findings)
}

// A compromised worker may return any numbers, and a sparse file may have the largest: the sums never become negative.
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
