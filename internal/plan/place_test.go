package plan

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// Numbers in these tests are bytes, and the boundary is 1,000.

func seg(kind segmentKind, off, most int64) segment {
	return segment{Range: disk.Range{Off: off, Len: 10}, kind: kind, most: most}
}

// Data after a partition stay if possible; tight lets them move toward the start.
func TestWhereSegmentsGo(t *testing.T) {
	for name, c := range map[string]struct {
		kind       segmentKind
		end, delta int64
		tight      bool
		want       int64
	}{
		"data stay": {data, 50, -30, false, 100},
		"tight data follow a partition that goes back": {data, 50, -30, true, 70},
		"but not into it":                                 {data, 90, -30, true, 90},
		"and not beyond their place":                      {data, 90, 30, true, 100},
		"data in the way go as far as the partition":      {data, 120, 30, false, 130},
		"a record stays":                                  {record, 50, -30, false, 100},
		"a tight record goes to the end of the partition": {record, 50, -30, true, 50},
		"the end of a box stays":                          {boxEnd, 50, -30, true, 100},
	} {
		at, last := arrange([]segment{seg(c.kind, 100, 0)}, c.end, c.delta, c.tight)
		require.Equal(t, []int64{c.want}, at, name)
		require.Equal(t, c.want+10, last, name)
	}
}

// A record that would exceed its highest place is placed closer to the start of the disk.
func TestRecordsWithinTheirLastPlace(t *testing.T) {
	require.True(t, within([]segment{seg(record, 0, 10), seg(data, 0, 0)}, []int64{10, 50}))
	require.False(t, within([]segment{seg(record, 0, 10)}, []int64{11}))
	at, _, ok := fit([]segment{seg(record, 100, 60)}, 50, 0, 1000)
	require.True(t, ok)
	require.Equal(t, []int64{50}, at)
}

func TestWhatTheTableMustName(t *testing.T) {
	for kind, want := range map[segmentKind]bool{front: true, data: true, record: false, boxEnd: false} {
		require.Equal(t, want, fitsTable([]segment{seg(kind, 0, 0)}, []int64{95}, 100), "%d", kind)
		require.True(t, fitsTable([]segment{seg(kind, 0, 0)}, []int64{90}, 100))
	}
}

// Adjacent pieces with the same move are merged.
func TestPiecesAreJoined(t *testing.T) {
	var p Plan
	p.keep(0, 100, 10)
	p.keep(10, 110, 5)
	p.keep(20, 115, 5)
	p.keep(25, 130, 5)
	require.Equal(t, []disk.Shift{{To: 100, Len: 15}, {From: 20, To: 115, Len: 5}, {From: 25, To: 130, Len: 5}},
		p.Pieces)
}

// A note is repeated only for another partition.
func TestNotesAreAddedOnce(t *testing.T) {
	var p Plan
	for range 2 {
		p.note(ondisk.Issue{Text: "damaged"})
		p.note(ondisk.Issue{Text: "damaged", Partition: 1})
		p.note(ondisk.Issue{Text: "in the way", Partition: 1})
	}
	require.Len(t, p.Notes, 3)
}

// placing is a placer of partitions with numbers from 1, on a disk of 20,000 bytes with 10 before them.
func placing(goal align.Goal, slots ...slot) *placer {
	goal.Want = align.BoundaryOf(1000)
	c := &placer{l: &layout.Layout{Size: 20_000}, goal: goal, limit: 20_000}
	c.slots = append([]slot{{after: []segment{{Range: disk.Range{Len: 10}, kind: front}}}}, slots...)
	for i := range slots {
		s := &c.slots[i+1]
		s.part.Number = i + 1
		s.moves, s.boundary = !goal.Must.On(s.part.Off) && goal.Selects(i+1), goal.Want
	}
	return c
}

func partition(off, size int64, after ...segment) slot {
	return slot{part: layout.Item{Range: disk.Range{Off: off, Len: size}}, after: after}
}

// Partitions that move anyway are not spared.
func TestOnlyWhatStaysIsSpared(t *testing.T) {
	to, _, ok := placing(align.Goal{Must: align.BoundaryOf(1000)}, partition(1500, 400), partition(2100, 100)).starts()
	require.True(t, ok)
	require.Equal(t, []int64{0, 2000, 3000}, to)
	to, _, ok = placing(align.Goal{Must: align.BoundaryOf(100)}, partition(1550, 400), partition(2100, 100)).starts()
	require.True(t, ok)
	require.Equal(t, []int64{0, 1000, 2100}, to)
}

// A partition at the next boundary moves back if a record after it would exceed its limit.
func TestPartitionsInFrontOfABoundedRecord(t *testing.T) {
	bounded := partition(2100, 500, seg(record, 2600, 3000))
	for off, want := range map[int64]int64{10_000: 10_000, 10_100: 11_000} {
		to, _, ok := placing(align.Goal{Must: align.BoundaryOf(1000)}, bounded, partition(off, 100)).starts()
		require.True(t, ok)
		require.Equal(t, []int64{0, 2000, want}, to)
	}

	left := partition(2100, 500, seg(record, 2600, 2599))
	_, stuck, ok := placing(align.Goal{Must: align.BoundaryOf(1000), Leave: map[int]string{1: "stays"}}, left,
		partition(10_000, 100)).starts()
	require.False(t, ok)
	require.Equal(t, 1, stuck, "it may not go back")
}

// If a partition fits nowhere, no partition before it is reported as in its way.
func TestWhatFitsNowhere(t *testing.T) {
	c := placing(align.Goal{Must: align.BoundaryOf(1000)}, partition(1000, 100), partition(5000, 1000))
	c.limit = 2500
	_, stuck, ok := c.starts()
	require.False(t, ok)
	require.Zero(t, stuck)
	c.goal.Leave = map[int]string{1: "stays"}
	_, stuck, ok = c.starts()
	require.False(t, ok)
	require.Zero(t, stuck, "it is not in the way of what has no place at all")
}

// A partition moves back to its old place or to a boundary, the highest possible.
func TestTheHighestPlace(t *testing.T) {
	back := func(own, most int64) int64 {
		c := placing(align.Goal{Must: align.BoundaryOf(500)}, partition(own, 100))
		to, ok := c.back(1, 0, most, 10_000)
		require.True(t, ok)
		return to
	}
	require.EqualValues(t, 1000, back(1500, 1200), "its own is beyond")
	require.EqualValues(t, 1000, back(500, 1200), "its own is lower")
	require.EqualValues(t, 1500, back(1500, 1800))
	require.EqualValues(t, 1000, back(1499, 1800), "its own is off the boundary")
}

// A table of another architecture is judged by its slices and never aligned. If its partitions are not read, it is
// refused.
func TestFixedTables(t *testing.T) {
	const listed = volume.Disklabel
	for name, c := range map[string]struct {
		kind    volume.Kind
		parts   []volume.Part
		verdict align.Verdict
		content align.Content
		refused bool
	}{
		"aligned": {listed, []volume.Part{{Name: "1", Start: units.MiB, Size: units.MiB}}, align.Aligned, "", false},
		"below": {
			listed, []volume.Part{{Name: "1", Start: 4 * units.KiB, Size: units.MiB}}, align.BelowBoundary, "", true,
		},
		"misaligned": {listed, []volume.Part{
			{Name: "1", Start: units.MiB, Size: units.MiB},
			{Name: "2", Start: 512, Size: 512},
		}, align.Misaligned, "", true},
		"behind the disk": {
			listed,
			[]volume.Part{{Name: "1", Start: -1, Size: 512}},
			align.NothingToJudge, align.NoPartitions, false,
		},
		"not read": {"rdb", nil, align.NothingToJudge, align.UnknownContent, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := &layout.Layout{
				Size: 8 * units.MiB, SectorSize: units.SectorSize, Boot: &boot.Result{Code: boot.Empty},
				Volume: &volume.Volume{Kind: c.kind, Size: 8 * units.MiB, Parts: c.parts},
			}
			require.Equal(t, c.verdict, align.Overall(l, align.DefaultBoundary))
			require.Equal(t, c.content, align.ContentOf(l))
			p, err := New(l, align.Goal{Must: align.DefaultBoundary, Want: align.Kept})
			require.NoError(t, err)
			require.Empty(t, p.Moves)
			require.Equal(t, c.refused, len(p.Refusals(false)) == 1 && p.Refusals(false)[0].Code == "fixed-table")
			require.Equal(t, c.refused, len(p.Refusals(false)) > 0)
			if c.refused {
				require.Equal(t, !l.Unlisted(), strings.Contains(p.Refusals(false)[0].Remedy, "trueup offset"))
			}
			require.Equal(t, l.Size, p.Size)
		})
	}
}
