package image_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
)

// noDamage walks the tables of an image.
func noDamage(t *testing.T, img *image.Image) {
	t.Helper()
	issues, err := img.Check()
	require.NoError(t, err)
	require.Empty(t, issues)
}

// codes are the codes of issues with at least an effect.
func codes(issues []ondisk.Issue, least ondisk.Effect) []string {
	out := []string{}
	for _, i := range issues {
		if i.Effect >= least {
			out = append(out, i.Code)
		}
	}
	return out
}

func TestFixedVHD(t *testing.T) {
	for _, size := range []int{sector, 64 * kib, 3*mib + 5*sector} {
		data := noise(uint64(size), size)
		v := disktest.ForgeFixedVHD(data)
		for name, file := range map[string][]byte{"512 bytes": v.Forged, "511 bytes, as before 2004": v.Forged[:len(v.Forged)-1]} {
			t.Run(fmt.Sprintf("%d bytes, footer of %s", size, name), func(t *testing.T) {
				img := opened(t, write(t, t.TempDir(), "disk.vhd", file))
				require.Equal(t, "vhd", img.Format)
				require.Equal(t, "fixed", img.Subformat)
				require.Empty(t, codes(img.Issues, ondisk.Refuse))
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
				data := noise(uint64(block), 5*mib+3*sector)
				clear(data[2*mib : 4*mib+100])
				l := disktest.VHDLayout{Block: block, Stored: stored, Backwards: block == 64*kib, Cut: block == 2*mib}
				v := disktest.ForgeVHD(data, l)
				img := opened(t, write(t, t.TempDir(), "disk.vhd", v.Forged))
				require.Equal(t, "dynamic", img.Subformat)
				require.False(t, img.Child)
				disktest.CheckBytes(t, img.Disk, masked(data, stored))
				noDamage(t, img)
			})
		}
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
	img := opened(t, write(t, t.TempDir(), "disk.vhd", disktest.ForgeVHD(data, disktest.VHDLayout{}).Forged))
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
		for _, o := range []string{"subformat=dynamic", "subformat=fixed", "subformat=dynamic,force_size=on", "subformat=fixed,force_size=on"} {
			t.Run(fmt.Sprintf("%s of %d bytes", o, size), func(t *testing.T) {
				dir := t.TempDir()
				data := noise(uint64(size), size)
				raw, path := write(t, dir, "disk.img", data), filepath.Join(dir, "disk.vhd")
				disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "vpc", "-o", o, raw, path)
				img := opened(t, path)
				require.Equal(t, strings.Contains(o, "fixed"), img.Subformat == "fixed")
				require.Empty(t, codes(img.Issues, ondisk.Warn))
				require.Equal(t, virtualSize(t, path), img.Disk.Size(), "without force_size qemu-img rounds up to whole cylinders")
				disktest.CheckBytes(t, img.Disk, append(data, make([]byte, int(img.Disk.Size())-size)...))
				if img.Check != nil {
					noDamage(t, img)
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
	img := opened(t, disktest.Corpus(t, "dfvfs/ext2.vhd.xz"))
	require.Equal(t, "dynamic", img.Subformat)
	require.Equal(t, int64(4212736), img.Disk.Size())
	require.Equal(t, "870be7ae16c1fa8faab05c6eb9205dc9a7ae35c5f552c5cf8a267c0bc6a5cb99", hashOf(t, img))
	require.Equal(t, "b61f53caa786452890e255ba791a1c4c", img.ContentID)
	require.Empty(t, img.Issues)
	noDamage(t, img)

	img = opened(t, disktest.Corpus(t, "qemu/hyperv2012r2-dynamic.vhd.bz2"))
	require.Equal(t, int64(136365211648), img.Disk.Size(), "the size field, not the geometry")
	require.Equal(t, []string{"vhd-geometry"}, codes(img.Issues, ondisk.Note))
	require.Empty(t, codes(img.Issues, ondisk.Warn), "the geometry is rounded as the specification has it")
	e, err := img.Disk.Extent(0, img.Disk.Size())
	require.NoError(t, err)
	require.True(t, e.Zero)
	noDamage(t, img)

	_, err = image.Open(disktest.Corpus(t, "dfvfs/fat-differential.vhd.xz"), image.Options{})
	refused(t, err, `the parent of "fat-differential.vhd" is missing: there is no "fat-parent.vhd" in its folder`)
}

func hashOf(t *testing.T, img *image.Image) string {
	t.Helper()
	h := sha256.New()
	_, err := io.Copy(h, io.NewSectionReader(img.Disk, 0, img.Disk.Size()))
	require.NoError(t, err)
	return hex.EncodeToString(h.Sum(nil))
}

// refused wants a refusal of a reference, and a text.
func refused(t *testing.T, err error, text string) {
	t.Helper()
	var r *ondisk.Refusal
	require.ErrorAs(t, err, &r)
	require.Equal(t, "reference", r.Code)
	require.ErrorContains(t, err, text)
}

// vhdChain is a base, a child and its child in one folder: names, and the sectors that each has.
func vhdChain(t *testing.T, dir string, block int64) (want []byte) {
	t.Helper()
	size := 3*mib + 5*sector
	base, mid, top := noise(21, size), noise(22, size), noise(23, size)
	inMid := func(s int64) bool { return s%7 < 3 && s/1000%2 == 0 }
	inTop := func(s int64) bool { return s%5 == 0 && s/500%3 == 0 }
	write(t, dir, "base.vhd", disktest.ForgeVHD(base, disktest.VHDLayout{Block: block, ID: 0xb0}).Forged)
	write(t, dir, "mid.avhd", disktest.ForgeVHD(mid, disktest.VHDLayout{Block: block, ID: 0xb1, Stored: inMid, Parent: &disktest.VHDParent{
		ID: 0xb0, Relative: `.\base.vhd`, Absolute: `C:\old\wrong.vhd`, Name: "wrong.vhd",
	}}).Forged)
	write(t, dir, "top.avhd", disktest.ForgeVHD(top, disktest.VHDLayout{Block: block, ID: 0xb2, Stored: inTop, Parent: &disktest.VHDParent{
		ID: 0xb1, Absolute: `D:\machines\mid.avhd`,
	}}).Forged)
	for s := range int64(size / sector) {
		from := base
		if inTop(s) {
			from = top
		} else if inMid(s) {
			from = mid
		}
		want = append(want, from[s*sector:(s+1)*sector]...)
	}
	return want
}

func TestVHDChain(t *testing.T) {
	for _, block := range []int64{4 * kib, 2 * mib} {
		dir := t.TempDir()
		want := vhdChain(t, dir, block)
		img := opened(t, filepath.Join(dir, "top.avhd"))
		require.Equal(t, "differencing", img.Subformat)
		require.True(t, img.Child)
		require.Equal(t, strings.Repeat("b2", 16), img.ContentID)
		require.Equal(t, []image.Link{
			{Name: "mid.avhd", Format: "vhd", Subformat: "differencing", ContentID: strings.Repeat("b1", 16)},
			{Name: "base.vhd", Format: "vhd", Subformat: "dynamic", ContentID: strings.Repeat("b0", 16)},
		}, img.Chain)
		disktest.CheckBytes(t, img.Disk, want)
		noDamage(t, img)
		children, err := opened(t, filepath.Join(dir, "base.vhd")).Children()
		require.NoError(t, err)
		require.Len(t, children, 1)
		require.Contains(t, children[0].Text, "mid.avhd")
		info := disktest.Output(t, "vhdiinfo", filepath.Join(dir, "top.avhd"))
		for _, says := range []string{`Disk type\s*: Differential`, fmt.Sprintf(`\b%d bytes\)`, len(want)), `Parent identifier\s*: b1b1b1b1-b1b1-`} {
			require.Regexp(t, says, info)
		}
	}
}

// Windows 10 wrote this child; its bitmap, read by hand, has 18 sectors of the first block, and every sector with data is one of
// them. The parent is not in the corpus, so a disk of a pattern takes its place.
func TestDifferencingVHDByWindows(t *testing.T) {
	path := disktest.Corpus(t, "dfvfs/fat-differential.vhd.xz")
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	want := bytes.Repeat([]byte("the parent shows"), 4*mib/16)
	base := disktest.ForgeFixedVHD(want)
	base.Foot(func(off int64) {
		base.Put(off+disktest.VHDUniqueID, []byte("\x5f\xa2\x1a\x55\xf3\x94\xaa\x4d\x99\x58\x19\x51\xa6\x7d\x55\x40"))
	})
	write(t, filepath.Dir(path), "fat-parent.vhd", base.Forged)
	const payload = 0x9f*sector + sector
	for _, s := range []int{134, 143, 152, 153, 154, 155, 156, 157, 158, 159, 184, 185, 188, 190, 191, 192, 194, 196} {
		copy(want[s*sector:(s+1)*sector], file[payload+s*sector:])
	}
	img := opened(t, path)
	disktest.CheckBytes(t, img.Disk, want)
	require.Equal(t, "f84f1636cd9e9041a69edcc2380e416a", img.ContentID)
	require.Empty(t, img.Issues)
	noDamage(t, img)
}

// What is wrong with a parent is wrong with the disk.
func TestVHDChainTellsOfItsParents(t *testing.T) {
	dir := t.TempDir()
	base := disktest.ForgeVHD(noise(27, 5*mib), disktest.VHDLayout{ID: 0xd0})
	base.BE32(base.BAT+4, uint32(base.Blocks[0]/sector))
	base.Foot(func(off int64) { base.U8(off+disktest.VHDSavedState, 1) })
	write(t, dir, "base.vhd", base.Forged)
	for i, name := range []string{"mid.vhd", "top.vhd"} {
		id := byte(0xd0 + i)
		write(t, dir, name, disktest.ForgeVHD(noise(28, 5*mib), disktest.VHDLayout{ID: id + 1, Parent: &disktest.VHDParent{
			ID: id, Name: []string{"base.vhd", "mid.vhd"}[i],
		}}).Forged)
	}
	img := opened(t, filepath.Join(dir, "top.vhd"))
	require.Equal(t, []string{"vhd-saved-state"}, codes(img.Issues, ondisk.Refuse))
	issues, err := img.Check()
	require.NoError(t, err)
	require.Equal(t, []string{"vhd-tables"}, codes(issues, ondisk.Broken))
	require.Contains(t, issues[0].Text, "in the parent: in the parent: 1 blocks at a place in use")
}

func TestBrokenVHDChains(t *testing.T) {
	child := func(parent byte, name string) []byte {
		return disktest.ForgeVHD(noise(24, mib), disktest.VHDLayout{ID: 0xc2, Parent: &disktest.VHDParent{ID: parent, Name: name}}).Forged
	}
	dir := t.TempDir()
	vhdChain(t, dir, 2*mib)
	require.NoError(t, os.Remove(filepath.Join(dir, "base.vhd")))
	_, err := image.Open(filepath.Join(dir, "top.avhd"), image.Options{})
	refused(t, err, `the parent of "mid.avhd" is missing: there is no "base.vhd" and no "wrong.vhd" in its folder`)

	write(t, dir, "base.vhd", disktest.ForgeFixedVHD(noise(25, mib)).Forged)
	_, err = image.Open(filepath.Join(dir, "top.avhd"), image.Options{})
	refused(t, err, `the parent "base.vhd" has the content id 01010101010101010101010101010101, but "mid.avhd" was made on b0b0`)

	write(t, dir, "a.vhd", child(0xc2, "b.vhd"))
	write(t, dir, "b.vhd", child(0xc2, "a.vhd"))
	_, err = image.Open(filepath.Join(dir, "a.vhd"), image.Options{})
	require.ErrorIs(t, err, ondisk.ErrFormat)
	require.ErrorContains(t, err, "not in the chain already")

	write(t, dir, "short.vhd", disktest.ForgeFixedVHD(noise(26, mib/2)).Forged)
	write(t, dir, "long.vhd", child(1, "short.vhd"))
	img := opened(t, filepath.Join(dir, "long.vhd"))
	require.Contains(t, codes(img.Issues, ondisk.Refuse), "vhd-parent-size")
	disktest.CheckBytes(t, img.Disk, noise(24, mib))
}
