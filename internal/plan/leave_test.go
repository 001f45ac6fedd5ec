package plan_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/volume"
)

// leave draws the partitions that must not move.
func (d dice) leave(l *layout.Layout) map[int]string {
	out := map[int]string{}
	for _, p := range l.Partitions {
		if align.Judged(p) && d.IntN(3) == 0 {
			out[p.Number] = "it boots"
		}
	}
	return out
}

// TestWhatIsLeftNeverMoves checks plans for random tables, in which some partitions are fixed, against a search for any
// valid placement: fixed ones keep their place, all others are aligned, and a plan is refused only if there is no
// placement.
func TestWhatIsLeftNeverMoves(t *testing.T) {
	refused, moved, n := 0, 0, disktest.Sample(20_000)
	for i := range n {
		d := dice{Rand: rand.New(rand.NewPCG(tablesSeed, uint64(i))), tiny: true}
		drawn := d.mbr()
		source := drawn.disk()
		before := boottest.Bare(t, source)
		again := fmt.Sprintf("disk %d", i)
		goal := align.Goal{Must: align.BoundaryOf(4096 << d.IntN(2)), Leave: d.leave(before)}
		goal.Want = align.BoundaryOf(goal.Must.Bytes() << d.IntN(2))
		p, err := plan.New(before, goal)
		require.NoError(t, err, again)
		possible := fitsSomewhere(before, goal, before.Size+16*goal.Want.Bytes())
		require.Equal(t, !possible, len(p.Refusals(true)) > 0, again)
		if !possible {
			require.Equal(t, "boot-partition", p.Refusals(true)[0].Code, again)
			require.Contains(t, p.Refusals(true)[0].Text, "it boots")
			require.Empty(t, p.Moves, again)
			refused++
			continue
		}
		after := boottest.Bare(t, p.View(source))
		for i, was := range before.Partitions {
			is := after.Partitions[i]
			switch {
			case !align.Judged(was):
			case goal.Leave[was.Number] != "":
				require.Equal(t, was.Range, is.Range, again)
			default:
				require.Zero(t, is.Off%goal.Must.Bytes(), "%s: partition %d", again, is.Number)
			}
		}
		drawn.checkStray(t, p.View(source), again)
		requireSettled(t, after, goal, again)
		if len(p.Moves) > 0 && len(goal.Leave) > 0 {
			moved++
		}
	}
	require.Greater(t, refused, n/40)
	require.Greater(t, moved, n/40)
}

// A boot partition at LBA 63 stays with a note; the data after it move.
func TestDataOnly(t *testing.T) {
	f := tableforge.NewMBR(8192, slot(7, 63, 2000), slot(7, 2063, 2000))
	fsforge.PutNTFS(f, 63, 2000)
	fsforge.PutNTFS(f, 2063, 2000)
	l := read(t, disktest.Memory(f))
	l.Boot.Chain = []boot.Link{{Text: "the disk"}, {Partition: 1, Text: "a loader"}, {Partition: 1, Text: "more of it"}}
	goal := kept.DataOnly(l)
	require.Equal(t, "it is in the boot chain: a loader", goal.Leave[1])
	p := newPlan(t, l, goal)
	require.Empty(t, p.Refusals(false))
	require.Contains(t, p.Notes, align.Finding{
		Code: "left-alone", Severity: align.Info, Subject: "partition 1", Partition: 1,
		Text: "it stays at byte 32256, off the boundary (--data-only): it is in the boot chain: a loader",
	})
}

// A partition that stays is reported only if it is off the boundary.
func TestWhatIsLeftAlone(t *testing.T) {
	f := tableforge.NewMBR(16384, slot(7, 2048, 2000), slot(5, 4100, 4000), slot(7, 9000, 1000))
	tableforge.PutEBR(f, 4100, slot(7, 63, 2000), tableforge.Slot{})
	l := read(t, disktest.Memory(f))
	for _, c := range []struct {
		leave map[int]string
		want  []int
	}{{nil, nil}, {map[int]string{1: "why", 2: "why", 5: "why"}, []int{5}}} {
		p := newPlan(t, l, align.Goal{Must: align.DefaultBoundary, Want: align.Kept, Leave: c.leave})
		var got []int
		for _, n := range coded(p.Notes, "left-alone") {
			got = append(got, n.Partition)
		}
		require.Equal(t, c.want, got)
	}
}

// Data before the system have no room: the refusal names the cause.
func TestNoRoomInFrontOfTheSystem(t *testing.T) {
	f := tableforge.NewMBR(8192, slot(7, 63, 2000), slot(7, 2063, 2000))
	fsforge.PutNTFS(f, 63, 2000)
	l := read(t, disktest.Memory(f))
	p := newPlan(t, l, align.Goal{
		Must: align.DefaultBoundary, Want: align.DefaultBoundary,
		Leave: map[int]string{2: "it is the active partition"},
	})
	r := p.Refusals(true)
	require.Len(t, r, 1)
	require.Equal(t, 2, r[0].Partition)
	require.Contains(t, r[0].Text,
		"no room on the boundary of 64K, and --data-only keeps it in place: it is the active partition")
	require.Contains(t, r[0].Remedy, "--data-only")
}

// A malformed volume over the whole disk is an error even if nothing moves, as for inspect.
func TestMalformedBareVolume(t *testing.T) {
	bad := ondisk.Issue{Code: "volume", Effect: ondisk.BadVolume, OnMove: true, Text: "bad", Err: ondisk.ErrFormat}
	bare := &layout.Layout{
		Size: mib, SectorSize: sector, Volume: &volume.Volume{Kind: volume.Ext4},
		Boot: &boot.Result{Code: boot.Empty}, Issues: []ondisk.Issue{bad},
	}
	mends := kept
	mends.Mend = true
	p := newPlan(t, bare, mends)
	require.Len(t, p.Refusals(false), 1)
	require.Empty(t, p.Refusals(true), "as opaque bytes")
	require.True(t, bare.Issues[0].OnMove, "the layout is as it was")

	warn := ondisk.Issue{Code: "volume", Effect: ondisk.Warn, OnMove: true, Text: "only if it moved"}
	bare.Issues = []ondisk.Issue{warn}
	p = newPlan(t, bare, kept)
	require.Empty(t, p.Notes)
	bare.Issues[0].OnMove = false
	p = newPlan(t, bare, kept)
	require.Len(t, p.Notes, 1)

	// A volume in a partition that stays does not matter.
	l := read(t, disktest.Memory(tableforge.NewMBR(8192, slot(7, 2048, 2000))))
	bad.Partition = 1
	l.Issues = append(l.Issues, bad)
	p = newPlan(t, l, kept)
	require.Empty(t, p.Refusals(false))
}

// A disk grows only if its end has no meaning, and only if needed. The private header of a dynamic disk is in the last
// sector of a disk with an MBR, and in a partition of a GPT.
func TestDisksThatGrow(t *testing.T) {
	const sectors, large = 8192, 4096
	bare := func(v, outer *volume.Volume) *layout.Layout {
		none := &boot.Result{Code: boot.Empty}
		return &layout.Layout{Size: mib, SectorSize: sector, Volume: v, Outer: outer, Boot: none}
	}
	member := &volume.Volume{Kind: "linux_raid_member", AtEnd: true}
	gpt := tableforge.NewGPT(sector, sectors, 128, tableforge.GPTEntry{First: 2048, Last: 4095})
	of := func(f forge.Bytes) *layout.Layout { return read(t, disktest.Memory(f)) }
	loader := of(gpt)
	loader.Boot.Fixed = []boot.Fixed{{
		Range: disk.Range{Off: (sectors - 2) * sector, Len: sector},
		Issue: ondisk.Issue{Code: "needed", Effect: ondisk.Refuse},
	}}
	dynamic := slices.Clone(gpt)
	data := []byte{0xa0, 0x60, 0x9b, 0xaf, 0x31, 0x14, 0x62, 0x4f, 0xbc, 0x68, 0x33, 0x11, 0x71, 0x4a, 0x69, 0xad}
	for header, array := range map[int64]int64{1: 2, sectors - 1: sectors - 33} {
		dynamic.Put(array*sector, data)
		tableforge.SealGPT(dynamic, header*sector, sector)
	}
	rest := append(tableforge.NewGPT(large, 1024, 128, tableforge.GPTEntry{First: 256, Last: 511}), zeros[:]...)
	used := slices.Clone(rest)
	used[len(used)-1] = 1
	for name, c := range map[string]struct {
		l       *layout.Layout
		refusal string
	}{
		"bare":                               {bare(&volume.Volume{Kind: volume.Ext4}, nil), ""},
		"MBR":                                {of(tableforge.NewMBR(sectors, slot(7, 2048, 2000))), ""},
		"array":                              {bare(member, nil), "device-end"},
		"outer":                              {bare(nil, member), "device-end"},
		"loader":                             {loader, "needed"},
		"dynamic MBR":                        {of(tableforge.NewMBR(sectors, slot(0x42, 2048, 4000))), "ldm-grows"},
		"dynamic GPT":                        {of(dynamic), ""},
		"zeros behind the last whole sector": {of(rest), ""},
		"data behind the last whole sector":  {of(used), "disk-end"},
	} {
		for _, p := range []*plan.Plan{newPlan(t, c.l, kept), plan.Copy(c.l.Size)} {
			p.Grow(c.l, c.l.Size-sector)
			require.Equal(t, c.l.Size, p.Size, name)
			require.Empty(t, p.Refusals(false), name)
			for grown := c.l.Size + mib; grown <= c.l.Size+2*mib; grown += mib {
				p.Grow(c.l, grown)
				require.Equal(t, grown, p.Size, name)
				require.Equal(t, grown, p.Places.Size, name)
				require.Equal(t, c.refusal, strings.Join(codes(p.Refusals(true)), " "), name)
			}
		}
	}
}
