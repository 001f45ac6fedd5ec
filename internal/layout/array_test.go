package layout_test

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

func readForged(t *testing.T, f forge.Bytes) *layout.Layout {
	t.Helper()
	l := readDisk(t, disktest.ShortDisk(f, int64(len(f))), table.Geometry{})
	return l
}

// A superblock of md 0.90 near the end of the disk is that of the disk, or that of the last partition, where both would
// be in one place.
func TestArraysOfDisksAndOfPartitions(t *testing.T) {
	const sectors, size = 16384, 8 << 20
	whole := tableforge.NewMBR(sectors, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 4000})
	poolforge.PutMD0(whole, binary.LittleEndian)
	l := readForged(t, whole)
	require.NotNil(t, l.Table, "an array of disks shows the table that lies in it")
	require.Equal(t, volume.Unknown, l.Partitions[0].Volume.Kind)
	require.Len(t, l.Issues, 1)
	require.Equal(t, []any{"array-of-disks", ondisk.Refuse, true},
		[]any{l.Issues[0].Code, l.Issues[0].Effect, l.Issues[0].OnMove})

	last := tableforge.NewMBR(sectors, tableforge.Slot{Type: 0xfd, Start: 128, Sectors: sectors - 128})
	poolforge.PutMD0(last[128*512:], binary.LittleEndian)
	require.Equal(t, int64(size-64<<10), 128*512+poolforge.MD0At(last[128*512:]), "where the disk's would be")
	l = readForged(t, last)
	require.Equal(t, volume.MDRaid, l.Partitions[0].Volume.Kind)
	require.Empty(t, l.Issues)
}

// VMFS is refused by its content and by the type of its partition, once.
func TestVMFSIsRefusedOnce(t *testing.T) {
	const sectors = 20 << 11
	for _, kind := range []byte{0xfb, 0x83} {
		f := tableforge.NewMBR(sectors+2048, tableforge.Slot{Type: kind, Start: 63, Sectors: sectors})
		poolforge.PutVMFS(f[63*512:], 5, 14, 61)
		l := readForged(t, f)
		require.Equal(t, volume.VMFS, l.Partitions[0].Volume.Kind)
		require.Len(t, l.Issues, 1)
		require.Equal(t, []any{"vmfs", 1}, []any{l.Issues[0].Code, l.Issues[0].Partition})
	}
	f := tableforge.NewMBR(4096, tableforge.Slot{Type: 0xfb, Start: 63, Sectors: 1000})
	require.Equal(t, "vmfs", readForged(t, f).Issues[0].Code, "by its type, where the content is not known")
}

// A FAT over a whole array has a boot sector where a table would be.
func TestArrayOfDisksWithoutATable(t *testing.T) {
	f := make(forge.Bytes, 8<<20)
	fsforge.PutFAT16(f, 0, 16000)
	f.Text(446, "no table, but a text of this boot sector")
	poolforge.PutMD1(f, "1.0", 0)
	l := readForged(t, f)
	require.Nil(t, l.Table)
	require.Equal(t, volume.MDRaid, l.Volume.Kind)
	require.Empty(t, l.Issues)
}
