package firmware_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/volume"
)

// NTFS and FAT store the number of preceding sectors at 1ch of the boot sector, NTFS also in the backup after the file
// system. Source: partclone, src/ntfsfixboot.c. A former member of a mirror still has a superblock at its end; ext has
// no such field.
func TestHiddenSectors(t *testing.T) {
	const start, sectors = 63, 16000
	const ntfs, fat16 = "ntfs hidden sectors", "fat16 hidden sectors"
	for name, tc := range map[string]struct {
		put  func(f forge.Bytes)
		kind string
		at   []int64 // in the partition, in sectors
	}{
		"NTFS":  {func(f forge.Bytes) { fsforge.PutNTFS(f, start, sectors) }, ntfs, []int64{0, sectors - 1}},
		"FAT16": {func(f forge.Bytes) { fsforge.PutFAT16(f, start, sectors) }, fat16, []int64{0}},
		"ext":   {func(f forge.Bytes) { fsforge.PutExt(f, start, sectors) }, "", nil},
		"NTFS under a RAID": {func(f forge.Bytes) {
			fsforge.PutNTFS(f, start, sectors-300)
			poolforge.PutMD0(f[start*512:][:sectors*512], binary.LittleEndian)
		}, ntfs, []int64{0, sectors - 301}},
	} {
		t.Run(name, func(t *testing.T) {
			f := tableforge.NewMBR(16384, tableforge.Slot{Type: 7, Start: start, Sectors: sectors})
			tc.put(f)
			got := boottest.Read(t, f).Refs
			require.Len(t, got, len(tc.at))
			for i, at := range tc.at {
				require.Equal(t, tc.kind+[]string{"", ", backup boot sector"}[i], got[i].Kind)
				require.Equal(t, []disk.Range{{Off: (start+at)*512 + 0x1c, Len: 4}}, got[i].At)
				require.Equal(t, []byte{start, 0, 0, 0}, got[i].Raw)
				require.Equal(t, int64(start*512), got[i].Points)
				require.Equal(t, 1, got[i].Partition)
				b, err := got[i].Encode(got[i].Raw, 2048*512)
				require.NoError(t, err)
				require.Equal(t, []byte{0, 8, 0, 0}, b)
			}
		})
	}
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
	r := boottest.ReadGuest(t, boottest.Guest(d, tab, parts))
	var at []int64
	for _, ref := range r.Refs {
		if ref.Partition == 5 {
			at = append(at, ref.At[0].Off)
			require.Equal(t, int64(321363*512), ref.Points)
		}
	}
	require.Equal(t, []int64{321363*512 + 0x1c, (321363+6)*512 + 0x1c}, at)
}

// A position too large for the field is an error, not a wrapped number.
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

// boot1 of FreeBSD precedes a disklabel in an active slice. It finds the slice by the table.
func TestBootSectorOfFreeBSD(t *testing.T) {
	f := tableforge.NewMBR(4096, tableforge.Slot{Type: 0xa5, Flag: 0x80, Start: 63, Sectors: 3000})
	tableforge.PutDisklabel(f, 64*512, tableforge.Slice{Start: 16, Sectors: 2000, Type: 7},
		tableforge.Slice{Sectors: 3000})
	f.Put(63*512, []byte{0xfc, 0x31, 0xc9, 0x8e, 0xc1})
	f.U16(63*512+510, 0xaa55)
	require.Empty(t, boottest.Read(t, f).Issues)
	f.Text(63*512+0x180, "GRUB \x00Geom\x00Hard Disk\x00Read\x00 Error\x00")
	require.Len(t, boottest.Read(t, f).Issues, 1, "a loader of another maker in its place")
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

// An active exFAT is not a boot disk: its boot sector has fields, and halts or zeros where code would be.
func TestBootSectorOfExFAT(t *testing.T) {
	for text, want := range map[string]int{"": 0, "\xf4\xf4\xf4": 0, "\xfa\x33\xc0": 1} {
		f := tableforge.NewMBR(8192, tableforge.Slot{Type: 7, Flag: 0x80, Start: 63, Sectors: 6000})
		fsforge.PutExFAT(f, 63, 6000)
		f.Text(63*512+120, text)
		fsforge.SealExFAT(f, 63)
		g := boottest.GuestOf(t, f)
		require.Equal(t, volume.ExFAT, g.Partitions[0].Volume.Kind)
		require.Len(t, boottest.ReadGuest(t, g).Issues, want)
	}
}

// exfatDisk is a disk with an exFAT at LBA 63, and the expected output of its Encode.
func exfatDisk(lba int64) forge.Bytes {
	f := tableforge.NewMBR(8192, tableforge.Slot{Type: 7, Start: 63, Sectors: 6000})
	fsforge.PutExFAT(f, 63, 6000)
	putPartitionOffset(f[63*512:], uint64(lba))
	return f
}

// putPartitionOffset stores the position of an exFAT in both of its boot regions.
func putPartitionOffset(v forge.Bytes, lba uint64) {
	for _, first := range []int64{0, 12} {
		v.U64(first*512+fsforge.ExFATPartitionOffset, lba)
		fsforge.SealExFAT(v, first)
	}
}

// The field is at 40h, in both boot regions, under the checksum of the region. Spec: exFAT specification, 3.1.4, 3.4.
func TestPartitionOffsetOfExFAT(t *testing.T) {
	got := boottest.Read(t, exfatDisk(63)).Refs
	require.Len(t, got, 2)
	want := exfatDisk(2048)
	for i, first := range []int64{63, 63 + 12} {
		r := got[i]
		require.Equal(t, []disk.Range{{Off: first * 512, Len: 12 * 512}}, r.At)
		require.Equal(t, int64(63*512), r.Points)
		require.Equal(t, 1, r.Partition)
		b, err := r.Encode(r.Raw, 2048*512)
		require.NoError(t, err)
		require.Equal(t, []byte(want[r.At[0].Off:r.At[0].End()]), b)
		_, err = r.Encode(r.Raw, 2048*512+1)
		require.Error(t, err, "no whole sector")
	}
}

// dump.exfat and fsck.exfat accept the output of Encode for a volume made by mkfs.exfat.
func TestEncodedExFATIsSound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "volume")
	require.NoError(t, os.WriteFile(path, make([]byte, 16<<20), 0o644))
	disktest.Run(t, "mkfs.exfat", path)
	volume := disktest.ReadFile(t, path)
	f := tableforge.NewMBR(40000, tableforge.Slot{Type: 7, Start: 63, Sectors: 32768})
	f.Put(63*512, volume)
	require.Empty(t, boottest.Read(t, f).Refs, "mkfs.exfat leaves the field 0, which says that it is not known")
	putPartitionOffset(f[63*512:], 63)
	found := boottest.Read(t, f).Refs
	require.Len(t, found, 2)
	for _, r := range found {
		b, err := r.Encode(r.Raw, 1<<20)
		require.NoError(t, err)
		f.Put(r.At[0].Off, b)
	}
	require.NoError(t, os.WriteFile(path, f[63*512:][:len(volume)], 0o644))
	disktest.Run(t, "fsck.exfat", "-n", path)
	require.Equal(t, byte(8), f[63*512+fsforge.ExFATPartitionOffset+1], "LBA 2048")
}

// Unreliable fields stay unchanged.
func TestPartitionOffsetOfExFATThatIsLeft(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(v forge.Bytes)
		want   int
	}{
		"0 in both, the place is not known": {func(v forge.Bytes) { putPartitionOffset(v, 0) }, 0},
		"wrong checksum of the backup":      {func(v forge.Bytes) { v.U32(23*512, 7) }, 1},
		"wrong checksum of the first":       {func(v forge.Bytes) { v.U32(11*512, 7) }, 0},
		"2^64-1 in both":                    {func(v forge.Bytes) { putPartitionOffset(v, 1<<64-1) }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			f := exfatDisk(63)
			tc.change(f[63*512:])
			got := boottest.Read(t, f).Refs
			require.Len(t, got, tc.want)
			if name == "2^64-1 in both" {
				require.Positive(t, got[0].Points)
			}
		})
	}
}

// In a region with a checksum, only the changed bytes are listed; a field is listed as a whole.
func TestPatchesOfReferences(t *testing.T) {
	r := boottest.Read(t, exfatDisk(63)).Refs[0]
	patches, err := r.Patches((2048-63)*512, 2048*512)
	require.NoError(t, err)
	require.Len(t, patches, 2)
	require.Equal(t, int64(2048*512+fsforge.ExFATPartitionOffset), patches[0].Off)
	require.Equal(t, []byte{63, 0}, patches[0].Old)
	require.Equal(t, []byte{0, 8}, patches[0].New)
	require.GreaterOrEqual(t, patches[1].Off, int64((2048+11)*512))
	made := bytes.Clone(r.Raw)
	for _, p := range patches {
		at := p.Off - 2048*512
		require.Equal(t, p.Old, made[at:at+int64(len(p.Old))])
		copy(made[at:], p.New)
	}
	want, err := r.Encode(r.Raw, 2048*512)
	require.NoError(t, err)
	require.Equal(t, want, made)

	f := tableforge.NewMBR(4096, tableforge.Slot{Type: 7, Start: 63, Sectors: 3000})
	fsforge.PutNTFS(f, 63, 3000)
	patches, err = boottest.Read(t, f).Refs[0].Patches((2048-63)*512, 2048*512)
	require.NoError(t, err)
	require.Equal(t, []disk.Patch{{
		Off: 2048*512 + 0x1c, Old: []byte{63, 0, 0, 0}, New: []byte{0, 8, 0, 0},
		Reason: "ntfs hidden sectors of partition 1: 32256 -> 1048576",
	}}, patches)
	failing := boot.Ref{Encode: func([]byte, int64) ([]byte, error) { return nil, os.ErrInvalid }}
	_, err = failing.Patches(512, 512)
	require.ErrorIs(t, err, os.ErrInvalid)
}

// A volume with sectors of 4096 bytes counts in these, and its regions are as much longer.
func TestPartitionOffsetOfExFATInLargeSectors(t *testing.T) {
	const sector, at = 4096, 64 * 512
	f := tableforge.NewMBR(8192, tableforge.Slot{Type: 7, Start: 64, Sectors: 6000})
	fsforge.PutExFAT(f, 64, 6000)
	v := f[at:]
	boot := bytes.Clone(v[:512])
	clear(v[:64*512])
	seal := func(region forge.Bytes) { // exFAT specification, 3.4
		var sum uint32
		for i, b := range region[:11*sector] {
			if i != 106 && i != 107 && i != 112 {
				sum = sum<<31 | sum>>1
				sum += uint32(b)
			}
		}
		for i := int64(0); i < sector; i += 4 {
			region.U32(11*sector+i, sum)
		}
	}
	for _, first := range []int64{0, 12} {
		b := v[first*sector:]
		b.Put(0, boot)
		b.U64(fsforge.ExFATPartitionOffset, at/sector)
		b.U64(fsforge.ExFATVolumeLength, 750)
		b.U32(fsforge.ExFATFATOffset, 24)
		b.U32(fsforge.ExFATFATLength, 1)
		b.U32(fsforge.ExFATHeapOffset, 25)
		b.U32(fsforge.ExFATClusters, 725)
		b.U8(fsforge.ExFATSectorShift, 12)
		b.U8(fsforge.ExFATClusterShift, 0)
		seal(b)
	}
	got := boottest.Read(t, f).Refs
	require.Len(t, got, 2)
	for i, r := range got {
		require.Equal(t, []disk.Range{{Off: at + int64(i)*12*sector, Len: 12 * sector}}, r.At)
		require.Equal(t, int64(at), r.Points)
		b, err := r.Encode(r.Raw, 1<<20)
		require.NoError(t, err)
		want := bytes.Clone(r.Raw)
		forge.Bytes(want).U64(fsforge.ExFATPartitionOffset, 256)
		seal(want)
		require.Equal(t, want, b)
	}
}
