package plan_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
)

// planned is a disk, its plan, and the bytes of the result.
type planned struct {
	*randomDisk
	goal   align.Goal
	before *layout.Layout
	plan   *plan.Plan
	result []byte
	after  *layout.Layout
}

func read(t require.TestingT, d disk.Disk) *layout.Layout {
	l, err := layout.Read(d, table.Geometry{})
	require.NoError(t, err)
	require.NoError(t, l.ReadGaps(d))
	return l
}

func drawPlan(t *rapid.T) *planned {
	d := drawDisk(t)
	must := rapid.SampledFrom([]int64{4096, 8192, 65536, mib}).Draw(t, "must")
	p := &planned{randomDisk: d, goal: align.Goal{Must: align.BoundaryOf(must)}}
	p.goal.Want = align.BoundaryOf(must * rapid.SampledFrom([]int64{1, 1, 16}).Draw(t, "want"))
	for _, part := range d.parts {
		if rapid.IntRange(0, 5).Draw(t, "only") == 0 {
			p.goal.Only = append(p.goal.Only, part.slot+1)
		}
	}

	p.before = read(t, d.disk())
	var err error
	p.plan, err = plan.New(p.before, p.goal)
	require.NoError(t, err)
	p.result = make([]byte, p.plan.Size)
	view := p.plan.View(d.disk())
	require.Equal(t, p.plan.Size, view.Size())
	_, err = view.ReadAt(p.result, 0)
	require.NoError(t, err)
	p.after = read(t, view)
	return p
}

// to returns where a partition of the source goes, by the table of the result.
func (p *planned) to(t *rapid.T, was part) int64 {
	e := p.result[tableforge.MBREntries+was.slot*tableforge.MBREntry:]
	require.Equal(t, uint32(was.sectors), binary.LittleEndian.Uint32(e[12:]), "the size of a partition never changes")
	return int64(binary.LittleEndian.Uint32(e[8:]))
}

func TestPartitionsOfTheResult(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPlan(t)
		end, furthest, moved := int64(0), int64(0), map[int]plan.Move{}
		for i, m := range p.plan.Moves {
			moved[m.Partition] = m
			require.True(t, i == 0 || m.From > p.plan.Moves[i-1].From, "moves are listed in disk order")
		}
		for _, was := range p.parts {
			to := p.to(t, was)
			require.GreaterOrEqual(t, to, end, "partitions keep their order and do not overlap")
			end = to + was.sectors
			require.LessOrEqual(t, end*sector, p.plan.Size, "inside of the disk")
			off := was.start * sector
			furthest += max(p.goal.Want.Bytes(), min(off&-off, 1<<20))
			require.Less(t, (to-was.start)*sector, furthest, "no further than it must")

			selected := p.goal.Selects(was.slot + 1)
			if selected && off%p.goal.Must.Bytes() != 0 {
				require.Zero(t, to*sector%p.goal.Want.Bytes(), "partition %d must be aligned", was.slot+1)
			}
			if to == was.start {
				require.NotContains(t, moved, was.slot+1)
				continue
			}
			require.Zero(t, to*sector%p.goal.Want.Bytes(), "what moves goes to the boundary")
			require.Equal(t, plan.Move{Partition: was.slot + 1, From: off, To: to * sector, Len: was.sectors * sector},
				moved[was.slot+1])
			require.Equal(t, (to-was.start)*sector, moved[was.slot+1].Delta())
		}
		require.EqualValues(t, len(p.bytes), p.plan.OldSize)
		if p.plan.Size != p.plan.OldSize {
			last := p.plan.Pieces[len(p.plan.Pieces)-1].Dest().End()
			require.Greater(t, last, p.plan.OldSize, "the disk grows only when it must")
			require.Equal(t, units.AlignUp(last, mib), p.plan.Size, "and to the next MiB")
		}
	})
}

// Numbers, types, flags and the signature stay; so does all of sector 0 that says nothing about places.
func TestTheTableKeepsEverythingElse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPlan(t)
		want := slices.Clone([]byte(p.bytes[:sector]))
		for _, was := range p.parts {
			to := p.to(t, was)
			if to == was.start {
				continue
			}
			e := tableforge.MBREntries + was.slot*tableforge.MBREntry
			binary.LittleEndian.PutUint32(want[e+8:], uint32(to))
			heads, spt := int64(p.before.Geometry.Heads), int64(p.before.Geometry.Sectors)
			first := to / spt / heads
			copy(want[e+1:], []byte{byte(to / spt % heads), byte(to%spt+1) | byte(first>>8<<6), byte(first)})
			last := (to + was.sectors - 1) / (heads * spt)
			copy(want[e+5:], []byte{byte(heads - 1), byte(spt) | byte(last>>8<<6), byte(last)})
		}
		disktest.EqualBytes(t, want, p.result[:sector])
	})
}

// Every sector of the source that is not zero is in the result exactly once: those of a partition at their place in it,
// those of a gap somewhere outside of partitions. The result holds nothing else.
func TestEverySectorOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPlan(t)
		result := slices.Clone(p.result)
		for _, x := range p.plan.Patches { // patches are checked by their own properties
			require.Equal(t, x.New, result[x.Off:x.Off+int64(len(x.New))])
			copy(result[x.Off:], x.Old)
		}
		disktest.EqualBytes(t, p.bytes[:sector], result[:sector])
		clear(result[:sector])
		for _, was := range p.parts {
			to := p.to(t, was)
			body := result[to*sector : (to+was.sectors)*sector]
			disktest.EqualBytes(t, p.bytes[was.start*sector:was.end()*sector], body)
			clear(body)
		}
		var want, got []string
		rest := slices.Clone([]byte(p.bytes))
		clear(rest[:sector])
		for _, was := range p.parts {
			clear(rest[was.start*sector : was.end()*sector])
		}
		for _, c := range []struct {
			from []byte
			to   *[]string
		}{{rest, &want}, {result, &got}} {
			for s := range slices.Chunk(c.from, sector) {
				if !bytes.Equal(s, zeros[:]) {
					*c.to = append(*c.to, string(s))
				}
			}
		}
		require.Equal(t, want, got, "sectors between partitions, in their order")
	})
}

// requireRepeated wants the very same plan of the places of partitions alone, which is all that a later proof knows.
func requireRepeated(t require.TestingT, p *plan.Plan, before, after *layout.Layout, again string) {
	starts := map[int]int64{}
	for _, q := range after.Partitions {
		starts[q.Number] = q.Off
	}
	repeated, err := plan.At(before, starts, p.Goal.Mend)
	require.NoError(t, err, again)
	require.Equal(t, p.Size, repeated.Size, again)
	require.Equal(t, p.Pieces, repeated.Pieces, again)
	require.Equal(t, p.Patches, repeated.Patches, again)
	require.Equal(t, p.Moves, repeated.Moves, again)
}

// Old value first: hidden sectors that were right are right again, others stay as they were.
func TestHiddenSectorsFollow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPlan(t)
		checkExplained(t, p.plan, p.disk(), p.plan.View(p.disk()), p.before, p.after, "")
		requireSettled(t, p.after, p.goal, "")
		requireRepeated(t, p.plan, p.before, p.after, "")
		for _, was := range p.parts {
			if !was.ntfs {
				continue
			}
			to, want := p.to(t, was), was.hidden
			if was.hidden == was.start {
				want = to
			}
			for _, boot := range []int64{to, to + was.sectors - 1} {
				require.Equal(t, uint32(want), binary.LittleEndian.Uint32(p.result[boot*sector+fsforge.BootHidden:]))
			}
		}
	})
}
