package table_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/table"
)

// What a new copy of a GPT would replace is read before, and what cannot be read is not taken for free.
func TestBadSectorsUnderANewGPT(t *testing.T) {
	t.Parallel()
	const sectors, firstUsable = 4096, 64
	whole := func() forge.Bytes {
		f := tableforge.NewGPT(512, sectors, 128, tableforge.GPTEntry{First: 100, Last: 2000})
		for _, header := range []int64{1, sectors - 1} {
			f.U64(header*512+tableforge.GPTFirstUsable, firstUsable)
			tableforge.SealGPT(f, header*512, 512)
		}
		return f
	}
	for name, tc := range map[string]struct {
		change func(f forge.Bytes)
		bad    int64
	}{
		"the array that was":         {func(f forge.Bytes) { f.Text(512, "gone") }, 30},
		"the place of the array":     {func(f forge.Bytes) { clear(f[:34*512]) }, 10},
		"the header that is damaged": {func(f forge.Bytes) { f.Text(512+tableforge.GPTDiskGUID, "damaged") }, 1},
	} {
		f := whole()
		tc.change(f)
		require.True(t, readTable(t, f).OnlyBackup(), name)
		_, err := table.Read(disktest.NewBadDisk(disktest.Memory(f), tc.bad*512))
		require.ErrorIs(t, err, disktest.ErrFault, name)
	}
}

// A GPT without partitions behind an MBR that does not protect it says nothing.
func TestEmptyGPTBesideAnMBR(t *testing.T) {
	t.Parallel()
	for entries, beside := range map[int]bool{0: false, 1: true} {
		f := tableforge.NewGPT(512, 4096, 128, []tableforge.GPTEntry{{First: 100, Last: 2000}}[:entries]...)
		clear(f[tableforge.MBREntries:tableforge.MBRMagic])
		tableforge.PutSlot(f, 0, 0, slot(7, 63, 2000))
		got := readTable(t, f)
		require.Equal(t, table.MBR, got.Scheme)
		require.Equal(t, beside, got.BesideGPT)
		require.Equal(t, beside, len(got.Issues) > 0)
	}
}

// The note on a hybrid MBR names each slot with its partition.
func TestNoteOnAHybridMBR(t *testing.T) {
	t.Parallel()
	got := readTable(t, hybridOf(slot(0xee, 1, 2000), slot(0x07, 2001, 2000), slot(0x83, 5000, 2000)))
	require.Len(t, got.Issues, 1)
	require.Contains(t, got.Issues[0].Text, "slot 2 partition 2, slot 3 partition 3")
}
