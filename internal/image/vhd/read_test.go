package vhd_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
)

const (
	sector = 512
	kib    = 1 << 10
	mib    = 1 << 20
)

func TestFixedVHD(t *testing.T) {
	for _, size := range []int{sector, 64 * kib, 3*mib + 5*sector} {
		data := imagetest.Noise(uint64(size), size)
		v := vhdforge.NewFixed(data)
		for name, file := range map[string][]byte{
			"512 bytes":                 v.Bytes,
			"511 bytes, as before 2004": v.Bytes[:len(v.Bytes)-1],
		} {
			t.Run(fmt.Sprintf("%d bytes, footer of %s", size, name), func(t *testing.T) {
				img := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "disk.vhd", file))
				require.Equal(t, "vhd", img.Format)
				require.Equal(t, "fixed", img.Subformat)
				require.Empty(t, imagetest.Codes(img.Issues, ondisk.Refuse))
				disktest.CheckBytes(t, img.Disk, data)
			})
		}
	}
}

// A sector whose bit is clear reads as zero, whatever stands in its place.
func TestDynamicVHD(t *testing.T) {
	for name, stored := range map[string]func(s int64) bool{
		"full bitmaps":           nil,
		"every other sector":     func(s int64) bool { return s%2 == 1 },
		"runs of 7 out of 10":    func(s int64) bool { return s%10 < 7 },
		"runs that cross words":  func(s int64) bool { return s/100%2 == 0 },
		"one sector in the disk": func(s int64) bool { return s == 4097 },
		"none":                   func(int64) bool { return false },
	} {
		for _, block := range []int64{4 * kib, 64 * kib, 2 * mib} {
			t.Run(fmt.Sprintf("%s, blocks of %d KiB", name, block/kib), func(t *testing.T) {
				data := imagetest.Noise(uint64(block), 5*mib+3*sector)
				clear(data[2*mib : 4*mib+100])
				l := vhdforge.Layout{Block: block, Stored: stored, Backwards: block == 64*kib, Cut: block == 2*mib}
				v := vhdforge.New(data, l)
				img := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "disk.vhd", v.Bytes))
				require.Equal(t, "dynamic", img.Subformat)
				require.False(t, img.Child)
				disktest.CheckBytes(t, img.Disk, masked(data, stored))
				issues, err := img.Check()
				require.NoError(t, err)
				if stored == nil || name == "none" {
					require.Empty(t, issues)
					return
				}
				require.Equal(t, []string{"vhd-hidden-data"}, imagetest.Codes(issues, ondisk.Note))
			})
		}
	}
}

// Data without a bit in the bitmap are zeros by the specification, and counted; qemu-img shows them.
func TestHiddenVHDData(t *testing.T) {
	const kept, gone = 5000, 7 // sectors
	for name, tc := range map[string]struct {
		blocks int64
		stored func(s int64) bool
		zero   bool // the file holds zeros there
		says   string
	}{
		"three runs": {
			2, func(s int64) bool { return s%kept >= gone }, false,
			fmt.Sprintf("%d sectors of the file hold data, but their bits in the block bitmaps are "+
				"clear, the first at byte 0 of", 2*gone),
		},
		"a tail": {
			2, func(s int64) bool { return s < 4096-gone || s >= 4096 }, false,
			fmt.Sprintf("%d sectors of the file hold data, but their bits in the block bitmaps are "+
				"clear, the first at byte %d of", gone, (4096-gone)*sector),
		},
		"zeros": {2, func(s int64) bool { return s%kept >= gone }, true, ""},
		"too many": {10, func(s int64) bool { return s%4096 == 0 }, false, fmt.Sprintf("at least %d sectors",
			16*mib/sector)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := imagetest.Noise(7, int(tc.blocks)*2*mib)
			v := vhdforge.New(data, vhdforge.Layout{Stored: tc.stored})
			shown := bytes.Clone(data)
			for s := range int64(len(data)) / sector {
				if !tc.stored(s) {
					at := v.Blocks[s/4096] + sector + s%4096*sector
					if tc.zero {
						clear(v.Bytes[at : at+sector])
					}
					copy(shown[s*sector:], v.Bytes[at:at+sector])
				}
			}
			path := imagetest.Write(t, t.TempDir(), "disk.vhd", v.Bytes)
			img := imagetest.Open(t, path)
			disktest.CheckBytes(t, img.Disk, masked(data, tc.stored))
			issues, err := img.Check()
			require.NoError(t, err)
			raw := filepath.Join(t.TempDir(), "qemu.raw")
			disktest.Run(t, "qemu-img", "convert", "-f", "vpc", "-O", "raw", path, raw)
			byQemu := disktest.ReadFile(t, raw)
			require.True(t, bytes.HasPrefix(shown, byQemu), "qemu-img reads no bitmap, and sizes by the geometry")
			if tc.says == "" {
				require.Empty(t, issues)
				return
			}
			require.Equal(t, []string{"vhd-hidden-data"}, imagetest.Codes(issues, ondisk.Refuse))
			require.Contains(t, issues[0].Text, tc.says)
		})
	}
}

// masked is a disk of which only some sectors were written.
func masked(data []byte, stored func(int64) bool) []byte {
	out := bytes.Clone(data)
	for s := range len(out) / sector {
		if stored != nil && !stored(int64(s)) {
			clear(out[s*sector : (s+1)*sector])
		}
	}
	return out
}

// A full bitmap is one run, and blocks that are not there are passed over together.
func TestVHDRunsAreLong(t *testing.T) {
	data := make([]byte, 40*mib)
	copy(data[10*mib:12*mib], bytes.Repeat([]byte{1}, 2*mib))
	img := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "disk.vhd", vhdforge.New(data, vhdforge.Layout{}).Bytes))
	for _, want := range []struct {
		off, n int64
		zero   bool
	}{{0, 10 * mib, true}, {10 * mib, 2 * mib, false}, {12*mib + 512, 28*mib - 512, true}} {
		e, err := img.Disk.Extent(want.off, 40*mib)
		require.NoError(t, err)
		require.Equal(t, want.n, e.Len, "at %d", want.off)
		require.Equal(t, want.zero, e.Zero)
	}
}

// qemu's own writer with every option that it has.
func TestVHDByQemuImg(t *testing.T) {
	for _, size := range []int{5*mib + 3*sector, 64 * kib, 300 * kib} {
		for _, o := range []string{
			"subformat=dynamic", "subformat=fixed", "subformat=dynamic,force_size=on",
			"subformat=fixed,force_size=on",
		} {
			t.Run(fmt.Sprintf("%s of %d bytes", o, size), func(t *testing.T) {
				dir := t.TempDir()
				data := imagetest.Noise(uint64(size), size)
				raw, path := imagetest.Write(t, dir, "disk.img", data), filepath.Join(dir, "disk.vhd")
				disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "vpc", "-o", o, raw, path)
				img := imagetest.Open(t, path)
				require.Equal(t, strings.Contains(o, "fixed"), img.Subformat == "fixed")
				require.Empty(t, imagetest.Codes(img.Issues, ondisk.Warn))
				require.Equal(t, virtualSize(t, path), img.Disk.Size(),
					"without force_size qemu-img rounds up to whole cylinders")
				disktest.CheckBytes(t, img.Disk, append(data, make([]byte, int(img.Disk.Size())-size)...))
				if img.Check != nil {
					imagetest.NoDamage(t, img)
				}
			})
		}
	}
}

// virtualSize is what qemu-img says.
func virtualSize(t *testing.T, path string) int64 {
	t.Helper()
	_, after, ok := strings.Cut(disktest.Output(t, "qemu-img", "info", "-f", "vpc", path), "(")
	require.True(t, ok)
	var n int64
	_, err := fmt.Sscanf(after, "%d bytes", &n)
	require.NoError(t, err)
	return n
}

// Sizes and sums are those of the corpus's README: from qemu-img, and for the second the size field that Hyper-V wrote.
func TestVHDCorpus(t *testing.T) {
	img := imagetest.Open(t, disktest.Corpus(t, "dfvfs/ext2.vhd.xz"))
	require.Equal(t, "dynamic", img.Subformat)
	require.Equal(t, int64(4212736), img.Disk.Size())
	require.Equal(t, "870be7ae16c1fa8faab05c6eb9205dc9a7ae35c5f552c5cf8a267c0bc6a5cb99", imagetest.Hash(t, img))
	require.Equal(t, "b61f53caa786452890e255ba791a1c4c", img.ContentID)
	require.Empty(t, img.Issues)
	imagetest.NoDamage(t, img)

	img = imagetest.Open(t, disktest.Corpus(t, "qemu/hyperv2012r2-dynamic.vhd.bz2"))
	require.Equal(t, int64(136365211648), img.Disk.Size(), "the size field, not the geometry")
	require.Equal(t, []string{"vhd-geometry"}, imagetest.Codes(img.Issues, ondisk.Note))
	require.Empty(t, imagetest.Codes(img.Issues, ondisk.Warn), "the geometry is rounded as the specification has it")
	e, err := img.Disk.Extent(0, img.Disk.Size())
	require.NoError(t, err)
	require.True(t, e.Zero)
	imagetest.NoDamage(t, img)

	_, err = image.Open(disktest.Corpus(t, "dfvfs/fat-differential.vhd.xz"), image.Options{})
	imagetest.RefusesReference(t, err,
		`the parent of "fat-differential.vhd" is missing: there is no "fat-parent.vhd" in its folder`)
}
