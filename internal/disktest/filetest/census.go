package filetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
)

// Walk counts the files of a volume.
type Walk = func(*guestfile.Census, disk.Disk) error

// Count adds a file or folder to a group, with its pieces and bytes, as counted by tools.
func Count(g *guestfile.Group, pieces, bytes int64) {
	g.Number, g.Pieces, g.Bytes = g.Number+1, g.Pieces+pieces, g.Bytes+bytes
	if pieces > 0 {
		g.Placed++
	}
	if pieces > 1 {
		g.Fragmented, g.Apart = g.Fragmented+1, g.Apart+bytes
	}
}

// Counted returns the census of a sound volume.
func Counted(t testing.TB, volume disk.Disk, walk Walk) *guestfile.Census {
	t.Helper()
	c := &guestfile.Census{Budget: guestfile.NewFragmentBudget()}
	require.NoError(t, walk(c, volume))
	require.False(t, c.Ended)
	require.Equal(t, c.Of, c.Looked, "no sample")
	consistent(t, c, volume)
	return c
}

// CountedInPart returns the census of a volume that ends with its budget.
func CountedInPart(t testing.TB, volume disk.Disk, walk Walk, limit int64) *guestfile.Census {
	t.Helper()
	c := &guestfile.Census{Budget: guestfile.NewFragmentBudget()}
	c.Budget.Work.Limit = limit
	require.NoError(t, walk(c, volume))
	require.True(t, c.Ended)
	return c
}

// ExerciseCensus counts the files of a possibly broken volume, and checks the promises of the census.
func ExerciseCensus(t *testing.T, volume disk.Disk, walk Walk) {
	t.Helper()
	c := &guestfile.Census{Budget: guestfile.NewFragmentBudget()}
	c.Budget.Work.Limit = 64 << 20 // an input must not take seconds
	Known(t, walk(c, volume))
	consistent(t, c, volume)
}

// consistent requires the numbers of a census to agree with each other.
func consistent(t testing.TB, c *guestfile.Census, volume disk.Disk) {
	t.Helper()
	for _, g := range []guestfile.Group{c.Files, c.Folders} {
		require.LessOrEqual(t, g.Placed, g.Number)
		require.LessOrEqual(t, g.Fragmented, g.Placed)
		require.GreaterOrEqual(t, g.Pieces, g.Placed+g.Fragmented)
		require.LessOrEqual(t, g.Apart, g.Bytes)
		require.Equal(t, g.Fragmented > 0, g.Apart > 0)
	}
	require.LessOrEqual(t, c.Looked, max(c.Of, c.Looked))
	if f := c.Free; f != nil {
		require.LessOrEqual(t, f.Largest, f.Bytes)
		require.Equal(t, f.Pieces > 0, f.Largest > 0)
		require.LessOrEqual(t, f.Bytes, volume.Size())
	}
}
