package plan_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/verify"
)

// everyPlace tries all places for the partitions of a tiny disk. It implements the rules of a plan independently: the
// order stays; a partition starts where it did or on a boundary; data between partitions stay, or move as far as the
// partition before them, or as far as there is room; a record stays or moves down; an extended partition does not end
// earlier. Fixed partitions do not move.
type everyPlace struct {
	l     *layout.Layout
	items []layout.Item
	goal  align.Goal
	limit int64
	tried map[[3]int64]bool // states without a solution, or in progress: item, end, delta
}

// fitsSomewhere reports whether everything on a disk fits before a limit.
func fitsSomewhere(l *layout.Layout, goal align.Goal, limit int64) bool {
	all := &everyPlace{l: l, items: l.Items(), goal: goal, limit: limit, tried: map[[3]int64]bool{}}
	front := l.Size
	if len(all.items) > 0 {
		front = all.items[0].Off
	}
	return all.fits(0, front, 0)
}

// fits reports whether the items from i on fit after end. delta is the distance by which the last partition moved.
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

// record places boot record i at or after a place: on a cylinder, if DOS searches for it there.
func (e *everyPlace) record(i int, at, delta int64) bool {
	x := e.items[i]
	if x.Step > 0 {
		at = (at + x.Step - 1) / x.Step * x.Step
	}
	return (x.Most == 0 || at <= x.Most) && e.gap(i, at+x.Len, delta)
}

// gap places the data after item i.
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

// TestGrowthIsTheLeast compares the growth of tiny disks with an exhaustive search for a placement without growth.
func TestGrowthIsTheLeast(t *testing.T) {
	grown, n := 0, disktest.Sample(20_000)
	for i := range n {
		d := dice{Rand: rand.New(rand.NewPCG(tablesSeed, uint64(i))), tiny: true}
		drawn := d.mbr()
		source := drawn.disk()
		before := boottest.Bare(t, source)
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
		q, err := plan.New(boottest.Bare(t, disktest.Memory(stored)), p.Goal)
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

// TestTablesAtTheLimit plans disks that end near the last LBA of an MBR, or after it: a partition beyond it is refused.
func TestTablesAtTheLimit(t *testing.T) {
	refused, planned, n := 0, 0, disktest.Sample(10_000)
	for i := range n {
		d := dice{Rand: rand.New(rand.NewPCG(tablesSeed, uint64(i))), far: true}
		drawn := d.mbr()
		source := drawn.disk()
		before := boottest.Bare(t, source)
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
		after := boottest.Bare(t, view)
		checkPlaces(t, p, before, after, again)
		checkBytes(t, p, before, after, again)
		drawn.checkStray(t, view, again)
	}
	require.Greater(t, refused, n/100)
	require.Greater(t, planned, n/100)
}

// Of an extended partition without logical ones, only its own record must end before the limit.
func TestRecordBeyondTheLimit(t *testing.T) {
	const start, sectors = 1<<32 - 4095, 2048
	s := &sparse{sectors: 1<<32 + 4096, bytes: map[int64]forge.Bytes{}}
	s.bytes[0] = tableforge.NewMBR(1, slot(0x83, start, sectors), slot(0x05, start+sectors, 4095-sectors))
	before := boottest.Bare(t, s.disk())
	require.True(t, before.Table.Plausible())
	p := newPlan(t, before, align.Goal{Must: align.Kept, Want: align.Kept})
	require.Len(t, p.Refusals(true), 1)
	require.Contains(t, p.Refusals(true)[0].Text, "the partition table can address")
}

// checkExplained requires a reason for each byte in which the result differs from the moved source, and that the
// patches of a plan contain the old values.
func checkExplained(
	t require.TestingT, p *plan.Plan, source, view disk.Disk, before, after *layout.Layout, again string,
) {
	r := verify.Result{Base: source, Source: source, Dest: view, Before: before, After: after}
	found, err := r.Unexplained()
	require.NoError(t, err, again)
	require.Empty(t, found, again)
	bare, end := disk.Compose(source, p.Size, p.Pieces), int64(0)
	for _, x := range p.Patches {
		require.Len(t, x.New, len(x.Old), again)
		require.NotEqual(t, x.Old, x.New, "%s: a patch changes something: %s", again, x.Reason)
		require.GreaterOrEqual(t, x.Off, end, "%s: sorted and disjoint", again)
		require.NotEmpty(t, x.Reason, again)
		end = x.Range().End()
		old := make([]byte, len(x.Old))
		_, err := bare.ReadAt(old, x.Off)
		require.NoError(t, err, again)
		require.Equal(t, old, x.Old, "%s: %s at %#x", again, x.Reason, x.Off)
	}
	if len(p.Moves) == 0 && !p.Mends && p.Size == p.OldSize {
		require.Empty(t, p.Patches, again)
	}
}

// TestEveryByteHasAReason plans disks with randomly damaged tables, with foreign bytes in unused entries, after headers
// and arrays, and at the end. Accepted disks differ from the moved source in explained bytes only; without moves and
// repairs, in none.
func TestEveryByteHasAReason(t *testing.T) {
	n := disktest.Sample(6000)
	same, mended, moved, refused := 0, 0, 0, 0
	for i := range n {
		d := dice{Rand: rand.New(rand.NewPCG(tablesSeed+1, uint64(i)))}
		g := d.oddGPT()
		// Data of a table, or of nothing: a loader of a board, a superblock, or a few wrong bytes.
		for range d.IntN(3) {
			array := d.IntN(2)
			header := []int64{1, g.sectors - 1}[array]
			at := d.pick(
				tableforge.MBREntries, 12, header*g.sector, header*g.sector+56, header*g.sector+300,
				g.places[array]*g.sector, g.places[array]*g.sector+d.Int64N(int64(len(g.array))),
				g.places[array]*g.sector+int64(len(g.array)), (g.sectors-2)*g.sector, g.sectors*g.sector-1,
			)
			for off := at; off < min(at+d.pick(1, 8, 92, 600, 20_000), g.sectors*g.sector+g.extra); off++ {
				if g.at(off)[0] = byte(d.Uint32()); d.chance(10) {
					break
				}
			}
			g.damaged += fmt.Sprintf(", bytes from %#x on", at)
		}

		source := g.disk()
		again := fmt.Sprintf("disk %d, %s", i, g.damaged)
		before, err := layout.Read(source, table.Geometry{})
		if err != nil || before.Table == nil || before.Table.Scheme != table.GPT {
			continue // no GPT is left
		}
		require.NoError(t, before.ReadGaps(source), again)
		goal := d.goal(before)
		goal.Mend = d.chance(60)
		p, err := plan.New(before, goal)
		if err != nil {
			continue // malformed
		}
		if d.chance(30) {
			p.Grow(before, p.Size+d.pick(sector, mib, 5*mib+sector))
		}
		if len(p.Refusals(true)) > 0 {
			refused++
			continue
		}
		view := p.View(source)
		after, err := layout.Read(view, table.Geometry{})
		require.NoError(t, err, again)
		require.NoError(t, verify.Promise(p, before, after), again)
		checkExplained(t, p, source, view, before, after, again)
		switch {
		case len(p.Moves) > 0:
			moved++
		case p.Mends:
			mended++
			require.False(t, after.Damaged(), again)
		case p.Size == p.OldSize:
			same++
		}
	}
	t.Logf("%d copied as they are, %d mended, %d moved, %d refused", same, mended, moved, refused)
	for _, k := range []int{same, mended, moved, refused} {
		require.Greater(t, k, n/50)
	}
}

// Any wrong byte in a result is found, from its table or because nothing explains it.
func TestWrongBytesHaveNoReason(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPlan(t)
		source := p.disk()
		r := verify.Result{
			Base: source, Source: source, Dest: disktest.Memory(p.result), Before: p.before, After: p.after,
		}
		found, err := r.Unexplained()
		require.NoError(t, err)
		require.Empty(t, found)
		wrong := slices.Clone(p.result)
		at := rapid.IntRange(0, len(wrong)-1).Draw(t, "at")
		wrong[at] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits"))
		is, err := layout.Read(disktest.Memory(wrong), table.Geometry{})
		if err != nil || is.Table == nil || is.ReadGaps(disktest.Memory(wrong)) != nil ||
			verify.Promise(p.plan, p.before, is) != nil {
			return
		}
		r.Dest, r.After = disktest.Memory(wrong), is
		found, err = r.Unexplained()
		if err == nil && len(found) == 0 { // it is in a free field, such as the end in CHS
			require.Less(t, at, tableforge.MBRMagic)
			require.True(t, slices.ContainsFunc(p.plan.Patches, func(x disk.Patch) bool {
				return x.Range().Contains(disk.Range{Off: int64(at), Len: 1})
			}) || (at-tableforge.MBREntries)%tableforge.MBREntry >= 1, "byte %d", at)
		}
	})
}
