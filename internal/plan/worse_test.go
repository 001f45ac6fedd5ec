package plan_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/plan"
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
		goal := align.Goal{Must: min(want, int64(4096)<<rapid.IntRange(0, 4).Draw(t, "must")), Want: want}
		before := read(t, d.disk())
		hold(before, volumes)
		p, err := plan.New(before, goal)
		require.NoError(t, err)
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
		again, err := plan.New(after, goal)
		require.NoError(t, err)
		require.Empty(t, again.Moves)
	})
}

// A partition whose data lie on blocks makes room by a multiple of the boundary, so that they do after that.
func TestDataKeepTheirDistance(t *testing.T) {
	_, l, _ := planFixture(t, "two-ntfs-lba63-and-cylinder", 0)
	second := &l.Partitions[1]
	second.Volume = &volume.Volume{Kind: volume.FAT16, BlockSize: 512, DataStart: 4096 - second.Off%4096}
	require.NotZero(t, second.Off%4096)
	p := newPlan(t, l, align.Goal{Must: 65536, Want: 1 << 20})
	require.Len(t, p.Moves, 2)
	require.NotZero(t, p.Moves[1].Delta())
	require.Zero(t, p.Moves[1].Delta()%(1<<20))
}
