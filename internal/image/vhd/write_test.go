package vhd_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/image/vhd"
	"github.com/trueup/trueup/internal/ondisk"
)

// sameForOthers compares a VHD with a raw disk by other programs.
func sameForOthers(t *testing.T, raw, path string, size int64, kind string) {
	t.Helper()
	require.Equal(t, size, virtualSize(t, path))
	disktest.Run(t, "qemu-img", "compare", "-f", "raw", "-F", "vpc", raw, path)
	info := disktest.Output(t, "vhdiinfo", path)
	require.Regexp(t, fmt.Sprintf(`Media size.*\b%d bytes`, size), info)
	require.Regexp(t, `Disk type\s*: `+kind, info)
}

func TestWrittenVHDsReadBack(t *testing.T) {
	for _, size := range []int{3*mib + 5*sector, 9 * mib, 128 * kib, sector} {
		data := imagetest.Noise(uint64(size), size)
		if size > 8*mib {
			clear(data[2*mib : 6*mib+777]) // a block that is not stored
		}
		src := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "src.img", data))
		for sub, kind := range map[string]string{"dynamic": "Dynamic", "fixed": "Fixed"} {
			t.Run(fmt.Sprintf("%s of %d bytes", sub, size), func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "disk.vhd")
				out := imagetest.Fill(t, src, path, store.CreateOptions{Format: "vhd", Subformat: sub}, 4)
				img := imagetest.ReadsBack(t, out, path, data)
				require.Equal(t, sub, img.Subformat)
				require.Empty(t, imagetest.Codes(img.Issues, ondisk.Warn))
				if sub == "dynamic" {
					imagetest.NoDamage(t, img)
				} else {
					require.Equal(t, int64(size+512), img.Files()[0].Size)
				}
				onPages(t, img)
				sameForOthers(t, src.Path, path, int64(size), kind)
			})
		}
	}
}

// onPages requires that every stored MiB of the disk is on a 4 KiB boundary of the file.
func onPages(t *testing.T, img *image.Image) {
	t.Helper()
	for off := int64(0); off < img.Disk.Size(); off += mib {
		run, err := img.Disk.(disk.Mapped).Run(off)
		require.NoError(t, err)
		require.Zero(t, run.Off%4096, "offset %d of the disk lies at %d of the file", off, run.Off)
	}
}

// A copy keeps the block size, the creator of the disk and the time; its identity is its own.
func TestVHDCopiesKeepTheirSource(t *testing.T) {
	for _, block := range []int64{4 * kib, 64 * kib, 512 * kib, 4 * mib} {
		data := imagetest.Noise(uint64(block), 68*100*sector)
		v := vhdforge.New(data, vhdforge.Layout{Block: block, ID: 7})
		src := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "src.vhd", v.Bytes))
		path := filepath.Join(t.TempDir(), "copy.vhd")
		imagetest.Copy(t, src, path, store.CreateOptions{Seed: []byte("job")})
		img := imagetest.Open(t, path)
		disktest.CheckBytes(t, img.Disk, data)
		imagetest.NoDamage(t, img)
		onPages(t, img)
		b := disktest.ReadFile(t, path)
		require.Equal(t, uint32(block), binary.BigEndian.Uint32(b[512+vhdforge.BlockSize:]))
		require.Equal(t, v.Bytes[vhdforge.TimeStamp:40], forge.Bytes(b[vhdforge.TimeStamp:40]),
			"time, creator, version, host")
		require.Equal(t, b[:512], b[len(b)-512:])
		require.NotEqual(t, src.ContentID, img.ContentID)
		disktest.Run(t, "qemu-img", "compare", "-f", "vpc", "-F", "vpc", src.Path, path)
	}
}

// QEMU takes the size of a disk by "vpc " from the geometry. If that covers less, the creator has to change.
func TestVHDCreatorGivesWayToTheSize(t *testing.T) {
	for _, tc := range []struct {
		creator string
		size    int
		want    string
	}{
		{"vpc ", 68 * 10 * sector, "vpc "},
		{"vpc ", 68*10*sector + sector, "win "},
		{"vbox", 68*10*sector + sector, "win "},
		{"d2v ", 68*10*sector + sector, "d2v "},
		{"tap\x00", 68*10*sector + sector, "tap\x00"},
		{"win ", 68*10*sector + sector, "win "},
		{"qem2", 68*10*sector + sector, "qem2"},
		{"CTXS", 68*10*sector + sector, "CTXS"},
		{"wa\x00\x00", 68*10*sector + sector, "win "},
	} {
		data := imagetest.Noise(1, tc.size)
		v := vhdforge.NewFixed(data)
		v.Foot(func(off int64) { v.Text(off+vhdforge.Creator, tc.creator) })
		src := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "src.vhd", v.Bytes))
		for _, sub := range []string{"dynamic", "fixed"} {
			path := filepath.Join(t.TempDir(), "copy.vhd")
			imagetest.Copy(t, src, path, store.CreateOptions{Subformat: sub})
			b := disktest.ReadFile(t, path)
			require.Equal(t, tc.want, string(b[len(b)-512+vhdforge.Creator:][:4]), "%q", tc.creator)
			require.Equal(t, int64(tc.size), virtualSize(t, path))
		}
	}
}

func TestVHDIsDeterministic(t *testing.T) {
	data := imagetest.Noise(9, 6*mib)
	src := imagetest.Open(t,
		imagetest.Write(t, t.TempDir(), "src.vhd", vhdforge.New(data, vhdforge.Layout{Block: 64 * kib}).Bytes))
	seed := []byte("job")
	imagetest.SameBytes(t, src, "copy.vhd", store.CreateOptions{Subformat: "dynamic", Seed: seed},
		store.CreateOptions{Subformat: "fixed", Seed: seed})
}

// sparseRaw is an empty disk of any size.
func sparseRaw(t *testing.T, size int64) *image.Image {
	t.Helper()
	path := disktest.Blank(t, "disk.img", size)
	disktest.WriteAt(t, path, size-sector, []byte("the last sector"))
	return imagetest.Open(t, path)
}

// 2040 GiB is the largest VHD, for Hyper-V and for QEMU.
func TestLargestVHD(t *testing.T) {
	const most = 2040 << 30
	src := sparseRaw(t, most)
	path := filepath.Join(t.TempDir(), "disk.vhd")
	imagetest.Copy(t, src, path, store.CreateOptions{Format: "vhd"})
	img := imagetest.Open(t, path)
	require.Equal(t, int64(most), img.Disk.Size())
	imagetest.NoDamage(t, img)
	require.Less(t, img.Files()[0].Size, int64(8*mib))
	b := make([]byte, 15)
	_, err := img.Disk.ReadAt(b, most-sector)
	require.NoError(t, err)
	require.Equal(t, "the last sector", string(b))
	sameForOthers(t, src.Path, path, most, "Dynamic")
}

// A table of 64 TiB: 2^25 entries in 128 MiB of file, none of them a block.
func TestHugeSparseVHD(t *testing.T) {
	const size = 64 << 40
	v := vhdforge.New(make([]byte, sector), vhdforge.Layout{})
	const entries = size / (2 * mib)
	v.Head(func(off int64) { v.BE32(off+vhdforge.MaxEntries, entries) })
	v.Foot(func(off int64) { v.BE64(off+vhdforge.CurrentSize, size) })
	table := bytes.Repeat([]byte{0xff}, 4*entries)
	img := imagetest.Open(t,
		imagetest.Write(t, t.TempDir(), "disk.vhd", bytes.Join([][]byte{v.Bytes[:v.BAT], table, v.Bytes[v.Footer:]},
			nil)))
	require.Equal(t, int64(size), img.Disk.Size())
	imagetest.NoDamage(t, img)
	calls := 0
	for off := int64(0); off < size; calls++ {
		e, err := img.Disk.Extent(off, math.MaxInt64)
		require.NoError(t, err)
		require.True(t, e.Zero)
		off = e.End()
	}
	require.Less(t, calls, 2000)
}

// Names in the footer of a disk that had another format.
func TestNewVHDSaysWhoMadeIt(t *testing.T) {
	src := sparseRaw(t, 10*mib)
	path := filepath.Join(t.TempDir(), "disk.vhd")
	imagetest.Copy(t, src, path, store.CreateOptions{Format: "vhd", Seed: []byte("a")})
	img := imagetest.Open(t, path)
	other := filepath.Join(t.TempDir(), "other.vhd")
	imagetest.Copy(t, src, other, store.CreateOptions{Format: "vhd", Seed: []byte("b")})
	require.NotEqual(t, img.ContentID, imagetest.Open(t, other).ContentID)
	require.Contains(t, fmt.Sprint(img.Details), `{creator "win " 10.0}`)
	require.Contains(t, disktest.Output(t, "vhdiinfo", path), strings.ToLower(img.ContentID[:8]))
}

// A call that fails ends the writing of a disk with several pieces of the table. All of it is flushed before the
// footers, and these at last.
func TestCallsThatFail(t *testing.T) {
	const size, step = 40 << 30, 5 << 30
	require.Equal(t, []string{"sync", fmt.Sprint("write at ", int64(size)), "sync"},
		imagetest.EveryCallFails(t, vhd.Format, "fixed", size, step, 3))
	calls := imagetest.EveryCallFails(t, vhd.Format, "dynamic", size, step, 4)
	require.Equal(t, []string{"sync", "write at 0", "sync"}, append(calls[:1:1], calls[2:]...), calls)
}
