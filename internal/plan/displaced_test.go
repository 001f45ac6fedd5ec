package plan_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/units"
)

// What the boot needs in its place is refused where a partition, a patch or the growth of the disk takes that place.
func TestPlacesThatTheBootNeeds(t *testing.T) {
	const sectors = 8192
	last := int64(sectors - 34)
	mbr := tableforge.NewMBR(sectors, slot(6, 63, 3000))
	roomy := tableforge.NewGPT(512, sectors, 128, tableforge.GPTEntry{First: 63, Last: 3062})
	tight := tableforge.NewGPT(512, sectors, 128, tableforge.GPTEntry{First: 63, Last: uint64(last)})
	for name, tc := range map[string]struct {
		image   []byte
		at, n   int64 // sectors
		refused bool
	}{
		"in front":                           {mbr, 1, 62, false},
		"over the table":                     {mbr, 0, 1, true},
		"where the partition goes":           {mbr, 4000, 1, true},
		"behind the partition, then and now": {mbr, 6000, 2, false},
		"behind the entries":                 {roomy, 30, 4, false},
		"over the header":                    {roomy, 1, 1, true},
		"behind the entries of the backup":   {roomy, sectors - 3, 2, false},
		"the same, on a disk that grows":     {tight, sectors - 3, 2, true},
		"in front, on a disk that grows":     {tight, 30, 4, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := read(t, boottest.Disk(tc.image))
			issue := ondisk.Issue{Code: "needed", Effect: ondisk.Unbootable, Text: "it is needed"}
			l.Boot.Fixed = []boot.Fixed{{Range: disk.Range{Off: tc.at * 512, Len: tc.n * 512}, Issue: issue}}
			p := newPlan(t, l, kept)
			require.NotEmpty(t, p.Moves)
			if tc.refused {
				p.Grow(l, p.Size+units.MiB)
				require.Equal(t, []string{"needed"}, codes(p.Refusals(false)))
			} else {
				require.Empty(t, p.Refusals(false))
			}
			require.Empty(t, p.Refusals(true))
		})
	}
}

// Data between partitions that move are a warning on a disk that no PC boots: a board may read them by their place.
func TestDataBetweenPartitionsThatMove(t *testing.T) {
	const at, n = 16_384, 128
	disk := func(first, second uint32, put func(f forge.Bytes)) *layout.Layout {
		f := tableforge.NewMBR(65_536, slot(0x83, first, 16_000), slot(0x83, second, 20_000))
		for i := range int64(n * 512) {
			f[at*512+i] = 0x55
		}
		put(f)
		return read(t, boottest.Disk(f))
	}
	unchanged := func(forge.Bytes) {}
	for name, tc := range map[string]struct {
		layout *layout.Layout
		warns  bool
		more   string
	}{
		"moved": {disk(63, 30_001, unchanged), true, ""},
		"in two gaps": {
			disk(63, 30_001, func(f forge.Bytes) { f.Text(50_010*512, "behind the second partition") }),
			true, ", and data in 1 other gap move likewise",
		},
		"a PC":           {disk(63, 30_001, func(f forge.Bytes) { f.Put(0, boottest.Code("fa eb fe")) }), false, ""},
		"nothing there":  {disk(63, 30_001, func(f forge.Bytes) { clear(f[at*512 : (at+n)*512]) }), false, ""},
		"nothing moves":  {disk(128, 30_080, unchanged), false, ""},
		"stays":          {disk(128, 30_001, unchanged), false, ""},
		"a known loader": {disk(63, 30_001, func(f forge.Bytes) { f.Text(at*512, "\xd0\x0d\xfe\xed") }), false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlan(t, tc.layout, kept)
			found := slices.DeleteFunc(coded(p.Notes, "fixed-place"),
				func(x align.Finding) bool { return x.Severity != align.Warning })
			if !tc.warns {
				require.Empty(t, found)
				return
			}
			require.Len(t, found, 1)
			moved := p.Moves[0].To - p.Moves[0].From
			require.Contains(t, found[0].Text, fmt.Sprintf("bytes %d to %d are in no partition", at*512, (at+n)*512-1))
			require.Contains(t, found[0].Text, fmt.Sprintf("move to byte %d%s:", at*512+moved, tc.more))
		})
	}
}

// A partition that a boot ROM reads from a sector of the disk stays, and all others move as if it were a wall: the
// loader of Rockchip at LBA 64, in front of a partition off the boundary.
func TestFixedPlaceStays(t *testing.T) {
	const header = "\x3b\x8c\xdc\xfc" // mkimage -T rksd -n rk3399, U-Boot 2023.01
	goal := kept
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
	p := newPlan(t, l, kept)
	require.Len(t, p.Refusals(true), 1)
	require.Equal(t, "fixed-place", p.Refusals(true)[0].Code)
	require.Contains(t, p.Refusals(true)[0].Text, "LBA 16384")
	require.Empty(t, p.Moves)
}
