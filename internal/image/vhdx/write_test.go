package vhdx_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vhdxforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/image/vhdx"
)

var vhdxKinds = []store.CreateOptions{
	{Format: "vhdx"},
	{Format: "vhdx", Subformat: "dynamic"},
	{Format: "vhdx", Subformat: "fixed"},
}

// What is written reads back, before and after it has its name, and qemu-img reads the same and finds nothing wrong.
func TestWrittenVHDXReadsBack(t *testing.T) {
	for _, size := range []int{37*mib + 5*sector, 32 * mib, sector} {
		data := imagetest.Noise(uint64(size), size)
		if size > 2*mib {
			clear(data[mib : 9*mib+777])
		}
		src := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "src.img", data))
		for _, o := range vhdxKinds {
			t.Run(fmt.Sprintf("%s of %d bytes", o.Subformat, size), func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "disk.vhdx")
				out := imagetest.Fill(t, src, path, o, 4)
				img := imagetest.ReadsBack(t, out, path, data)
				require.Equal(t, map[bool]string{true: "fixed", false: "dynamic"}[o.Subformat == "fixed"],
					img.Subformat)
				imagetest.NoDamage(t, img)
				require.Empty(t, img.Issues)
				disktest.Run(t, "qemu-img", "compare", "-f", "raw", "-F", "vhdx", src.Path, path)
				disktest.Run(t, "qemu-img", "check", "-f", "vhdx", path)
				require.Contains(t, disktest.Run(t, "qemu-img", "info", "--output=json", path),
					fmt.Sprintf(`"virtual-size": %d`, size))
			})
		}
	}
}

// A copy keeps what a guest sees of the disk and how its space is divided; the GUIDs of the file are new.
func TestVHDXCopiesKeepTheirMetadata(t *testing.T) {
	for _, l := range []vhdxforge.Layout{
		{Size: 9*mib + 4096, Logical: 4096},
		{Size: 9*mib + sector, Block: 2 * mib},
		{Size: 9*mib + sector, Block: 8 * mib, Fixed: true},
	} {
		data := imagetest.Noise(uint64(l.Size), int(l.Size))
		clear(data[2*mib : 4*mib])
		v := vhdxforge.New(l).Fill(data)
		v.U32(v.Item(vhdxforge.Physical), 512)
		src := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "src.vhdx", v.Bytes))
		path := filepath.Join(t.TempDir(), "copy.vhdx")
		imagetest.Copy(t, src, path, store.CreateOptions{})
		img := imagetest.Open(t, path)
		disktest.CheckBytes(t, img.Disk, data)
		imagetest.NoDamage(t, img)
		if l.Logical != 4096 { // which qemu-img 7.2 does not open
			disktest.Run(t, "qemu-img", "check", "-f", "vhdx", path)
			disktest.Run(t, "qemu-img", "compare", "-f", "vhdx", "-F", "vhdx", src.Path, path)
		}
		require.Equal(t, src.Subformat, img.Subformat)
		require.Equal(t, src.Disk.SectorSize(), img.Disk.SectorSize())
		require.Equal(t, src.Details[:4], img.Details[:4],
			"creator, block size, physical sector size and virtual disk id")
		require.Equal(t, "forged", img.Details[0].Value)
		require.Equal(t, vhdxforge.DiskIDGUID, img.Details[3].Value)
		require.NotEqual(t, src.ContentID, img.ContentID)
		other := filepath.Join(t.TempDir(), "copy.vhdx")
		imagetest.Copy(t, src, other, store.CreateOptions{Seed: []byte("another job")})
		require.NotEqual(t, img.ContentID, imagetest.Open(t, other).ContentID)
	}
}

// PRODUCT, promise 5: the same job gives the same bytes, on any number of processors.
func TestVHDXIsDeterministic(t *testing.T) {
	data := imagetest.Noise(9, 34*mib)
	src := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "src.img", data))
	imagetest.SameBytes(t, src, "copy.vhdx", vhdxKinds[1:]...)
}

// Blocks lie in guest order, each on a whole MiB: what is aligned on the disk is aligned in the file.
func TestVHDXZerosTakeNoSpace(t *testing.T) {
	data := make([]byte, 70*mib)
	copy(data[65*mib:], "late")
	copy(data[mib:], "early")
	src := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "src.img", data))
	for _, o := range vhdxKinds[1:] {
		path := filepath.Join(t.TempDir(), "copy.vhdx")
		imagetest.Copy(t, src, path, o)
		img := imagetest.Open(t, path)
		require.Less(t, img.Files()[0].Allocated, int64(512*kib), o.Subformat)
		if o.Subformat == "dynamic" {
			require.Equal(t, int64(4*mib+2*32*mib), img.Files()[0].Size)
		}
		file := disktest.ReadFile(t, path)
		early, late := strings.Index(string(file), "early"), strings.Index(string(file), "late")
		require.Zero(t, early%mib)
		require.Zero(t, late%mib)
		require.Less(t, early, late)
	}
}

// A disk of 64 TiB with blocks of 1 MiB, the smallest, has tables of 512 MiB. They are never in memory as a whole,
// holes in them take no time, and only the last block is stored.
func TestVHDXOf64TiB(t *testing.T) {
	const size, blocks = 64 << 40, 64 << 20
	v := vhdxforge.New(vhdxforge.Layout{Size: mib})
	v.U64(v.Item(vhdxforge.DiskSize), size)
	table := int64(8 * (blocks + blocks/4096))
	end := v.BAT + (table+mib-1)/mib*mib
	v.SetRegions(vhdxforge.Region{
		GUID: vhdxforge.RegionBAT, Off: uint64(v.BAT), Len: uint32(end - v.BAT),
		Required: 1,
	},
		vhdxforge.Region{GUID: vhdxforge.RegionMetadata, Off: uint64(v.Metadata), Len: mib, Required: 1})
	v.Seal()
	path := filepath.Join(t.TempDir(), "giant.vhdx")
	imagetest.SparseFile(t, path, v.Bytes)
	require.NoError(t, os.Truncate(path, end+mib))
	disktest.WriteAt(t, path, end, []byte("the last of 67108864 blocks"))
	disktest.WriteAt(t, path, v.Entry(blocks-1), binary.LittleEndian.AppendUint64(nil, present(end)))

	spent := disktest.Spent()
	src := imagetest.Open(t, path)
	imagetest.NoDamage(t, src)
	other := filepath.Join(t.TempDir(), "copy.vhdx")
	imagetest.Copy(t, src, other, store.CreateOptions{})
	require.Less(t, spent(), 5*time.Second)
	img := imagetest.Open(t, other)
	imagetest.NoDamage(t, img)
	requireSameData(t, src.Disk, img.Disk)
	require.Less(t, img.Files()[0].Allocated, int64(512*kib))
}

// A BAT of several pages has the blocks of each.
func TestVHDXOfManyBlocks(t *testing.T) {
	t.Parallel()
	const size = 40 << 30
	raw := disktest.Blank(t, "src.img", size)
	places := []int64{0, 9 << 30, 20 << 30, size - mib}
	for _, at := range places {
		disktest.WriteAt(t, raw, at, []byte(fmt.Sprint("data at ", at)))
	}
	src := imagetest.Open(t, raw)
	for _, o := range vhdxKinds {
		path := filepath.Join(t.TempDir(), "disk.vhdx")
		require.NoError(t, imagetest.Fill(t, src, path, o, 1).Publish())
		img := imagetest.Open(t, path)
		for _, at := range places {
			b := make([]byte, len(fmt.Sprint("data at ", at)))
			_, err := img.Disk.ReadAt(b, at)
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint("data at ", at), string(b), o.Subformat)
		}
	}
}

// A call that fails ends the writing of a disk with several pages of the BAT.
func TestCallsOfAVHDXThatFail(t *testing.T) {
	t.Parallel()
	for _, sub := range vhdx.Format.Subformats {
		imagetest.EveryCallFails(t, vhdx.Format, sub, 40<<30, 5<<30, 1)
	}
}
