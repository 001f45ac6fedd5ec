package plan_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/table"
)

// FuzzLayout goes the whole way from anything to the view of a result: read, judge, plan, view, read again.
func FuzzLayout(f *testing.F) {
	const seedBytes = 36 << 10 // the MBR, and the boot sector of a partition at LBA 63
	for _, path := range disktest.Fixtures(f) {
		d := disktest.Fixture(f, path)
		f.Add(disktest.Head(f, d, seedBytes), uint32(d.Size()/512), uint8(0))
	}
	for _, b := range disktest.Seeds(f, seedBytes, "dfvfs/mbr.raw.gz", "imagemounter/test.mbr.xz", "mbrman/disk2.img",
		"gptman/disk1.img", "dftt/7-ntfs-undel.dd.xz") {
		f.Add(b, uint32(16384), uint8(12))
	}
	for i, put := range []func(forge.Bytes, int64, int64){
		fsforge.PutNTFS, fsforge.PutFAT16,
		fsforge.PutExt,
	} {
		const start, sectors = 3, 5000
		disk := tableforge.NewMBR(6000,
			tableforge.Slot{
				Flag: 0x80, Type: 0x07, Start: start,
				Sectors: sectors,
			}, slot(0x83, start+sectors, 100))
		put(disk, start, sectors)
		f.Add([]byte(disk[:(start+4)*512]), uint32(6000), uint8(i))
	}
	far := tableforge.NewMBR(1, slot(0x83, 63, 1), slot(0x83, 0xfffffffe, 1))
	f.Add([]byte(far), uint32(1<<32-1), uint8(18))
	behind := tableforge.NewMBR(1, slot(0x83, 63, 100), slot(0x83, 10000, 64))
	f.Add([]byte(behind), uint32(200), uint8(0)) // the gap between them leaves the disk
	for i, n := range disk.SectorSizes {
		large := tableforge.NewMBR(int(4*n/512), slot(0x83, 70, 9), slot(0x05, 1, 60))
		f.Add([]byte(large[:512]), uint32(256*n/512), uint8(20*i)) // without a boot record
		tableforge.PutEBR(large, n/512, slot(0x06, 8, 2), slot(0x05, 1, 20))
		tableforge.PutEBR(large, 2*n/512, slot(0x83, 9, 2), tableforge.Slot{})
		f.Add([]byte(large), uint32(256*n/512), uint8(20*i))
		f.Add([]byte(tableforge.NewGPT(n, 64, 8, tableforge.GPTEntry{First: 7, Last: 12})), uint32(64*n/512), uint8(0))
	}
	empty := tableforge.NewMBR(1, tableforge.Slot{Type: 0x83, Start: 0xfffffff0})
	f.Add([]byte(empty), uint32(1<<32-1), uint8(19))
	f.Fuzz(func(t *testing.T, data []byte, sectors uint32, boundary uint8) {
		n := disk.SectorSizes[int(boundary)/20%len(disk.SectorSizes)]
		whole := int64(sectors) * 512
		d := disk.InSectors(disktest.ShortDisk(data, whole-whole%n), n)
		spent := disktest.Spent()
		asked := int64(0) // auto, or one that a user may ask for: 4 KiB to 1 GiB
		if boundary%20 > 0 {
			asked = 4 << 10 << (boundary%20 - 1)
		}
		walkAll(t, d, asked)
		require.Less(t, spent(), 10*time.Second)
	})
}

// walkAll holds a result to the promises of a plan that nothing refused: whole partitions, no move left to do.
func walkAll(t *testing.T, d disk.Disk, boundary int64) {
	t.Helper()
	l, err := layout.Read(d, table.Geometry{Heads: 16, Sectors: 63})
	if err != nil {
		requireFormat(t, err)
		return
	}
	goal := align.GoalFor(l, align.BoundaryOf(boundary))
	align.Check(l, goal)
	align.Overall(l, align.DefaultBoundary)
	require.NoError(t, l.ReadGaps(d))
	p, err := plan.New(l, goal)
	if err != nil {
		requireFormat(t, err)
		return
	}
	if len(p.Refusals(true)) > 0 {
		return
	}

	require.GreaterOrEqual(t, p.Size, l.Size)
	moved := map[int]int64{}
	for _, m := range p.Moves {
		moved[m.Partition] = m.To
	}
	bare := disk.Compose(d, p.Size, p.Pieces)
	for _, part := range l.InDiskOrder() {
		to, ok := moved[part.Number]
		if !ok {
			to = part.Off
		}
		n := min(part.Len, 64<<10)
		for _, off := range []int64{0, part.Len - n} { // the first and the last 64 KiB
			want, got := make([]byte, n), make([]byte, n)
			require.NoError(t, ondisk.ReadFull(d, want, part.Off+off))
			require.NoError(t, ondisk.ReadFull(bare, got, to+off))
			disktest.EqualBytes(t, want, got)
		}
	}

	view := p.View(d)
	after, err := layout.Read(view, table.Geometry{Heads: 16, Sectors: 63})
	require.NoError(t, err)
	require.Len(t, after.Partitions, len(l.Partitions))
	require.NoError(t, after.ReadGaps(view))
	requireSettled(t, after, p.Goal, "a result that is planned again")
}

func requireFormat(t *testing.T, err error) {
	t.Helper()
	known := errors.Is(err, ondisk.ErrFormat) || errors.Is(err, ondisk.ErrLimit) ||
		errors.Is(err, ondisk.ErrUnsupported)
	require.True(t, known, "%v", err)
}
