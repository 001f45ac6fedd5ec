package freespace

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

const mib = 1 << 20

// sound is a disk of two partitions of NTFS in which the layout shows nothing that speaks against their bitmaps.
func sound() *finder {
	parts := []boot.Partition{}
	for n := range int64(2) {
		parts = append(parts, boot.Partition{
			Partition: table.Partition{Number: int(n) + 1, Range: disk.Range{Off: (1 + 10*n) * mib, Len: 10 * mib}},
			Volume:    &volume.Volume{Kind: volume.NTFS, Size: 10 * mib},
		})
	}
	l := &layout.Layout{
		Size: 40 * mib, Table: &table.Table{}, Partitions: parts,
		Boot: &boot.Result{Code: boot.Empty, State: boot.ShutDown},
	}
	d := disk.New(l.Size, 512, func(off int64) (disk.Run, error) { return disk.Run{Len: l.Size - off}, nil })
	return &finder{disk: d, layout: l, least: MinRange}
}

// Each reason keeps its own partition, or the disk, from being looked at.
func TestReasonsOfTheLayout(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		whole [2]bool
		set   func(l *layout.Layout)
	}{
		{"none", [2]bool{}, func(*layout.Layout) {}},
		{"another kind", [2]bool{true, false}, func(l *layout.Layout) { l.Partitions[0].Volume.Kind = volume.XFS }},
		{"unknown", [2]bool{true, false}, func(l *layout.Layout) { l.Partitions[0].Volume.Kind = volume.Unknown }},
		{"swap", [2]bool{false, true}, func(l *layout.Layout) { l.Partitions[1].Volume.Kind = volume.Swap }},
		{"a remark of the prober", [2]bool{true, false}, func(l *layout.Layout) {
			l.Partitions[0].Volume.Note("fat-dirty", ondisk.Note, "dirty", "")
		}},
		{"parts", [2]bool{true, false}, func(l *layout.Layout) {
			l.Partitions[0].Volume.Parts = make([]volume.Part, 1)
		}},
		{"overlap", [2]bool{true, true}, func(l *layout.Layout) { l.Partitions[1].Off -= mib }},
		{"within an extended one", [2]bool{}, func(l *layout.Layout) {
			l.Partitions = append(l.Partitions, boot.Partition{
				Partition: table.Partition{Number: 4, Kind: table.Extended, Range: disk.Range{Off: mib, Len: 30 * mib}},
				Volume:    &volume.Volume{},
			})
		}},
		{"behind the disk", [2]bool{false, true}, func(l *layout.Layout) { l.Partitions[1].Len = 30 * mib }},
		{"larger than its partition", [2]bool{true, false}, func(l *layout.Layout) { l.Partitions[0].Volume.Size++ }},
		{"refused", [2]bool{false, true}, func(l *layout.Layout) {
			l.Issues = []ondisk.Issue{{Effect: ondisk.Refuse, Partition: 2, Text: "vmfs"}}
		}},
		{"the disk refused", [2]bool{true, true}, func(l *layout.Layout) {
			l.Issues = []ondisk.Issue{{Effect: ondisk.Refuse, Text: "array"}}
		}},
		{"a dynamic disk", [2]bool{true, true}, func(l *layout.Layout) {
			l.Issues = []ondisk.Issue{{Effect: ondisk.Refuse, Partition: 2, DiskWide: true, Text: "LDM"}}
		}},
		{"a warning", [2]bool{}, func(l *layout.Layout) {
			l.Issues = []ondisk.Issue{
				{Effect: ondisk.Warn, Text: "letters"},
				{Effect: ondisk.Note, Partition: 1, Text: "x"},
			}
		}},
		{"hibernated", [2]bool{true, true}, func(l *layout.Layout) { l.Boot.State = boot.Hibernated }},
		{"running", [2]bool{false, true}, func(l *layout.Layout) {
			l.Boot.Signs = []boot.Sign{
				{State: boot.Running, Partition: 2, Text: "open"},
				{State: boot.ShutDown, Partition: 1},
			}
		}},
		{"unknown boot code", [2]bool{true, true}, func(l *layout.Layout) { l.Boot.Code = boot.Unknown }},
		{"encrypted", [2]bool{true, true}, func(l *layout.Layout) { l.Boot.Code = &boot.Code{Encrypts: true} }},
		{"hidden data", [2]bool{true, true}, func(l *layout.Layout) { l.Hidden = true }},
		{
			"another volume beside",
			[2]bool{true, true},
			func(l *layout.Layout) { l.Outer = &volume.Volume{Kind: volume.XFS} },
		},
		{"a sector of a loader", [2]bool{true, false}, func(l *layout.Layout) {
			l.Boot.Refs = []boot.Ref{
				{Kind: "lilo map", Points: 2 * mib},
				{Points: 11 * mib},
				{Disk: 7, Points: 12 * mib},
			}
		}},
		{"a sector of a loader in the second", [2]bool{false, true}, func(l *layout.Layout) {
			l.Boot.Refs = []boot.Ref{{Kind: "lilo map", Points: 12 * mib}}
		}},
		{"nothing known beside", [2]bool{}, func(l *layout.Layout) { l.Outer = &volume.Volume{Kind: volume.Unknown} }},
		{"without a length", [2]bool{true, false}, func(l *layout.Layout) {
			l.Partitions[0].Len, l.Partitions[0].Volume.Size = 0, 0
		}},
		{"in front of the disk", [2]bool{true, false}, func(l *layout.Layout) { l.Partitions[0].Off = -mib }},
	} {
		f := sound()
		c.set(f.layout)
		for i, want := range c.whole {
			require.Equal(t, want, f.whole(f.layout.Partitions[i]) != "", "%s, partition %d", c.name, i+1)
		}
	}
	f := sound()
	f.layout.Partitions[0].Volume.Kind = volume.Unknown
	require.Equal(t, "its content is unknown", f.whole(f.layout.Partitions[0]))
	f.volumes = make([]Volume, maxVolumes)
	require.Contains(t, f.whole(f.layout.Partitions[1]), "behind the first")
}

// Omitted space counts for its partition, and not for an extended one around that.
func TestCountsOfPartitions(t *testing.T) {
	t.Parallel()
	f := sound()
	f.layout.Partitions = append(f.layout.Partitions, boot.Partition{
		Partition: table.Partition{Number: 4, Kind: table.Extended, Range: disk.Range{Off: mib, Len: 30 * mib}},
	})
	f.ranges = []disk.Range{{Off: 2 * mib, Len: mib}, {Off: 12 * mib, Len: 2 * mib}, {Off: 15 * mib, Len: mib}}
	f.volumes = []Volume{{Partition: 1}, {Partition: 4, Whole: "unknown"}, {Partition: 2}}
	found, err := f.result()
	require.NoError(t, err)
	require.Equal(t, []Volume{
		{Partition: 1, Ranges: 1, LeftOut: mib},
		{Partition: 4, Whole: "unknown"},
		{Partition: 2, Ranges: 2, LeftOut: 3 * mib},
	}, found.Volumes)
}

// A volume that has disappeared when its free space is read stays unchanged.
func TestVolumeThatIsGone(t *testing.T) {
	t.Parallel()
	f := sound()
	zero := disk.New(f.layout.Size, 512, disk.Whole(bytes.NewReader(make([]byte, f.layout.Size)), f.layout.Size))
	found, err := Find(zero, f.layout)
	require.NoError(t, err)
	require.Len(t, found.Volumes, 2)
	require.NotEmpty(t, found.Volumes[0].Whole)
	found = nil
	require.Equal(t, zero, found.View(zero))
	require.Zero(t, found.Stored())
}

// Of too many ranges, the shortest are copied, so that memory is bounded, and a proof finds the same.
func TestManyRanges(t *testing.T) {
	t.Parallel()
	f := sound()
	within := disk.Range{Len: 1 << 50}
	f.add(disk.Range{Len: MinRange - 1}, within)
	require.Empty(t, f.ranges)
	for i := range int64(3 * maxRanges) {
		f.add(disk.Range{Off: (i + 1) << 24, Len: MinRange << (i % 3)}, within)
		require.LessOrEqual(t, len(f.ranges), maxRanges)
	}
	require.Len(t, f.ranges, maxRanges)
	for i, r := range f.ranges {
		require.Equal(t, 4*MinRange, r.Len)
		require.Equal(t, int64(3*i+3)<<24, r.Off)
	}
}

// Data that the boot needs are cut out of the free space, wherever they are in it.
func TestSparedRanges(t *testing.T) {
	t.Parallel()
	f := sound()
	f.ranges = []disk.Range{{Off: mib, Len: mib}, {Off: 4 * mib, Len: mib}}
	f.cut([]disk.Range{{Off: mib + mib/2, Len: 512}, {Off: 3 * mib, Len: 512}, {Off: 4*mib + 10, Len: 4}})
	require.Equal(t, []disk.Range{
		{Off: mib, Len: mib / 2}, {Off: mib + mib/2 + 512, Len: mib/2 - 512}, {Off: 4*mib + 14, Len: mib - 14},
	}, f.ranges)
	require.NoError(t, f.inUse(mib, disk.Range{Off: mib / 2, Len: 512}))
	require.ErrorIs(t, f.inUse(mib, disk.Range{Off: mib / 2, Len: 513}), ondisk.ErrFormat)
	require.NoError(t, f.inUse(mib, disk.Range{Off: 30 * mib, Len: 512}))
}
