package vhd_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/disktest/hostile"
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

// A sector whose bit is clear reads as zero, whatever its bytes are.
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

// A full bitmap is one run, and blocks that are missing are skipped together.
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

// virtualSize returns the size from qemu-img.
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

func TestHostileVHD(t *testing.T) { hostile.Check(t, hostile.VHD(), imagetest.Issues) }

// A disk that is shown has all of its bytes.
func TestHostileVHDsThatAreKept(t *testing.T) {
	seen := 0
	for _, r := range hostile.VHD() {
		if r.End != hostile.Kept {
			continue
		}
		seen++
		img := imagetest.Open(t, r.Write(t, t.TempDir()))
		code := map[bool]string{true: "vhd-footers", false: "vhd-saved-state"}[strings.HasPrefix(r.Name, "T28")]
		require.Equal(t, []string{code}, imagetest.Codes(img.Issues, ondisk.Refuse), r.Name)
		disktest.CheckBytes(t, img.Disk, hostile.Disk())
	}
	require.Equal(t, 7, seen)
}

// A read finds an entry outside the data. Only the walk finds blocks that share a place.
func TestReadsOfHostileVHDTables(t *testing.T) {
	seen := 0
	for _, r := range hostile.VHD() {
		if r.End != hostile.Broken {
			continue
		}
		seen++
		img := imagetest.Open(t, r.Write(t, t.TempDir()))
		_, err := img.Disk.ReadAt(make([]byte, 10), 3*mib)
		if slices.Contains(r.Says, "1 blocks at a place in use") {
			require.NoError(t, err, r.Name)
			continue
		}
		require.ErrorIs(t, err, ondisk.ErrFormat, r.Name)
		require.ErrorContains(t, err, "vhd block allocation table at 0x604", r.Name)
	}
	require.Equal(t, 9, seen)
}

func TestVHDChain(t *testing.T) {
	for _, block := range []int64{4 * kib, 2 * mib} {
		dir := t.TempDir()
		var want []byte
		size := 3*mib + 5*sector
		base, mid, top := imagetest.Noise(21, size), imagetest.Noise(22, size), imagetest.Noise(23, size)
		inMid := func(s int64) bool { return s%7 < 3 && s/1000%2 == 0 }
		inTop := func(s int64) bool { return s%5 == 0 && s/500%3 == 0 }
		imagetest.Write(t, dir, "base.vhd", vhdforge.New(base, vhdforge.Layout{Block: block, ID: 0xb0}).Bytes)
		imagetest.Write(t, dir, "mid.avhd",
			vhdforge.New(mid, vhdforge.Layout{Block: block, ID: 0xb1, Stored: inMid, Parent: &vhdforge.Parent{
				ID: 0xb0, Relative: `.\base.vhd`, Absolute: `C:\old\wrong.vhd`, Name: "wrong.vhd",
			}}).Bytes)
		imagetest.Write(t, dir, "top.avhd",
			vhdforge.New(top, vhdforge.Layout{Block: block, ID: 0xb2, Stored: inTop, Parent: &vhdforge.Parent{
				ID: 0xb1, Absolute: `D:\machines\mid.avhd`,
			}}).Bytes)
		for s := range int64(size / sector) {
			from := base
			if inTop(s) {
				from = top
			} else if inMid(s) {
				from = mid
			}
			want = append(want, from[s*sector:(s+1)*sector]...)
		}
		img := imagetest.Open(t, filepath.Join(dir, "top.avhd"))
		require.Equal(t, "differencing", img.Subformat)
		require.True(t, img.Child)
		require.Equal(t, strings.Repeat("b2", 16), img.ContentID)
		require.Equal(t, []image.Link{
			{Name: "mid.avhd", Format: "vhd", Subformat: "differencing", ContentID: strings.Repeat("b1", 16)},
			{Name: "base.vhd", Format: "vhd", Subformat: "dynamic", ContentID: strings.Repeat("b0", 16)},
		}, img.Chain)
		disktest.CheckBytes(t, img.Disk, want)
		imagetest.NoDamage(t, img)
		children, err := imagetest.Open(t, filepath.Join(dir, "base.vhd")).Children()
		require.NoError(t, err)
		require.Len(t, children, 1)
		require.Contains(t, children[0].Text, "mid.avhd")
		info := disktest.Output(t, "vhdiinfo", filepath.Join(dir, "top.avhd"))
		for _, says := range []string{
			`Disk type\s*: Differential`, fmt.Sprintf(`\b%d bytes\)`, len(want)),
			`Parent identifier\s*: b1b1b1b1-b1b1-`,
		} {
			require.Regexp(t, says, info)
		}
	}
}

// A child written by Windows 10; its bitmap, read by hand, has 18 sectors of the first block, and every sector with
// data is among them. The parent is not in the corpus, so a disk with a pattern replaces it.
func TestDifferencingVHDByWindows(t *testing.T) {
	path := disktest.Corpus(t, "dfvfs/fat-differential.vhd.xz")
	file := disktest.ReadFile(t, path)
	want := bytes.Repeat([]byte("the parent shows"), 4*mib/16)
	base := vhdforge.NewFixed(want)
	base.Foot(func(off int64) {
		base.Put(off+vhdforge.UniqueID, []byte("\x5f\xa2\x1a\x55\xf3\x94\xaa\x4d\x99\x58\x19\x51\xa6\x7d\x55\x40"))
	})
	imagetest.Write(t, filepath.Dir(path), "fat-parent.vhd", base.Bytes)
	const payload = 0x9f*sector + sector
	for _, s := range []int{134, 143, 152, 153, 154, 155, 156, 157, 158, 159, 184, 185, 188, 190, 191, 192, 194, 196} {
		copy(want[s*sector:(s+1)*sector], file[payload+s*sector:])
	}
	img := imagetest.Open(t, path)
	disktest.CheckBytes(t, img.Disk, want)
	require.Equal(t, "f84f1636cd9e9041a69edcc2380e416a", img.ContentID)
	require.Empty(t, imagetest.Codes(img.Issues, ondisk.Warn))
	imagetest.NoDamage(t, img)
}

// Faults of a parent are faults of the disk.
func TestVHDChainTellsOfItsParents(t *testing.T) {
	dir := t.TempDir()
	base := vhdforge.New(imagetest.Noise(27, 5*mib), vhdforge.Layout{ID: 0xd0})
	base.BE32(base.BAT+4, uint32(base.Blocks[0]/sector))
	base.Foot(func(off int64) { base.U8(off+vhdforge.SavedState, 1) })
	imagetest.Write(t, dir, "base.vhd", base.Bytes)
	for i, name := range []string{"mid.vhd", "top.vhd"} {
		id := byte(0xd0 + i)
		imagetest.Write(t, dir, name,
			vhdforge.New(imagetest.Noise(28, 5*mib), vhdforge.Layout{ID: id + 1, Parent: &vhdforge.Parent{
				ID: id, Name: []string{"base.vhd", "mid.vhd"}[i],
			}}).Bytes)
	}
	img := imagetest.Open(t, filepath.Join(dir, "top.vhd"))
	require.Equal(t, []string{"vhd-saved-state"}, imagetest.Codes(img.Issues, ondisk.Refuse))
	issues, err := img.Check()
	require.NoError(t, err)
	require.Equal(t, []string{"vhd-tables"}, imagetest.Codes(issues, ondisk.Broken))
	require.Contains(t, issues[0].Text, "in the parent: in the parent: 1 blocks at a place in use")
}

// A child that is larger than its parent shows its own data, and is refused.
func TestVHDChildOfAShortParent(t *testing.T) {
	dir := t.TempDir()
	imagetest.Write(t, dir, "short.vhd", vhdforge.NewFixed(imagetest.Noise(26, mib/2)).Bytes)
	img := imagetest.Open(t, imagetest.Write(t, dir, "long.vhd", vhdforge.New(imagetest.Noise(24, mib),
		vhdforge.Layout{ID: 0xc2, Parent: &vhdforge.Parent{ID: 1, Name: "short.vhd"}}).Bytes))
	require.Contains(t, imagetest.Codes(img.Issues, ondisk.Refuse), "vhd-parent-size")
	disktest.CheckBytes(t, img.Disk, imagetest.Noise(24, mib))
}
