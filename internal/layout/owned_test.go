package layout_test

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// requireRefused wants an issue that no flag overrides, when something moves.
func requireRefused(t *testing.T, f forge.Bytes, code string) {
	t.Helper()
	found := coded(read(t, f).Issues, code)
	require.NotEmpty(t, found)
	require.Equal(t, ondisk.Refuse, found[0].Effect)
	require.True(t, found[0].OnMove)
	require.NotEmpty(t, found[0].Remedy)
}

func TestMemberOfAFirmwareRAID(t *testing.T) {
	f := tableforge.NewMBR(8000, slot(0x83, 63, 7000))
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
	found := coded(l.Issues, "unknown-content")
	require.Contains(t, found[0].Text, "byte 4193792 holds the metadata of a ddf_raid_member")
	require.Contains(t, found[0].Remedy, "an image of the whole array")
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
		"forged":              tableforge.NewMBR(8192, slot(0x42, 2048, 6000)),
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
	f := tableforge.NewMBR(8192, slot(0x42, 63, 6000))
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
		f := tableforge.NewMBR(8192, slot(0x42, c.start, c.sectors))
		fsforge.PutNTFS(f, mib, 4000)
		f[mib*512:].U32(fsforge.BootHidden, uint32(c.hidden))
		require.Equal(t, c.want*512, read(t, f).Partitions[0].Volume.DataStart, name)
	}
	f := tableforge.NewMBR(8192, slot(0x42, 63, 7000))
	requireBad(t, f, mib)
}

func readForged(t *testing.T, f forge.Bytes) *layout.Layout {
	t.Helper()
	l := readDisk(t, disktest.ShortDisk(f, int64(len(f))), table.Geometry{})
	return l
}

// A superblock of md 0.90 near the end of the disk is that of the disk, or that of the last partition, where both would
// be in one place.
func TestArraysOfDisksAndOfPartitions(t *testing.T) {
	const sectors, size = 16384, 8 << 20
	whole := tableforge.NewMBR(sectors, slot(0x83, 63, 4000))
	poolforge.PutMD0(whole, binary.LittleEndian)
	l := readForged(t, whole)
	require.NotNil(t, l.Table, "an array of disks shows the table that lies in it")
	require.Equal(t, volume.Unknown, l.Partitions[0].Volume.Kind)
	require.Len(t, l.Issues, 1)
	require.Equal(t, []any{"array-of-disks", ondisk.Refuse, true},
		[]any{l.Issues[0].Code, l.Issues[0].Effect, l.Issues[0].OnMove})

	last := tableforge.NewMBR(sectors, slot(0xfd, 128, sectors-128))
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
		f := tableforge.NewMBR(sectors+2048, slot(kind, 63, sectors))
		poolforge.PutVMFS(f[63*512:], 5, 14, 61)
		l := readForged(t, f)
		require.Equal(t, volume.VMFS, l.Partitions[0].Volume.Kind)
		require.Len(t, l.Issues, 1)
		require.Equal(t, []any{"vmfs", 1}, []any{l.Issues[0].Code, l.Issues[0].Partition})
	}
	f := tableforge.NewMBR(4096, slot(0xfb, 63, 1000))
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

// A BitLocker volume that does not say whether it holds a system is one of data only on a disk that nothing boots, or
// beside a Windows that can be read.
func TestBitLockerByItsDisk(t *testing.T) {
	const start, sectors = 2048, 8192
	code := func(b ...byte) func(forge.Bytes) { return func(f forge.Bytes) { f.Put(0, b) } }
	beside := func(s tableforge.Slot) func(forge.Bytes) {
		return func(f forge.Bytes) { tableforge.PutSlot(f, 0, 1, s) }
	}
	for name, c := range map[string]struct {
		change func(forge.Bytes)
		says   string // empty: a volume of data
	}{
		"a disk of data":                 {func(forge.Bytes) {}, ""},
		"with the code that Windows put": {code(0xbe, 0xbe, 0x07, 0xb8, 0x01, 0x02, 0xcd, 0x13), ""},
		"active": {
			func(f forge.Bytes) { f.U8(tableforge.MBREntries, 0x80) },
			"partition 1 is active",
		},
		"beside an active partition": {
			beside(tableforge.Slot{Flag: 0x80, Type: 7, Start: 63, Sectors: 1000}), "partition 2 is active",
		},
		"beside an EFI system partition": {
			beside(slot(0xef, 63, 1000)), "partition 2 is an EFI system partition",
		},
		"behind unknown code": {code(0xeb, 0x10, 0x33, 0x44), "code in sector 0 is unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := tableforge.NewMBR(start+sectors, slot(7, start, sectors))
			inside := make(forge.Bytes, sectors*512)
			poolforge.PutBitLocker(inside, "PC D: 01/02/2020")
			f.Put(start*512, inside)
			c.change(f)
			found := coded(boottest.Read(t, f).Issues, "bitlocker")
			require.Len(t, found, 1)
			require.Equal(t, 1, found[0].Partition)
			require.True(t, found[0].OnMove)
			if c.says == "" {
				require.Equal(t, ondisk.Note, found[0].Effect)
				return
			}
			require.Equal(t, ondisk.Unbootable, found[0].Effect)
			require.Contains(t, found[0].Text, c.says)
		})
	}
}
