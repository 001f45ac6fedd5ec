package plan_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// inner is what a partition holds behind its start.
type inner struct{ cluster, data int64 }

// hold gives each partition of a layout its volume.
func hold(l *layout.Layout, volumes map[int]inner) {
	for i, p := range l.Partitions {
		if v, ok := volumes[p.Number]; ok {
			l.Partitions[i].Volume = &volume.Volume{Kind: volume.FAT16, BlockSize: v.cluster, DataStart: v.data}
		}
	}
}

// touched counts the blocks of 4 KiB that I/Os of size bytes touch that follow each other from a byte on, one by one.
func touched(first, step, size int64) (n int64) {
	for i := range int64(4096) {
		at := first + i*step
		n += (at+size-1)/4096 - at/4096 + 1
	}
	return n
}

// A plan by default puts the data of no partition worse, also of one that has to make room for another, and a second
// plan moves nothing.
func TestNoPlanPutsDataWorse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDisk(t)
		volumes := map[int]inner{}
		for _, p := range d.parts {
			if rapid.Bool().Draw(t, "volume") {
				volumes[p.slot+1] = inner{
					512 << rapid.IntRange(0, 5).Draw(t, "cluster"),
					512 * rapid.Int64Range(0, p.sectors).Draw(t, "data"),
				}
			}
		}
		want := int64(4096) << rapid.IntRange(0, 8).Draw(t, "want")
		must := min(want, int64(4096)<<rapid.IntRange(0, 4).Draw(t, "must"))
		goal := align.Goal{Must: align.BoundaryOf(must), Want: align.BoundaryOf(want)}
		before := read(t, d.disk())
		hold(before, volumes)
		p := newPlan(t, before, goal)
		for _, was := range before.Partitions {
			to, moved := was.Off, false
			if place, ok := p.Places.Parts[was.Number]; ok {
				to, moved = place.Off, place.Off != was.Off
			}
			v := volumes[was.Number]
			for size := int64(512); moved && size <= 65536; size *= 2 {
				for _, step := range []int64{size, min(max(v.cluster, 512), size)} {
					require.LessOrEqual(t, touched(to+v.data, step, size), touched(was.Off+v.data, step, size),
						"partition %d to %d", was.Number, to)
				}
			}
		}
		after := read(t, p.View(d.disk()))
		hold(after, volumes)
		again := newPlan(t, after, goal)
		require.Empty(t, again.Moves)
	})
}

// A partition whose data lie on blocks makes room by a multiple of the boundary, so that they do after that.
func TestDataKeepTheirDistance(t *testing.T) {
	_, l, _ := planFixture(t, "two-ntfs-lba63-and-cylinder", 0)
	second := &l.Partitions[1]
	second.Volume = &volume.Volume{Kind: volume.FAT16, BlockSize: 512, DataStart: 4096 - second.Off%4096}
	require.NotZero(t, second.Off%4096)
	p := newPlan(t, l, kept)
	require.Len(t, p.Moves, 2)
	require.NotZero(t, p.Moves[1].Delta())
	require.Zero(t, p.Moves[1].Delta()%(1<<20))
}

// A partition that makes room for another keeps the alignment that its data have, up to 1 MiB, also where the target is
// 4 KiB. It gives that up before the disk grows for it, and one that moves on its own account goes to the target.
func TestNeighboursKeepTheirAlignment(t *testing.T) {
	const mib = 2048 // sectors
	for name, tc := range map[string]struct {
		second, sectors, disk uint32 // of the second partition, and of the disk
		data                  int64  // of the second partition; bytes
		want, grown           int64  // LBA, sectors
	}{
		"on 2 MiB, with room":                 {2 * mib, 3 * mib, 8 * mib, 0, 3 * mib, 0},
		"on 64 KiB":                           {2*mib + 128, 3 * mib, 8 * mib, 0, 2*mib + 256, 0},
		"data on 1 MiB, start on 4 KiB":       {2*mib + 8, 3 * mib, 8 * mib, (mib - 8) * 512, 3*mib + 8, 0},
		"no room but on the target":           {2 * mib, 3 * mib, 5*mib + 100, 0, 2*mib + 8, 0},
		"no room at all":                      {2 * mib, 3 * mib, 5 * mib, 0, 3 * mib, mib},
		"off the target, on its own account":  {2*mib + 1, 3 * mib, 8 * mib, 0, 2*mib + 8, 0},
		"on the target and on nothing larger": {2*mib + 8, 3 * mib, 8 * mib, 0, 2*mib + 16, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := tableforge.NewMBR(int(tc.disk), slot(0x83, 63, tc.second-63), slot(0x83, tc.second, tc.sectors))
			l := read(t, disktest.Memory(f))
			hold(l, map[int]inner{2: {4096, tc.data}})
			l.Boot.Refs = []boot.Ref{{
				Points: l.Partitions[1].Off, Target: 2, Encode: func(_ []byte, to int64) ([]byte, error) {
					if to != tc.want*512 {
						return nil, ondisk.ErrLimit // another place that was tried is no reason to refuse
					}
					return nil, nil
				},
			}}
			p := newPlan(t, l, align.Goal{Must: align.SmallestBoundary, Want: align.SmallestBoundary})
			require.Empty(t, p.Refusals(true))
			require.Equal(t, int64(64*512), p.Places.Parts[1].Off)
			require.Equal(t, tc.want*512, p.Places.Parts[2].Off)
			require.Equal(t, (int64(tc.disk)+tc.grown)*512, p.Size)
		})
	}
}
