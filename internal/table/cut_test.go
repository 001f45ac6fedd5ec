package table

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
)

// A disk that was cut short says so first, and its table is read as far as it is there.
func TestCutShort(t *testing.T) {
	const sectors, left = 8000, 4000
	mbr := disktest.ForgeMBR(sectors, disktest.MBREntryFields{Type: 0x83, Start: 63, Sectors: 2000},
		disktest.MBREntryFields{Type: 0x83, Start: 3000, Sectors: 5000})
	gpt := func(sector int64) disktest.Forged {
		return disktest.ForgeGPT(sector, sectors, 128, disktest.GPTEntryFields{First: 63, Last: 2000, Name: "first"},
			disktest.GPTEntryFields{First: 3000, Last: 7900, Name: "last"})
	}
	for name, tc := range map[string]struct {
		disk   disktest.Forged
		sector int64
	}{"MBR": {mbr, 512}, "GPT": {gpt(512), 512}, "GPT of 4096": {gpt(4096), 4096}} {
		t.Run(name, func(t *testing.T) {
			whole, err := Read(disktest.ShortDisk(tc.disk, int64(len(tc.disk))))
			require.NoError(t, err)
			require.Empty(t, whole.Issues)
			cut, err := Read(disktest.ShortDisk(tc.disk[:left*tc.sector], left*tc.sector))
			require.NoError(t, err)
			require.Len(t, cut.Partitions, 2)
			for i, p := range cut.Partitions {
				require.Equal(t, whole.Partitions[i].Range, p.Range)
			}
			require.Len(t, cut.Issues, 2)
			require.Equal(t, "cut-short", cut.Issues[0].Code)
			require.Equal(t, ondisk.Broken, cut.Issues[0].Effect)
			require.ErrorIs(t, cut.Issues[0].Err, ondisk.ErrFormat)
			require.Contains(t, cut.Issues[0].Text, fmt.Sprintf("has %d of the %d bytes", left*tc.sector, sectors*tc.sector))
			require.Equal(t, 2, cut.Issues[1].Partition)
			require.False(t, cut.Damaged(), "nothing is written over what is left")
		})
	}
	overlap := disktest.ForgeMBR(sectors, disktest.MBREntryFields{Type: 0x83, Start: 63, Sectors: 5000},
		disktest.MBREntryFields{Type: 0x83, Start: 3000, Sectors: 5000})
	damaged, err := Read(disktest.ShortDisk(overlap[:left*512], left*512))
	require.NoError(t, err)
	require.NotEqual(t, "cut-short", damaged.Issues[0].Code, "what overlaps is no sound table of a longer disk")
}
