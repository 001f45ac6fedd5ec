package firmware_test

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/volume"
)

// NTFS keeps the sectors in front of it at 1ch of the boot sector and of the backup behind the file system. Source:
// partclone, src/ntfsfixboot.c.
func TestHiddenSectorsOfNTFS(t *testing.T) {
	f := tableforge.NewMBR(4096, tableforge.Slot{Type: 7, Start: 63, Sectors: 3000})
	fsforge.PutNTFS(f, 63, 3000)
	got := boottest.Read(t, f).Refs
	require.Len(t, got, 2)
	for i, at := range []int64{63*512 + 0x1c, (63+2999)*512 + 0x1c} {
		require.Equal(t, []disk.Range{{Off: at, Len: 4}}, got[i].At)
		require.Equal(t, []byte{63, 0, 0, 0}, got[i].Raw)
		require.Equal(t, int64(63*512), got[i].Points)
		require.Equal(t, 1, got[i].Partition)
		b, err := got[i].Encode(got[i].Raw, 2048*512)
		require.NoError(t, err)
		require.Equal(t, []byte{0, 8, 0, 0}, b)
	}
}

func TestHiddenSectorsOfFAT(t *testing.T) {
	f := tableforge.NewMBR(16384, tableforge.Slot{Type: 6, Start: 63, Sectors: 16000})
	fsforge.PutFAT16(f, 63, 16000)
	got := boottest.Read(t, f).Refs
	require.Len(t, got, 1)
	require.Equal(t, []disk.Range{{Off: 63*512 + 0x1c, Len: 4}}, got[0].At)
}

// The header of BitLocker has the word where NTFS has it. Spec: libbde documentation, "Volume header".
func TestHiddenSectorsOfBitLocker(t *testing.T) {
	const start = 63
	for _, stored := range []uint32{start, 2048} {
		f := tableforge.NewMBR(4096, tableforge.Slot{Type: 7, Start: start, Sectors: 3000})
		inside := make(forge.Bytes, 3000*512)
		poolforge.PutBitLocker(inside, "PC C:")
		inside.U32(volume.AtHidden, stored)
		f.Put(start*512, inside)
		got := boottest.Read(t, f).Refs
		require.Len(t, got, 1)
		require.Equal(t, []disk.Range{{Off: start*512 + 0x1c, Len: 4}}, got[0].At)
		require.Equal(t, int64(stored)*512, got[0].Points)
		require.Equal(t, stored == start, got[0].Follows())
		require.Equal(t, stored == start, got[0].Stays == "")
	}
}

// FAT32 has its backup where the word at 32h says. The fixture is made by mkfs.fat: sector 6.
func TestHiddenSectorsOfFAT32(t *testing.T) {
	d := disktest.Fixture(t, disktest.Fixtures(t)["logical-chain"])
	tab, parts := boottest.Partitions(t, d)
	r, err := layout.ReadBoot(boottest.Guest(d, tab, parts))
	require.NoError(t, err)
	var at []int64
	for _, ref := range r.Refs {
		if ref.Partition == 5 {
			at = append(at, ref.At[0].Off)
			require.Equal(t, int64(321363*512), ref.Points)
		}
	}
	require.Equal(t, []int64{321363*512 + 0x1c, (321363+6)*512 + 0x1c}, at)
}

// ext has no such field, but extlinux puts a parameter block in front of it for its own use.
func TestHiddenSectorsOfExtlinux(t *testing.T) {
	f := tableforge.NewMBR(4096, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 3000})
	fsforge.PutExt(f, 63, 3000)
	require.Empty(t, boottest.Read(t, f).Refs)
	f.Text(63*512+3, "EXTLINUX")
	f.U32(63*512+0x1c, 63)
	got := boottest.Read(t, f).Refs
	require.Len(t, got, 1)
	require.Equal(t, int64(63*512), got[0].Points)
}

// A place that the field cannot hold is an error, not a number that wraps.
func TestHiddenSectorsOutOfRange(t *testing.T) {
	f := tableforge.NewMBR(4096, tableforge.Slot{Type: 7, Start: 63, Sectors: 3000})
	fsforge.PutNTFS(f, 63, 3000)
	encode := boottest.Read(t, f).Refs[0].Encode
	b, err := encode(nil, (1<<32-1)*512)
	require.NoError(t, err)
	require.Equal(t, []byte{0xff, 0xff, 0xff, 0xff}, b)
	_, err = encode(nil, 1<<32*512)
	require.Error(t, err)
	_, err = encode(nil, 513)
	require.Error(t, err, "no whole sector")
}

// boot1 of FreeBSD stands in front of a disklabel in an active slice. It finds the slice by the table.
func TestBootSectorOfFreeBSD(t *testing.T) {
	f := tableforge.NewMBR(4096, tableforge.Slot{Type: 0xa5, Flag: 0x80, Start: 63, Sectors: 3000})
	tableforge.PutDisklabel(f, 64*512, tableforge.Slice{Start: 16, Sectors: 2000, Type: 7},
		tableforge.Slice{Sectors: 3000})
	f.Put(63*512, []byte{0xfc, 0x31, 0xc9, 0x8e, 0xc1})
	f.U16(63*512+510, 0xaa55)
	d := boottest.Disk(f)
	tab, parts := boottest.Partitions(t, d)
	r, err := layout.ReadBoot(boottest.Guest(d, tab, parts))
	require.NoError(t, err)
	require.Empty(t, r.Issues)
	f.Text(63*512+0x180, "GRUB \x00Geom\x00Hard Disk\x00Read\x00 Error\x00")
	r, err = layout.ReadBoot(boottest.Guest(d, tab, parts))
	require.NoError(t, err)
	require.Len(t, r.Issues, 1, "a loader of another maker in its place")
}

// A windows partition that was a member of a mirror has a superblock at its end still.
func TestHiddenSectorsUnderARaid(t *testing.T) {
	const sectors = 16000
	f := tableforge.NewMBR(16384, tableforge.Slot{Type: 7, Start: 63, Sectors: sectors})
	fsforge.PutNTFS(f, 63, sectors-300)
	poolforge.PutMD0(f[63*512:][:sectors*512], binary.LittleEndian)
	got := boottest.Read(t, f).Refs
	require.Len(t, got, 2)
	require.Equal(t, "ntfs hidden sectors", got[0].Kind)
	require.Equal(t, int64(63*512), got[0].Points)
}

// The first record of an extended partition has room for a boot loader, and can be active.
func TestBootSectorOfAnExtendedPartition(t *testing.T) {
	for name, tc := range map[string]struct {
		flag byte
		code string
		want []string
	}{
		"none":                    {0x80, "", nil},
		"LILO":                    {0, "\xfa\xeb\x21\x01\xb4\x01LILO", []string{"lilo"}},
		"unknown, active":         {0x80, "\xfaxyz", []string{"boot-code"}},
		"unknown, and not called": {0, "\xfaxyz", nil},
	} {
		f := tableforge.NewMBR(8192, tableforge.Slot{Type: 5, Flag: tc.flag, Start: 63, Sectors: 7000})
		tableforge.PutEBR(f, 63, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 6000}, tableforge.Slot{})
		f.Text(63*512, tc.code)
		r := boottest.Read(t, f)
		var got []string
		for _, i := range r.Issues {
			got = append(got, i.Code)
			require.Zero(t, i.Partition, "it reads files of any partition")
		}
		require.Equal(t, tc.want, got, name)
	}
}

// An active exFAT is no boot disk: its boot sector has fields, and halts or zeros where code would be.
func TestBootSectorOfExFAT(t *testing.T) {
	for text, want := range map[string]int{"": 0, "\xf4\xf4\xf4": 0, "\xfa\x33\xc0": 1} {
		f := tableforge.NewMBR(8192, tableforge.Slot{Type: 7, Flag: 0x80, Start: 63, Sectors: 6000})
		fsforge.PutExFAT(f, 63, 6000)
		f.Text(63*512+120, text)
		fsforge.SealExFAT(f, 63)
		d := boottest.Disk(f)
		tab, parts := boottest.Partitions(t, d)
		require.Equal(t, volume.ExFAT, parts[0].Volume.Kind)
		r, err := layout.ReadBoot(boottest.Guest(d, tab, parts))
		require.NoError(t, err)
		require.Len(t, r.Issues, want)
	}
}
