package table

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// oddChain returns a chain whose records use all four slots, as OS/2 left them. Its places were read by Linux 6.1
// (sys/block/sda) like this too.
func oddChain(third tableforge.Slot) forge.Bytes {
	f := tableforge.NewMBR(32768, slot(0x83, 2048, 1024), slot(0x05, 4096, 20000))
	tableforge.PutEBR(f, 4096, slot(0x83, 2048, 100), slot(0x05, 8192, 4096))
	tableforge.PutSlot(f, 4096, 2, slot(0x83, 4096, 100))
	tableforge.PutSlot(f, 4096, 3, slot(0x83, 6144, 200))
	tableforge.PutEBR(f, 12288, slot(0x83, 1024, 100), slot(0x83, 2048, 100))
	tableforge.PutSlot(f, 12288, 2, slot(0x83, 3072, 100))
	tableforge.PutSlot(f, 12288, 3, slot(0x05, 12288, 3000))
	tableforge.PutEBR(f, 16384, slot(0x83, 1024, 100), slot(0, 0, 0))
	tableforge.PutSlot(f, 16384, 2, third)
	return f
}

// Linux reads each data entry of a boot record, and takes those in the third and fourth slot for garbage when they do
// not fit. libblkid has the same rules.
func TestRecordsWithManyEntries(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		third tableforge.Slot
		parts int
	}{
		"all fit":                    {slot(0x83, 2048, 100), 10},
		"to the end of its link":     {slot(0x83, 2048, 952), 10},
		"beyond its link":            {slot(0x83, 2048, 953), 9},
		"beyond the extended one":    {slot(0x83, 12288, 100), 9},
		"a start beyond 32 bits":     {slot(0x83, 0xffffffff, 0xffffffff), 9},
		"no sectors":                 {slot(0x83, 2048, 0), 9},
		"alone in its record's slot": {slot(0x83, 1500, 1500), 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := oddChain(tc.third)
			path := filepath.Join(t.TempDir(), "disk.raw")
			f.Write(t, path)
			got := readTable(t, f)
			var lines string
			for _, p := range got.Partitions {
				lines += fmt.Sprintf("%d %d %d\n", p.Number, p.Off/512, p.Len/512)
			}
			require.Len(t, got.Partitions, tc.parts)
			require.Equal(t, disktest.Output(t, "partx", "-rgo", "NR,START,SECTORS", path), lines)
			for _, i := range got.Issues {
				require.Equal(t, "ebr-entries", i.Code)
				require.Equal(t, ondisk.Refuse, i.Effect)
				require.True(t, i.OnMove)
			}
			require.Contains(t, got.Issues[0].Text, "the boot record at LBA 4096 (byte 0x200000)")
		})
	}
}

// What lies in one record may overlap no more than what lies in two.
func TestEntriesOfARecordOverlap(t *testing.T) {
	t.Parallel()
	f := oddChain(slot(0x83, 1050, 100))
	got := readTable(t, f)
	last := got.Issues[len(got.Issues)-1]
	require.Equal(t, ondisk.Broken, last.Effect)
	require.Equal(t, 12, last.Partition)
	require.Contains(t, last.Text, "partition 12")
}

// A record that lies in a partition of another record is broken, also where the chain goes back to it.
func TestRecordInAPartition(t *testing.T) {
	t.Parallel()
	f := tableforge.NewMBR(4096, slot(5, 1100, 2900))
	tableforge.PutEBR(f, 1100, slot(7, 63, 900), slot(5, 1000, 1000))
	tableforge.PutEBR(f, 2100, slot(7, 63, 400), slot(5, 400, 1500))
	tableforge.PutEBR(f, 1500, slot(7, 1100, 100), slot(0, 0, 0))
	got := readTable(t, f)
	require.Len(t, got.Issues, 1)
	require.Contains(t, got.Issues[0].Text, "(the boot record at LBA 1500)")
	require.Equal(t, ondisk.Broken, got.Issues[0].Effect)
}

func TestEndlessChain(t *testing.T) {
	t.Parallel()
	f := tableforge.NewMBR(4096, slot(5, 100, 3900))
	for i := range int64(maxLogical + 1) {
		tableforge.PutEBR(f, 100+4*i, slot(7, 1, 1), slot(5, uint32(4*(i+1)), 4))
	}
	got := readTable(t, f)
	require.Len(t, got.Issues, 1)
	require.ErrorIs(t, got.Issues[0].Err, ondisk.ErrLimit)
	require.Len(t, got.Partitions, 1+maxLogical)
}
