package plan_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disktest"
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

// TestWhatIsLeftNeverMoves holds plans for random tables, some partitions of which must stay, against a search for
// any place that would do: what is to be left has its old place, all others are aligned, and a plan is refused only
// without one.
func TestWhatIsLeftNeverMoves(t *testing.T) {
	refused, moved, n := 0, 0, disktest.Sample(20_000)
	for i := range n {
		d := dice{Rand: rand.New(rand.NewPCG(tablesSeed, uint64(i))), tiny: true}
		drawn := d.mbr()
		source := drawn.disk()
		before := bare(t, source)
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
		after := bare(t, p.View(source))
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

// A boot partition at LBA 63 stays there, and is mentioned; the data behind it move.
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

// What is left alone is mentioned where it is off the boundary, and only then.
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

// Data in front of the system have no room: the refusal says whose fault it is.
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
		"no room on the boundary of 64K, and --data-only leaves it where it is: it is the active partition")
	require.Contains(t, r[0].Remedy, "--data-only")
}

// A volume over the whole disk that is malformed is an error though nothing moves, as it is for inspect.
func TestMalformedBareVolume(t *testing.T) {
	bad := ondisk.Issue{Code: "volume", Effect: ondisk.BadVolume, OnMove: true, Text: "bad", Err: ondisk.ErrFormat}
	bare := &layout.Layout{
		Size: mib, SectorSize: sector, Volume: &volume.Volume{Kind: volume.Ext4},
		Boot: &boot.Result{Code: boot.Empty}, Issues: []ondisk.Issue{bad},
	}
	p := newPlan(t, bare, kept)
	require.Len(t, p.Refusals(false), 1)
	require.Empty(t, p.Refusals(true), "as opaque bytes")
	require.True(t, bare.Issues[0].OnMove, "the layout is as it was")

	warn := ondisk.Issue{Code: "volume", Effect: ondisk.Warn, OnMove: true, Text: "only if it moved"}
	bare.Issues = []ondisk.Issue{warn}
	p, err := plan.New(bare, kept)
	require.NoError(t, err)
	require.Empty(t, p.Notes)
	bare.Issues[0].OnMove = false
	p = newPlan(t, bare, kept)
	require.Len(t, p.Notes, 1)

	// A volume in a partition that stays is no reason.
	l := read(t, disktest.Memory(tableforge.NewMBR(8192, slot(7, 2048, 2000))))
	bad.Partition = 1
	l.Issues = append(l.Issues, bad)
	p = newPlan(t, l, kept)
	require.Empty(t, p.Refusals(false))
}

// A disk grows where its end means nothing, and by its own wish only.
func TestDisksThatGrow(t *testing.T) {
	const mbrSectors = 8192
	disks := map[string]*layout.Layout{
		"bare": {
			Size: mib, SectorSize: sector, Volume: &volume.Volume{Kind: volume.Ext4},
			Boot: &boot.Result{Code: boot.Empty},
		},
		"MBR": read(t, disktest.Memory(
			tableforge.NewMBR(mbrSectors, slot(7, 2048, 2000)))),
		"array": {
			Size: mib, SectorSize: sector, Volume: &volume.Volume{Kind: "linux_raid_member", AtEnd: true},
			Boot: &boot.Result{Code: boot.Empty},
		},
		"outer": {
			Size: mib, SectorSize: sector, Outer: &volume.Volume{Kind: "linux_raid_member", AtEnd: true},
			Boot: &boot.Result{Code: boot.Empty},
		},
	}
	for name, l := range disks {
		for _, copied := range []bool{false, true} {
			p := newPlan(t, l, kept)
			if copied {
				p = plan.Copy(l.Size)
			}
			p.Grow(l, l.Size-sector)
			require.Equal(t, l.Size, p.Size, name)
			require.Empty(t, p.Refusals(false), name)
			p.Grow(l, l.Size+mib)
			require.Equal(t, l.Size+mib, p.Size, name)
			require.Equal(t, l.Size+mib, p.Places.Size, name)
			if name != "array" && name != "outer" {
				require.Empty(t, p.Refusals(false), name)
				continue
			}
			require.Len(t, p.Refusals(true), 1, name)
			require.Equal(t, "device-end", p.Refusals(true)[0].Code)
			require.Contains(t, p.Refusals(true)[0].Remedy, "a device of that size")
		}
	}
}
