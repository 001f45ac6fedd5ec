package table

import (
	"cmp"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// seedBytes is short, because a mutation hits any byte: the MBR, and a boot record at LBA 63.
const seedBytes = 64 * 512

// slowest limits the time for one table, on a busy machine.
const slowest = 5 * time.Second

func slot(kind byte, start, sectors uint32) tableforge.Slot {
	return tableforge.Slot{Type: kind, Start: start, Sectors: sectors}
}

func seedDisks(f *testing.F, add func(data []byte, sectors uint32)) {
	f.Helper()
	for _, path := range disktest.Fixtures(f) {
		d := disktest.Fixture(f, path)
		add(disktest.Head(f, d, seedBytes), uint32(d.Size()/512))
	}
	for _, b := range disktest.Seeds(f, seedBytes, "dfvfs/mbr.raw.gz", "imagemounter/test.mbr.xz", "mbrman/disk1.img",
		"mbrman/disk2.img", "libldm/ldm-2003r2-simple-1.img.xz", "gptman/disk1.img", "gptman/disk2.img") {
		add(b, uint32(len(b)/512))
	}
}

// FuzzMBR reads anything as an MBR with its chains of logical partitions.
func FuzzMBR(f *testing.F) {
	seedDisks(f, func(data []byte, sectors uint32) { f.Add(data, sectors, uint8(0)) })
	chain := tableforge.NewMBR(4, slot(0x05, 1, 60), slot(0x83, 63, 63))
	tableforge.PutEBR(chain, 1, slot(0x83, 8, 2), slot(0x05, 1, 20))
	tableforge.PutEBR(chain, 2, slot(0x83, 9, 2), slot(0x05, 2, 20))
	tableforge.PutEBR(chain, 3, slot(0x83, 10, 2), slot(0, 0, 0))
	f.Add([]byte(chain), uint32(256), uint8(0))
	tableforge.PutEBR(chain, 3, slot(0x83, 10, 2), slot(0x05, 0, 50)) // back to the first
	f.Add([]byte(chain), uint32(256), uint8(0))
	for i, n := range disk.SectorSizes {
		large := tableforge.NewMBR(int(4*n/512), slot(0x05, 1, 60))
		tableforge.PutEBR(large, n/512, slot(0x83, 8, 2), slot(0x05, 1, 20))
		tableforge.PutEBR(large, 2*n/512, slot(0x83, 9, 2), slot(0, 0, 0))
		f.Add([]byte(large), uint32(256*n/512), uint8(i))
		f.Add([]byte(tableforge.NewMBR(1, slot(0x05, 1, 60))), uint32(256*n/512), uint8(i)) // without a record
	}
	f.Add([]byte(tableforge.NewMBR(1, slot(0x83, 0xffffffff, 0xffffffff), slot(0x05, 0x80000000, 0x7fffffff))),
		uint32(1<<32-1), uint8(0))
	f.Fuzz(func(t *testing.T, data []byte, sectors uint32, size uint8) {
		n := disk.SectorSizes[int(size)%len(disk.SectorSizes)]
		whole := int64(sectors) * 512
		readFuzzed(t, disk.InSectors(disktest.ShortDisk(data, whole-whole%n), n))
	})
}

// FuzzGPT reads anything as a GPT with corrected checksums, which no mutation would get right.
func FuzzGPT(f *testing.F) {
	seedDisks(f, func(data []byte, sectors uint32) { f.Add(data, sectors, false) })
	entries := []tableforge.GPTEntry{{First: 63, Last: 99, Name: "one"}, {First: 99, Last: 120, Name: "overlaps"}}
	f.Add([]byte(tableforge.NewGPT(512, 256, 128, entries...)), uint32(256), false)
	f.Add([]byte(tableforge.NewGPT(512, 16, 8, tableforge.GPTEntry{First: 4, Last: 5},
		tableforge.GPTEntry{First: 6, Last: 9})), uint32(16), false)
	f.Add([]byte(tableforge.NewGPT(4096, 64, 128, entries...)), uint32(512), true)
	hybrid := tableforge.NewGPT(512, 64, 8, tableforge.GPTEntry{First: 4, Last: 9},
		tableforge.GPTEntry{First: 12, Last: 40})
	for i, s := range []tableforge.Slot{slot(0xee, 1, 11), slot(0x83, 12, 29), slot(0xee, 45, 19)} {
		tableforge.PutSlot(hybrid, 0, i, s)
	}
	f.Add([]byte(hybrid), uint32(64), false)
	for _, far := range []uint64{1 << 50, 1<<51 - 1, 1 << 51, 1<<52 - 1, 1 << 55, 1<<64 - 1} {
		disk := tableforge.NewGPT(4096, 64, 128, tableforge.GPTEntry{First: far - 1, Last: far})
		f.Add([]byte(disk), uint32(512), true)
	}
	f.Fuzz(func(t *testing.T, data []byte, sectors uint32, large bool) {
		sector := int64(512)
		if large {
			sector = 4096
		}
		disk := forge.Bytes(data)
		tableforge.SealGPT(disk, sector, sector)
		tableforge.SealGPT(disk, min(int64(len(disk)), int64(sectors)*512)/sector*sector-sector, sector)
		readFuzzed(t, disktest.ShortDisk(disk, int64(sectors)*512))
	})
}

// readFuzzed checks the properties of Read that the rest of the program relies on.
func readFuzzed(t *testing.T, d disk.Disk) {
	t.Helper()
	spent := disktest.Spent()
	table, err := Read(d)
	require.Less(t, spent(), slowest)
	if err != nil {
		classes := errors.Is(err, ondisk.ErrNoMatch) || errors.Is(err, ondisk.ErrFormat) ||
			errors.Is(err, ondisk.ErrLimit) || errors.Is(err, ondisk.ErrUnsupported)
		require.True(t, classes, "%v", err)
		return
	}
	for _, p := range table.Partitions {
		require.GreaterOrEqual(t, p.Off, int64(0))
		require.GreaterOrEqual(t, p.Len, int64(0))
		require.GreaterOrEqual(t, p.End(), p.Off)
	}
	if !table.Plausible() {
		return // the rest is for sound tables
	}
	sorted := table.containers()
	slices.SortFunc(sorted, func(a, b Partition) int { return cmp.Compare(a.Off, b.Off) })
	for i, p := range sorted {
		require.LessOrEqual(t, p.End(), d.Size(), "partition %d", p.Number)
		require.True(t, i == 0 || !p.Overlaps(sorted[i-1].Range), "partitions %d and %d", sorted[max(i-1, 0)].Number,
			p.Number)
	}
	here := map[int]int64{}
	for _, p := range table.Partitions {
		here[p.Number] = p.Off
	}
	require.Empty(t, relocate(table, here, table.Geometry(nil)),
		"a table that keeps every partition in its place changes nothing")
	n := 512 + 4096 - table.SectorSize
	refused := slices.ContainsFunc(table.Issues, func(i ondisk.Issue) bool { return i.Effect >= ondisk.Refuse })
	if n != 512 && n != 4096 || refused || table.SizeIn(Places{}, d.Size(), n) > d.Size() {
		return
	}
	patches, err := table.InSectors(d, n, table.Geometry(nil))
	if err != nil {
		require.True(t, errors.Is(err, ondisk.ErrUnsupported) || errors.Is(err, ondisk.ErrLimit), "%v", err)
		return
	}
	now, err := Read(disk.InSectors(disk.Overlay(d, patches), n))
	require.NoError(t, err)
	require.Len(t, now.Partitions, len(table.Partitions))
	for i, p := range table.Partitions {
		require.Equal(t, p.Number, now.Partitions[i].Number)
		if p.Kind != Extended {
			require.Equal(t, disk.Range{Off: p.Off, Len: units.AlignUp(p.Len, n)}, now.Partitions[i].Range)
		}
	}
}
