package scan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
)

// A thousand images of a thousand partitions each: the report has all images, and memory is bounded.
func TestKeptRowsAreBounded(t *testing.T) {
	s := &search{}
	row := func(n int) *results.Image {
		i := results.NewImage("a.img")
		i.Disks = []results.Disk{results.NewDisk(0, align.Kept)}
		i.Disks[0].Partitions = make([]report.Partition, n)
		return i
	}
	for range 1000 {
		s.keep(row(results.MostItems))
	}
	small := row(fewItems)
	s.keep(small)
	require.Len(t, s.images, 1001)
	require.Len(t, s.images[0].Disks[0].Partitions, results.MostItems)
	require.Len(t, s.images[999].Disks[0].Partitions, fewItems)
	require.Len(t, small.Disks[0].Partitions, fewItems)
	require.Empty(t, small.Findings, "nothing is left out of a usual row")
	require.Less(t, s.items, maxKeptItems+1001*(fewItems+1))
}
