package firmware_test

import (
	"bytes"
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
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// exfatDisk is a disk with an exFAT at LBA 63, and what its Encode must make of it.
func exfatDisk(lba int64) forge.Bytes {
	f := tableforge.NewMBR(8192, tableforge.Slot{Type: 7, Start: 63, Sectors: 6000})
	fsforge.PutExFAT(f, 63, 6000)
	v := f[63*512:]
	for _, first := range []int64{0, 12} {
		v.U64(first*512+fsforge.ExFATPartitionOffset, uint64(lba))
		fsforge.SealExFAT(v, first)
	}
	return f
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

// dump.exfat and fsck.exfat accept what Encode makes of a volume that mkfs.exfat made.
func TestEncodedExFATIsSound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "volume")
	require.NoError(t, os.WriteFile(path, make([]byte, 16<<20), 0o644))
	disktest.Run(t, "mkfs.exfat", path)
	volume, err := os.ReadFile(path)
	require.NoError(t, err)
	f := tableforge.NewMBR(40000, tableforge.Slot{Type: 7, Start: 63, Sectors: 32768})
	f.Put(63*512, volume)
	require.Empty(t, boottest.Read(t, f).Refs, "mkfs.exfat leaves the field 0, which says that it is not known")
	v := f[63*512:]
	for _, first := range []int64{0, 12} {
		v.U64(first*512+fsforge.ExFATPartitionOffset, 63)
		fsforge.SealExFAT(v, first)
	}
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

// What cannot be relied on stays as it is.
func TestPartitionOffsetOfExFATThatIsLeft(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(v forge.Bytes)
		want   int
	}{
		"0 in both, the place is not known": {func(v forge.Bytes) {
			for _, first := range []int64{0, 12} {
				v.U64(first*512+fsforge.ExFATPartitionOffset, 0)
				fsforge.SealExFAT(v, first)
			}
		}, 0},
		"wrong checksum of the backup": {func(v forge.Bytes) { v.U32(23*512, 7) }, 1},
		"wrong checksum of the first":  {func(v forge.Bytes) { v.U32(11*512, 7) }, 0},
		"2^64-1 in both": {func(v forge.Bytes) {
			for _, first := range []int64{0, 12} {
				v.U64(first*512+fsforge.ExFATPartitionOffset, 1<<64-1)
				fsforge.SealExFAT(v, first)
			}
		}, 2},
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

// A region with a checksum is listed by the bytes that change; a field as a whole.
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
