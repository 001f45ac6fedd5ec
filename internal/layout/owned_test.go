package layout_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// requireRefused wants an issue that no flag overrides, when something moves.
func requireRefused(t *testing.T, f forge.Bytes, code string) {
	t.Helper()
	l := read(t, f)
	i := slices.IndexFunc(l.Issues, func(i ondisk.Issue) bool { return i.Code == code })
	require.GreaterOrEqual(t, i, 0, "%v", l.Issues)
	require.Equal(t, ondisk.Refuse, l.Issues[i].Effect)
	require.True(t, l.Issues[i].OnMove)
	require.NotEmpty(t, l.Issues[i].Remedy)
}

func TestMemberOfAFirmwareRAID(t *testing.T) {
	f := tableforge.NewMBR(8000, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 7000})
	require.NotContains(t, disktest.Codes(read(t, f).Issues), "firmware-raid")
	f.Text(7998*512, "Intel Raid ISM Cfg Sig. 1.1.00")
	requireRefused(t, f, "firmware-raid")
}

// A member whose array has its table on another disk is named, and not called unknown. Spec: SNIA DDF 2.0, 5.5: the
// anchor header in the last sector.
func TestMemberWithoutATable(t *testing.T) {
	f := make(forge.Bytes, 8192*512)
	f.Text(2<<20, "data of the array")
	f.Put(8191*512, []byte{0xde, 0x11, 0xde, 0x11})
	f.Text(8191*512+8, "GUID of the disk array..01.02.00")
	l := read(t, f)
	require.Nil(t, l.Table)
	i := slices.IndexFunc(l.Issues, func(i ondisk.Issue) bool { return i.Code == "unknown-content" })
	require.Contains(t, l.Issues[i].Text, "byte 4193792 holds the metadata of a ddf_raid_member")
	require.Contains(t, l.Issues[i].Remedy, "an image of the whole array")
}

// OS/2 adds the hidden sectors of the parameter block to each sector number, as DOS does: they follow. What its LVM
// stores does not.
func TestOS2(t *testing.T) {
	f := tableforge.NewMBR(8000, tableforge.Slot{Type: 0x07, Flag: 0x80, Start: 63, Sectors: 7000})
	volumeforge.PutHPFS(f, 63, 7000)
	f.Put(0, []byte{0xbe, 0xbe, 0x07, 0xb4, 0x42, 0xcd, 0x13}) // mov si,07beh; mov ah,42h; int 13h
	f.Put(63*512+0x5a, []byte{0xfa, 0x33, 0xdb})
	l := read(t, f)
	require.Equal(t, volume.HPFS, l.Partitions[0].Volume.Kind)
	require.Empty(t, l.Issues)
	require.Len(t, l.Boot.Refs, 1)
	require.Equal(t, "hpfs hidden sectors", l.Boot.Refs[0].Kind)
	require.True(t, l.Boot.Refs[0].Follows())
	volumeforge.PutDLA(f, 62)
	requireRefused(t, f, "os2-lvm")
}

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
