package plan_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/verify"
)

// checkExplained wants a reason for each byte in which the result differs from the moved source, and the patches of a
// plan to hold what they replace.
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

// TestEveryByteHasAReason plans disks whose tables were damaged at random, with foreign bytes in unused entries, behind
// headers and arrays, and at the end. What is not refused differs from the moved source in explained bytes only; where
// nothing moves and nothing is to be mended, in none.
func TestEveryByteHasAReason(t *testing.T) {
	n := disktest.Sample(6000)
	same, mended, moved, refused := 0, 0, 0, 0
	for i := range n {
		d := dice{Rand: rand.New(rand.NewPCG(tablesSeed+1, uint64(i)))}
		g := d.oddGPT()
		// What belongs to a table, or to nothing: a loader of a board, a superblock, or a few wrong bytes.
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

// Any byte that is wrong in a result is found, by what its table says or since nothing explains it.
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
		if err == nil && len(found) == 0 { // it is in a field that is free, such as the end in CHS
			require.Less(t, at, tableforge.MBRMagic)
			require.True(t, slices.ContainsFunc(p.plan.Patches, func(x disk.Patch) bool {
				return x.Range().Contains(disk.Range{Off: int64(at), Len: 1})
			}) || (at-tableforge.MBREntries)%tableforge.MBREntry >= 1, "byte %d", at)
		}
	})
}
