package plan_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/plan"
)

// everyPlace tries all places that the partitions of a tiny disk can have. It knows the rules of a plan and nothing
// of how one is found: the order stays; a partition starts where it did or on a boundary; data between partitions
// stays or moves as far as the partition in front of it, or as far as there is room; a record stays or comes down; an
// extended partition does not end earlier. What is to be left does not move.
type everyPlace struct {
	l     *layout.Layout
	items []layout.Item
	goal  align.Goal
	limit int64
	tried map[[3]int64]bool // states without a solution, or in progress: item, end, delta
}

// fitsSomewhere reports whether all that a disk holds has places in front of a limit.
func fitsSomewhere(l *layout.Layout, goal align.Goal, limit int64) bool {
	all := &everyPlace{l: l, items: l.Items(), goal: goal, limit: limit, tried: map[[3]int64]bool{}}
	front := l.Size
	if len(all.items) > 0 {
		front = all.items[0].Off
	}
	return all.fits(0, front, 0)
}

// fits reports whether the items from i on have places behind end. delta is how far the last partition moved.
func (e *everyPlace) fits(i int, end, delta int64) bool {
	key := [3]int64{int64(i), end, delta}
	if end > e.limit || e.tried[key] {
		return false
	}
	e.tried[key] = true
	if i == len(e.items) {
		return true
	}
	x := e.items[i]
	switch x.Kind {
	case layout.BoxEndItem:
		return e.gap(i, max(x.Off, end), delta)
	case layout.RecordItem:
		return e.record(i, end, delta) || (x.Off > end && e.record(i, x.Off, delta))
	case layout.PartitionItem:
	}
	stays := !e.goal.Selects(x.Number) || x.Off%e.goal.Must.Bytes() == 0
	if stays && x.Off >= end && e.gap(i, x.End(), 0) {
		return true
	}
	if e.goal.Leaves(x.Number) {
		return false
	}
	want := e.goal.Want.Bytes()
	for to := (end + want - 1) / want * want; to+x.Len <= e.limit; to += want {
		if e.gap(i, to+x.Len, to-x.Off) {
			return true
		}
	}
	return false
}

// record places boot record i at or behind a place: on a cylinder, where a DOS looks for it.
func (e *everyPlace) record(i int, at, delta int64) bool {
	x := e.items[i]
	if x.Step > 0 {
		at = (at + x.Step - 1) / x.Step * x.Step
	}
	return (x.Most == 0 || at <= x.Most) && e.gap(i, at+x.Len, delta)
}

// gap places the data behind item i.
func (e *everyPlace) gap(i int, end, delta int64) bool {
	g := e.l.Gaps[i].Data
	if g.Len == 0 {
		return e.fits(i+1, end, delta)
	}
	stays, moves := g.Off >= end, g.Off+delta >= end
	switch {
	case stays && e.fits(i+1, g.End(), delta):
		return true
	case moves && e.fits(i+1, g.End()+delta, delta):
		return true
	}
	return !moves && e.fits(i+1, end+g.Len, delta)
}

// TestGrowthIsTheLeast holds the growth of tiny disks against a search for any place that would do without.
func TestGrowthIsTheLeast(t *testing.T) {
	grown, n := 0, disktest.Sample(20_000)
	for i := range n {
		d := dice{Rand: rand.New(rand.NewPCG(tablesSeed, uint64(i))), tiny: true}
		drawn := d.mbr()
		source := drawn.disk()
		before := bare(t, source)
		again := fmt.Sprintf("disk %d", i)
		goal := d.goal(before)
		goal.Must = align.BoundaryOf(4096 << d.IntN(2))
		goal.Want = align.BoundaryOf(goal.Must.Bytes() << d.IntN(2))
		p, err := plan.New(before, goal)
		require.NoError(t, err, again)
		require.Empty(t, p.Refusals(true), again)
		drawn.checkStray(t, p.View(source), again)

		// The plan is the same for a disk whose zeros are all stored.
		stored := disktest.Head(t, source, source.Size())
		q, err := plan.New(bare(t, disktest.Memory(stored)), p.Goal)
		require.NoError(t, err, again)
		require.Equal(t, p.Pieces, q.Pieces, again)
		require.Equal(t, p.Patches, q.Patches, again)

		fits := fitsSomewhere(before, goal, before.Usable(before.Size))
		require.Equal(t, fits, p.Size == before.Size, again)
		if !fits {
			grown++
		}
	}
	require.Greater(t, grown, n/20, "too few disks that have to grow")
}

// TestTablesAtTheLimit plans disks that end near the last LBA that an MBR can name, or behind it: a partition that
// cannot be named at its new place is refused.
func TestTablesAtTheLimit(t *testing.T) {
	refused, planned, n := 0, 0, disktest.Sample(10_000)
	for i := range n {
		d := dice{Rand: rand.New(rand.NewPCG(tablesSeed, uint64(i))), far: true}
		drawn := d.mbr()
		source := drawn.disk()
		before := bare(t, source)
		if !before.Table.Plausible() {
			continue
		}
		again := fmt.Sprintf("disk %d", i)
		p, err := plan.New(before, d.goal(before))
		require.NoError(t, err, again)
		if len(p.Refusals(true)) > 0 {
			refused++
			continue
		}
		planned++
		view := p.View(source)
		after := bare(t, view)
		checkPlaces(t, p, before, after, again)
		checkBytes(t, p, before, after, again)
		drawn.checkStray(t, view, again)
	}
	require.Greater(t, refused, n/100)
	require.Greater(t, planned, n/100)
}

// An extended partition without logical ones has nothing that must end in front of the limit but its own record.
func TestRecordBeyondTheLimit(t *testing.T) {
	const start, sectors = 1<<32 - 4095, 2048
	s := &sparse{sectors: 1<<32 + 4096, bytes: map[int64]forge.Bytes{}}
	s.bytes[0] = tableforge.NewMBR(1, slot(0x83, start, sectors), slot(0x05, start+sectors, 4095-sectors))
	before := bare(t, s.disk())
	require.True(t, before.Table.Plausible())
	p := newPlan(t, before, align.Goal{Must: align.Kept, Want: align.Kept})
	require.Len(t, p.Refusals(true), 1)
	require.Contains(t, p.Refusals(true)[0].Text, "the partition table can address")
}
