package plan_test

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/plan"
)

// extent is a range in sectors, and mirror the index of the partition in it; -1: protective.
type extent struct {
	start, end int64
	mirror     int
}

// hybridDisk is a GPT with a hybrid MBR: slots mirror some partitions, and protective entries take the space between
// them, up to a partition, from one on, or with some of the free space.
type hybridDisk struct {
	bytes forge.Bytes
	parts []extent
	slots []extent
}

func drawHybrid(t *rapid.T) *hybridDisk {
	d := &hybridDisk{}
	lba := int64(34)
	for i := range rapid.IntRange(1, 6).Draw(t, "partitions") {
		lba += rapid.SampledFrom([]int64{0, 0, 1, 29, 500}).Draw(t, "gap")
		size := rapid.Int64Range(1, 3000).Draw(t, "sectors")
		d.parts = append(d.parts, extent{lba, lba + size, i})
		lba += size
	}
	sectors := lba + rapid.SampledFrom([]int64{0, 1, 100}).Draw(t, "tail") + 33
	entries := make([]tableforge.GPTEntry, len(d.parts))
	for i, p := range d.parts {
		entries[i] = tableforge.GPTEntry{First: uint64(p.start), Last: uint64(p.end - 1)}
	}
	d.bytes = tableforge.NewGPT(sector, sectors, 128, entries...)
	mirrors := rapid.SliceOfNDistinct(rapid.IntRange(0, len(d.parts)-1), 1, min(2, len(d.parts)), rapid.ID).Draw(t,
		"mirrors")
	slices.Sort(mirrors)
	from := int64(1)
	for _, m := range append(mirrors, len(d.parts)) {
		to, start := sectors, from
		if m < len(d.parts) {
			to = d.parts[m].start
		}
		if next := d.after(from); next < len(d.parts) && from > 1 {
			start = rapid.Int64Range(from, min(to, d.parts[next].start)).Draw(t, "protected from")
		}
		last := max(from, 2)
		for _, p := range d.parts {
			if p.end <= to {
				last = max(last, p.end)
			}
		}
		covers := from == 1 || slices.ContainsFunc(d.parts, func(p extent) bool {
			return p.start >= start &&
				p.end <= to
		})
		if m == len(d.parts) {
			last = sectors // the backup of the GPT
		}
		if end := rapid.SampledFrom([]int64{to, last, (last + to) / 2}).Draw(t, "protected to"); covers &&
			end > start && len(d.slots) < 4 {
			d.slots = append(d.slots, extent{start, end, -1})
		}
		if m < len(d.parts) {
			d.slots = append(d.slots, d.parts[m])
			from = d.parts[m].end
		}
	}
	d.slots = rapid.Permutation(d.slots[:min(4, len(d.slots))]).Draw(t, "slots")
	clear(d.bytes[tableforge.MBREntries:tableforge.MBRMagic])
	for i, s := range d.slots {
		kind := byte(0x83)
		if s.mirror < 0 {
			kind = 0xee
		}
		tableforge.PutSlot(d.bytes, 0, i, slot(kind, uint32(s.start), uint32(s.end-s.start)))
	}
	return d
}

// after returns the index of the first partition from a sector on.
func (d *hybridDisk) after(lba int64) int {
	i := slices.IndexFunc(d.parts, func(p extent) bool { return p.start >= lba })
	if i < 0 {
		return len(d.parts)
	}
	return i
}

// covered returns the partitions inside of a range.
func covered(s extent, parts []extent) (out []int) {
	for i, p := range parts {
		if p.start >= s.start && p.end <= s.end {
			out = append(out, i)
		}
	}
	return out
}

// TestHybridMBRFollows wants both tables of a result to say the same: slots that mirror partitions go on to do so, and
// protective entries cover the same partitions, lie apart from the others, and keep the first and last sector.
func TestHybridMBRFollows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawHybrid(t)
		before := read(t, disktest.Memory(d.bytes))
		require.True(t, before.Table.IsHybrid(), "%v of %v: %v", d.slots, d.parts, before.Issues)
		want := align.BoundaryOf(rapid.SampledFrom([]int64{4096, 65536, mib}).Draw(t, "want"))
		p := newPlan(t, before, align.Goal{Must: align.SmallestBoundary, Want: want})
		require.Empty(t, p.Refusals(false))
		result := make([]byte, p.Size)
		source := disktest.Memory(d.bytes)
		_, err := p.View(source).ReadAt(result, 0)
		require.NoError(t, err)
		after := read(t, disktest.Memory(result))
		checkExplained(t, p, source, p.View(source), before, after, "hybrid")
		require.True(t, after.Table.IsHybrid(), "%v of %v: %v", d.slots, d.parts, after.Issues)
		require.Len(t, after.Issues, len(before.Issues))
		var parts []extent
		for i, x := range after.Partitions {
			require.Zero(t, x.Off%4096)
			parts = append(parts, extent{x.Off / sector, x.End() / sector, i})
		}
		was, is := int64(len(d.bytes))/sector, p.Size/sector
		var slots []extent
		for i, s := range d.slots {
			e := result[tableforge.MBREntries+i*tableforge.MBREntry:]
			start := int64(binary.LittleEndian.Uint32(e[8:]))
			now := extent{start, start + int64(binary.LittleEndian.Uint32(e[12:])), s.mirror}
			slots = append(slots, now)
			if s.mirror >= 0 {
				require.Equal(t, parts[s.mirror], now)
				continue
			}
			require.Equal(t, covered(s, d.parts), covered(now, parts), "slot %d: %v is %v", i+1, s, now)
			require.Equal(t, s.start == 1, now.start == 1)
			require.Equal(t, s.end == was, now.end == is)
		}
		slices.SortFunc(slots, func(a, b extent) int { return int(a.start - b.start) })
		for i, s := range slots[1:] {
			require.LessOrEqual(t, slots[i].end, s.start, "slots lie over each other")
		}
	})
}

// A disk that grows while nothing moves has only a protective entry changed that ended with it, in a hybrid MBR that
// refuses a move, too.
func TestHybridMBROfALargerDisk(t *testing.T) {
	f := tableforge.NewGPT(sector, 20_000, 128, tableforge.GPTEntry{First: 2048, Last: 4095})
	for i, s := range []tableforge.Slot{
		{Type: 0xee, Start: 1, Sectors: 2047},
		{Type: 0x83, Start: 2048, Sectors: 1000},
		{Type: 0xee, Start: 5000, Sectors: 15_000},
	} {
		tableforge.PutSlot(f, 0, i, s)
	}
	l := read(t, disktest.Memory(f))
	p := plan.Copy(l.Size)
	p.Grow(l, l.Size+mib)
	var changed []int64
	for _, x := range p.Patches {
		if x.Off < sector {
			changed = append(changed, x.Off)
			require.Equal(t, uint32(15_000+mib/sector), binary.LittleEndian.Uint32(x.New))
		}
	}
	require.Equal(t, []int64{tableforge.MBREntries + 2*tableforge.MBREntry + 12}, changed)
}
