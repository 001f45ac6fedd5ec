package table

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// A GPT is found by each sector size, whatever size the disk is read with, by either of its copies. Spec: UEFI 2.10,
// 5.3.2: the header lies in LBA 1, the backup in the last one.
func TestGPTOfEachSectorSize(t *testing.T) {
	const size = 4 << 20
	for _, sector := range disk.SectorSizes {
		for _, shown := range disk.SectorSizes {
			f := tableforge.NewGPT(sector, size/sector, 128, tableforge.GPTEntry{First: 63, Last: 99})
			for _, lost := range []int64{0, sector, size - sector} {
				if lost > 0 {
					clear(f[lost:][:sector])
				}
				g, err := Read(disk.InSectors(disktest.Memory(f), shown))
				require.NoError(t, err, "%d shown with %d", sector, shown)
				require.Equal(t, GPT, g.Scheme)
				require.Equal(t, sector, g.SectorSize)
				require.Equal(t, disk.Range{Off: 63 * sector, Len: 37 * sector}, g.Partitions[0].Range)
				require.NotContains(t, disktest.Codes(g.Issues), "gpt-sector-sizes")
				f = tableforge.NewGPT(sector, size/sector, 128, tableforge.GPTEntry{First: 63, Last: 99})
			}
		}
	}
}

// A sound table of one size outweighs a broken one of the size by which the disk is read; of two sound ones, that of
// the disk is read, and nothing is moved.
func TestGPTsOfTwoSectorSizes(t *testing.T) {
	const size = 4 << 20
	both := func() forge.Bytes {
		a := tableforge.NewGPT(512, size/512, 8, tableforge.GPTEntry{First: 2000, Last: 3000})
		b := tableforge.NewGPT(4096, size/4096, 128, tableforge.GPTEntry{First: 300, Last: 400})
		a.Put(4096, b[4096:8*4096]) // header and entries; the backups would lie over each other
		return a
	}
	f := both()
	for shown, want := range map[int64]int64{512: 512, 4096: 4096, 1024: 512} {
		g, err := Read(disk.InSectors(disktest.Memory(f), shown))
		require.NoError(t, err)
		require.Equal(t, want, g.SectorSize)
		require.Contains(t, disktest.Codes(g.Issues), "gpt-sector-sizes")
		i := g.Issues[len(g.Issues)-1]
		require.Equal(t, ondisk.Refuse, i.Effect)
		require.True(t, i.OnMove)
	}
	f[512+tableforge.GPTHeaderCRC]++
	clear(f[size-512:])
	g := readTable(t, f)
	require.EqualValues(t, 4096, g.SectorSize)
	require.NotContains(t, disktest.Codes(g.Issues), "gpt-sector-sizes")

	f[4096+tableforge.GPTHeaderCRC]++
	_, err := Read(disktest.Memory(f))
	require.ErrorIs(t, err, ondisk.ErrFormat, "both are broken")
}
