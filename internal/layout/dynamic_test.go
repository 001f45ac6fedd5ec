package layout_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/volume"
)

// A dynamic disk is known by the types in its table, and refused as a whole with the reason.
func TestDynamicDisksAreRefused(t *testing.T) {
	for name, l := range map[string]forge.Bytes{
		"forged":              tableforge.NewMBR(8192, tableforge.Slot{Type: 0x42, Start: 2048, Sectors: 6000}),
		"Windows Server 2003": load(t, disktest.Corpus(t, "libldm/ldm-2003r2-simple-1.img.xz")),
	} {
		l := read(t, l)
		require.Equal(t, []string{"ldm"}, disktest.Codes(l.Issues), name)
		require.True(t, l.Dynamic() && l.Issues[0].DiskWide && l.Issues[0].OnMove, name)
		require.Contains(t, l.Issues[0].Text, "partition 1 has type 0x42, Windows dynamic disk (LDM)", name)
		require.Contains(t, l.Issues[0].Text, "Windows 2000 to 2003", name)
		require.Contains(t, l.Issues[0].Remedy, "convert it to a basic disk in the guest", name)
		require.Equal(t, volume.LDM, l.Partitions[0].Volume.Kind, name)
	}
}

// A partition of a dynamic disk can begin with a part of a volume, which is not read as a whole one.
func TestAPartOfADynamicVolumeIsNoVolume(t *testing.T) {
	f := tableforge.NewMBR(8192, tableforge.Slot{Type: 0x42, Start: 63, Sectors: 6000})
	fsforge.PutNTFS(f, 63, 6000)
	f[63*512:].U64(fsforge.NTFSTotal, 12000)
	l := read(t, f)
	require.Equal(t, []string{"ldm"}, disktest.Codes(l.Issues))
	require.Equal(t, &volume.Volume{Kind: volume.LDM, Size: 6000 * 512}, l.Partitions[0].Volume)
}

// The boot sector of the first volume of a dynamic disk shows that it begins on 1 MiB, behind the start of the
// partition.
func TestFirstVolumeOfADynamicDisk(t *testing.T) {
	const mib = 2048
	for name, c := range map[string]struct {
		start, sectors uint32
		hidden         int64
		want           int64 // sectors
	}{
		"of Windows Server 2008":           {63, 7000, mib, mib - 63},
		"at the start of the partition":    {mib, 5000, mib, 0},
		"with the place of another volume": {63, 7000, 63, 0},
		"behind the partition":             {63, 1000, mib, 0},
	} {
		f := tableforge.NewMBR(8192, tableforge.Slot{Type: 0x42, Start: c.start, Sectors: c.sectors})
		fsforge.PutNTFS(f, mib, 4000)
		f[mib*512:].U32(fsforge.BootHidden, uint32(c.hidden))
		require.Equal(t, c.want*512, read(t, f).Partitions[0].Volume.DataStart, name)
	}
	f := tableforge.NewMBR(8192, tableforge.Slot{Type: 0x42, Start: 63, Sectors: 7000})
	requireBad(t, f, mib)
}
