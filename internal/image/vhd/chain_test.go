package vhd_test

import (
	"bytes"
	"fmt"
	"os"
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

// vhdChain is a base, a child and its child in one folder: names, and the sectors that each has.
func vhdChain(t *testing.T, dir string, block int64) (want []byte) {
	t.Helper()
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
	return want
}

func TestVHDChain(t *testing.T) {
	for _, block := range []int64{4 * kib, 2 * mib} {
		dir := t.TempDir()
		want := vhdChain(t, dir, block)
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

// Windows 10 wrote this child; its bitmap, read by hand, has 18 sectors of the first block, and every sector with data
// is one of them. The parent is not in the corpus, so a disk of a pattern takes its place.
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

// What is wrong with a parent is wrong with the disk.
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

func TestBrokenVHDChains(t *testing.T) {
	child := func(parent byte, name string) []byte {
		return vhdforge.New(imagetest.Noise(24, mib),
			vhdforge.Layout{ID: 0xc2, Parent: &vhdforge.Parent{ID: parent, Name: name}}).Bytes
	}
	dir := t.TempDir()
	vhdChain(t, dir, 2*mib)
	require.NoError(t, os.Remove(filepath.Join(dir, "base.vhd")))
	_, err := image.Open(filepath.Join(dir, "top.avhd"), image.Options{})
	imagetest.RefusesReference(t, err,
		`the parent of "mid.avhd" is missing: there is no "base.vhd" and no "wrong.vhd" in its folder`)

	imagetest.Write(t, dir, "base.vhd", vhdforge.NewFixed(imagetest.Noise(25, mib)).Bytes)
	_, err = image.Open(filepath.Join(dir, "top.avhd"), image.Options{})
	imagetest.RefusesReference(t, err,
		`the parent "base.vhd" has the content id 01010101010101010101010101010101, but `+
			`"mid.avhd" was created on top of b0b0`)

	imagetest.Write(t, dir, "a.vhd", child(0xc2, "b.vhd"))
	imagetest.Write(t, dir, "b.vhd", child(0xc2, "a.vhd"))
	_, err = image.Open(filepath.Join(dir, "a.vhd"), image.Options{})
	require.ErrorIs(t, err, ondisk.ErrFormat)
	require.ErrorContains(t, err, "not in the chain already")

	imagetest.Write(t, dir, "short.vhd", vhdforge.NewFixed(imagetest.Noise(26, mib/2)).Bytes)
	imagetest.Write(t, dir, "long.vhd", child(1, "short.vhd"))
	img := imagetest.Open(t, filepath.Join(dir, "long.vhd"))
	require.Contains(t, imagetest.Codes(img.Issues, ondisk.Refuse), "vhd-parent-size")
	disktest.CheckBytes(t, img.Disk, imagetest.Noise(24, mib))
}
