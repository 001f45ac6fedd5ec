package plan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
	"github.com/trueup/trueup/internal/plan"
)

// A partition that a boot ROM reads from a sector of the disk stays, and all others move as if it were a wall: the
// loader of Rockchip at LBA 64, in front of a partition off the boundary.
func TestFixedPlaceStays(t *testing.T) {
	const header = "\x3b\x8c\xdc\xfc" // mkimage -T rksd -n rk3399, U-Boot 2023.01
	goal := align.Goal{Must: align.DefaultBoundary, Want: align.Kept}
	f := tableforge.NewGPT(512, 40_000, 128, tableforge.GPTEntry{Name: "loader1", First: 64, Last: 4000},
		tableforge.GPTEntry{First: 4001, Last: 30_000})
	f.Text(64*512, header)
	volumeforge.PutXFS(f, 4001, 8000)
	l := read(t, boottest.Disk(f))
	require.NotEmpty(t, l.Partitions[0].Fixed)
	require.False(t, align.Judged(l.Partitions[0]))

	p := newPlan(t, l, goal)
	require.Len(t, p.Moves, 1)
	require.Equal(t, 2, p.Moves[0].Partition)
	require.Empty(t, p.Refusals(false))
	after := read(t, p.View(boottest.Disk(f)))
	require.Equal(t, int64(64*512), after.Partitions[0].Off)
	require.NotEmpty(t, after.Partitions[0].Fixed)
	require.Empty(t, newPlan(t, after, goal).Moves)

	goal.Only = []int{1}
	_, err := plan.New(l, goal)
	require.ErrorIs(t, err, plan.ErrSelection)
	require.ErrorContains(t, err, "Rockchip")
}

// Where it is in the way, the move is refused: it never makes room.
func TestFixedPlaceInTheWay(t *testing.T) {
	f := tableforge.NewGPT(512, 40_000, 128, tableforge.GPTEntry{First: 2049, Last: 16_383},
		tableforge.GPTEntry{Name: "uboot", First: 16_384, Last: 20_000})
	f.Text(16_384*512, "LOADER  ")
	volumeforge.PutXFS(f, 2049, 8000)
	f.Text(1000*512, "in the gap, which stays")
	l := read(t, boottest.Disk(f))
	p := newPlan(t, l, align.Goal{Must: align.DefaultBoundary, Want: align.Kept})
	require.Len(t, p.Refusals(true), 1)
	require.Equal(t, "fixed-place", p.Refusals(true)[0].Code)
	require.Contains(t, p.Refusals(true)[0].Text, "LBA 16384")
	require.Empty(t, p.Moves)
}
