package plan_test

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// tablesSeed makes a failure come again; TRUEUP_TABLE tries one table alone.
const (
	tablesSeed = 4
	tables     = 100_000
)

// TestHundredThousandTables plans random legal tables, of all kinds, and holds the plans to what is promised of them.
// Volumes are not looked at: other tests do so.
func TestHundredThousandTables(t *testing.T) {
	n := disktest.Sample(tables)
	if s := os.Getenv("TRUEUP_TABLE"); s != "" {
		i, err := strconv.Atoi(s)
		require.NoError(t, err)
		checkTable(t, i)
		return
	}
	for part := range 4 {
		t.Run(fmt.Sprintf("part %d", part), func(t *testing.T) {
			t.Parallel()
			for i := part; i < n; i += 4 {
				if checkTable(t, i); t.Failed() {
					return
				}
			}
		})
	}
}

// checkStray wants what was put between partitions in the result, once each and in the order that it had. It is
// looked for without asking where gaps and their data are.
func (s *sparse) checkStray(t *testing.T, view disk.Disk, again string) {
	t.Helper()
	known := map[uint64]bool{}
	var want, got []uint64
	for _, lba := range slices.Sorted(maps.Keys(s.stray)) {
		want = append(want, s.stray[lba])
		known[s.stray[lba]] = true
	}
	for at := int64(0); at < view.Size(); {
		e, err := view.Extent(at, view.Size()-at)
		require.NoError(t, err, again)
		for at = e.Off; at < e.End() && !e.Zero; at += sector {
			var b [8]byte
			_, err := view.ReadAt(b[:], at+8)
			require.NoError(t, err, again)
			if n := binary.LittleEndian.Uint64(b[:]); known[n] {
				got = append(got, n)
			}
		}
		at = e.End()
	}
	require.Equal(t, want, got, again)
}

// bare returns the layout of a disk whose volumes are not looked at.
func bare(t require.TestingT, d disk.Disk) *layout.Layout {
	tab, err := table.Read(d)
	require.NoError(t, err)
	l := &layout.Layout{
		Size: d.Size(), SectorSize: d.SectorSize(), Table: tab, Boot: &boot.Result{Code: boot.Empty},
		Issues: tab.Issues, Geometry: table.Geometry{Heads: 255, Sectors: 63},
	}
	for _, p := range tab.Partitions {
		l.Partitions = append(l.Partitions, boot.Partition{Partition: p, Volume: &volume.Volume{Kind: volume.Unknown}})
	}
	require.NoError(t, l.ReadGaps(d))
	return l
}

func (d dice) goal(l *layout.Layout) align.Goal {
	must := int64(4096) << d.IntN(19) // 4 KiB to 1 GiB
	g := align.Goal{
		Must: align.BoundaryOf(must), Want: align.BoundaryOf(min(must*d.pick(1, 1, 1, 16), 1<<30)), Mend: true,
	}
	for _, p := range l.Partitions {
		if d.chance(10) && p.Kind != table.Extended {
			g.Only = append(g.Only, p.Number)
		}
	}
	return g
}

func checkTable(t *testing.T, i int) {
	t.Helper()
	d := dice{Rand: rand.New(rand.NewPCG(tablesSeed, uint64(i)))}
	drawn := d.table()
	source := drawn.disk()
	again := fmt.Sprintf("TRUEUP_TABLE=%d", i)
	before := bare(t, source)
	require.True(t, len(before.Table.Partitions) == 0 || before.Table.Plausible(), "%s: %v", again, before.Issues)
	require.Empty(t, before.Table.Relocate(table.Places{Size: before.Size}, before.Geometry),
		"%s: an unmoved table is the identity", again)
	goal := d.goal(before)
	p, err := plan.New(before, goal)
	require.NoError(t, err, again)
	require.Empty(t, p.Refusals(true), again)
	view := p.View(source)
	after := bare(t, view)
	checkPlaces(t, p, before, after, again)
	checkBytes(t, p, before, after, again)
	drawn.checkStray(t, view, again)
	checkGrowth(t, p, before, again)
	checkExplained(t, p, source, view, before, after, again)
	is := links(t, view, after)
	for i, was := range links(t, source, before) {
		require.True(t, is[i].logical || !was.logical, "%s: link %d led to the end of its partition", again, i)
		require.True(t, is[i].box || !was.box || was.logical, "%s: link %d led to the end of all", again, i)
	}

	requireSettled(t, after, goal, again)
	require.False(t, after.Table.Damaged(), again)

	requireRepeated(t, p, before, after, again)
}

// checkPlaces wants what moved aligned, nothing on top of each other, all inside of the disk, and everything else as
// it was.
func checkPlaces(t *testing.T, p *plan.Plan, before, after *layout.Layout, again string) {
	t.Helper()
	require.Len(t, after.Partitions, len(before.Partitions), again)
	require.Len(t, after.Table.Records, len(before.Table.Records), "%s: the chain is as long", again)
	require.Equal(t, order(before), order(after), "%s: the order on the disk", again)
	for i, was := range before.Partitions {
		is := after.Partitions[i]
		require.Equal(t, was.Number, is.Number, again)
		require.Equal(t, was.Kind, is.Kind, again)
		require.Equal(t, was.TypeID(), is.TypeID(), again)
		require.Equal(t, was.GUID, is.GUID, again)
		if was.Kind == table.Extended {
			continue
		}
		require.Equal(t, was.Len, is.Len, again)
		moved := is.Off != was.Off
		if moved || (was.Off%p.Goal.Must.Bytes() != 0 && p.Goal.Selects(was.Number)) {
			require.Zero(t, is.Off%p.Goal.Want.Bytes(), "%s: partition %d", again, is.Number)
		}
	}
	for i, r := range after.Table.Records {
		require.Equal(t, before.Table.Records[i].Logical, r.Logical, again)
		require.Equal(t, before.Table.Records[i].Box, r.Box, again)
	}
	end := int64(0)
	for _, x := range after.Items() {
		require.GreaterOrEqual(t, x.Off, end, again)
		end = x.End()
	}
	require.LessOrEqual(t, end, after.Usable(after.Size), again)
}

// links returns the length of each link of a chain.
func links(t *testing.T, d disk.Disk, l *layout.Layout) []span {
	t.Helper()
	var out []span
	for i, r := range l.Table.Records {
		b := make(forge.Bytes, sector)
		_, err := d.ReadAt(b, r.Off)
		require.NoError(t, err)
		for k := range 2 {
			e := b[tableforge.MBREntries+k*tableforge.MBREntry:]
			if e[4] != 0x05 {
				continue
			}
			next := l.Table.Records[i+1]
			box, _ := l.Partition(r.Box)
			logical, _ := l.Partition(next.Logical)
			require.Equal(t, next.Off, box.Off+int64(binary.LittleEndian.Uint32(e[8:]))*sector)
			end := next.Off + int64(binary.LittleEndian.Uint32(e[12:]))*sector
			out = append(out, span{logical: end == logical.End(), box: end == box.End()})
		}
	}
	return out
}

func order(l *layout.Layout) []int {
	parts := slices.Clone(l.Partitions)
	slices.SortStableFunc(parts, func(a, b boot.Partition) int { return cmp.Compare(a.Off, b.Off) })
	var out []int
	for _, q := range parts {
		out = append(out, q.Number)
	}
	return out
}

// checkBytes wants every byte of a partition exactly once in the result, at its place, and untouched by patches; and
// the data of every gap somewhere.
func checkBytes(t *testing.T, p *plan.Plan, before, after *layout.Layout, again string) {
	t.Helper()
	for i, was := range before.Partitions {
		if was.Kind == table.Extended {
			continue
		}
		var covered int64
		for _, x := range p.Pieces {
			from, to := max(x.From, was.Off), min(x.From+x.Len, was.End())
			if from >= to {
				continue
			}
			require.Equal(t, after.Partitions[i].Off-was.Off, x.To-x.From, "%s: partition %d", again, was.Number)
			covered += to - from
		}
		require.Equal(t, was.Len, covered, "%s: partition %d", again, was.Number)
		for _, x := range p.Patches {
			require.False(t, after.Partitions[i].Overlaps(x.Range()), "%s: %s", again, x.Reason)
		}
	}
	items := before.Items()
	for i, g := range before.Gaps {
		var covered int64
		for _, x := range p.Pieces {
			n := min(x.From+x.Len, g.Data.End()) - max(x.From, g.Data.Off)
			if n <= 0 {
				continue
			}
			covered += n
			if items[i].Kind == layout.PartitionItem && x.To != x.From {
				was, _ := before.Partition(items[i].Number)
				is, _ := after.Partition(items[i].Number)
				require.Equal(t, is.Off-was.Off, x.To-x.From, "%s: data behind partition %d stays, or moves with it",
					again, was.Number)
			}
		}
		require.Equal(t, g.Data.Len, covered, "%s: data at %d", again, g.Data.Off)
	}
}

// checkGrowth wants a disk that did not fit: even with everything as far forward as it can be, on boundaries only.
func checkGrowth(t *testing.T, p *plan.Plan, before *layout.Layout, again string) {
	t.Helper()
	require.GreaterOrEqual(t, p.Size, before.Size, again)
	if p.Size == before.Size {
		return
	}
	require.Zero(t, p.Size%mib, again)
	end := int64(0)
	items := before.Items()
	if len(items) > 0 {
		end = items[0].Off
	}
	for i, x := range items {
		if x.Kind == layout.PartitionItem {
			want := p.Goal.Want.Bytes()
			to := (end + want - 1) / want * want
			if q, _ := before.Partition(x.Number); (q.Off%p.Goal.Must.Bytes() == 0 || !p.Goal.Selects(x.Number)) &&
				q.Off >= end {
				to = min(to, q.Off)
			}
			end = to
		}
		if x.Kind == layout.BoxEndItem {
			end = max(end, x.Off)
		}
		end += x.Len + before.Gaps[i].Data.Len
	}
	least := end + before.Size - before.Usable(before.Size)
	// Data between partitions, whose place among zeros decides how close things can come, is not in this simple sum.
	if !slices.ContainsFunc(before.Gaps, func(g layout.Gap) bool { return g.Data.Len > 0 }) {
		require.Greater(t, least, before.Size, "%s: it would have fitted", again)
		require.Less(t, p.Size-least, int64(mib), "%s: no more than to the next MiB", again)
	}
}
