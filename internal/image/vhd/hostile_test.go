package vhd_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
)

const vhdSize = 5*mib + 3*sector // three blocks

func fixedVHD() *vhdforge.File { return vhdforge.NewFixed(imagetest.Noise(31, vhdSize)) }
func dynamicVHD() *vhdforge.File {
	return vhdforge.New(imagetest.Noise(31, vhdSize), vhdforge.Layout{ID: 5})
}

// Readable images with faults that a copy must not ignore.
func TestOddFixedVHDs(t *testing.T) {
	fixedEnd := fmt.Sprintf("%#x", vhdSize)
	for _, tc := range []struct {
		name   string
		change func(v *vhdforge.File)
		code   string
		effect ondisk.Effect
		class  error
		says   []string
	}{
		{
			"a footer in the first sector of a fixed disk",
			func(v *vhdforge.File) { copy(v.Bytes, v.Bytes[v.Footer:]) }, "vhd-footers", ondisk.Refuse,
			ondisk.ErrFormat,
			[]string{fixedEnd, "another footer at 0x0"},
		},
		{
			"geometry smaller than the size",
			func(v *vhdforge.File) { v.Foot(func(off int64) { v.BE16(off+vhdforge.Geometry, 1) }) }, "vhd-geometry",
			ondisk.Warn, nil,
			[]string{"1/4/17", "covers 34816 bytes", "the size field counts"},
		},
		{
			"bytes behind the disk",
			func(v *vhdforge.File) { v.Foot(func(off int64) { v.BE64(off+vhdforge.CurrentSize, vhdSize-sector) }) },
			"vhd-slack", ondisk.Warn, nil,
			[]string{"512 bytes lie between"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := fixedVHD()
			tc.change(v)
			img := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "disk.vhd", v.Bytes))
			var found *ondisk.Issue
			for _, i := range img.Issues {
				if i.Code == tc.code {
					found = &i
				}
			}
			require.NotNil(t, found, "%v", img.Issues)
			require.Equal(t, tc.effect, found.Effect)
			require.ErrorIs(t, found.Err, tc.class)
			for _, s := range tc.says {
				require.Contains(t, found.Text, s)
			}
		})
	}
}

// An invalid footer is still not a place for data.
func TestVHDBlockOverADamagedFooter(t *testing.T) {
	v := dynamicVHD()
	v.U8(v.Footer+200, 1)
	v.BE32(v.BAT+4, uint32(v.Blocks[2]/sector+1))
	img := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "disk.vhd", v.Bytes))
	_, err := img.Disk.ReadAt(make([]byte, 10), 2*mib)
	require.ErrorIs(t, err, ondisk.ErrFormat)
}

// A block that no entry names.
func TestOrphanedVHDBlocks(t *testing.T) {
	v := dynamicVHD()
	v.BE32(v.BAT+4, 1<<32-1)
	img := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "disk.vhd", v.Bytes))
	issues, err := img.Check()
	require.NoError(t, err)
	require.Len(t, issues, 1)
	require.Equal(t, "orphaned-data", issues[0].Code)
	require.Equal(t, ondisk.Note, issues[0].Effect)
	require.Contains(t, issues[0].Text, "1 blocks (2 MiB)")
}

// A locator that leads nowhere does not hide the other names.
func TestVHDParentBySecondName(t *testing.T) {
	dir := t.TempDir()
	imagetest.Write(t, dir, "base.vhd", vhdforge.NewFixed(imagetest.Noise(32, vhdSize)).Bytes)
	v := vhdforge.New(imagetest.Noise(31, vhdSize),
		vhdforge.Layout{Parent: &vhdforge.Parent{ID: 1, Relative: "x", Name: `Z:\base.vhd`}})
	v.Head(func(off int64) { v.BE32(off+vhdforge.Locators+8, 1<<31) })
	img := imagetest.Open(t, imagetest.Write(t, dir, "child.vhd", v.Bytes))
	require.Contains(t, imagetest.Codes(img.Issues, ondisk.Warn), "vhd-parent-locator")
	disktest.CheckBytes(t, img.Disk, imagetest.Noise(31, vhdSize))
}

// A file that is cut at each border of its structures, and one byte to either side. What is left of a dynamic disk
// must never be taken for a raw one; that of a fixed disk is one by its content, so only --format knows.
func TestTruncatedVHDs(t *testing.T) {
	v := dynamicVHD()
	borders := []int64{
		0, 511, 512, 512 + 1024, v.BAT + 12, v.Blocks[0], v.Blocks[0] + sector, v.Blocks[1], v.Blocks[2], v.Footer,
	}
	for _, b := range borders {
		for _, n := range []int64{b - 1, b, b + 1} {
			if n < 0 || n >= int64(len(v.Bytes))-1 {
				continue
			}
			img, err := image.Open(imagetest.Write(t, t.TempDir(), "disk.vhd", v.Bytes[:n]),
				image.Options{Format: "vhd"})
			if err != nil {
				require.ErrorIs(t, err, ondisk.ErrFormat, "%d bytes", n)
				continue
			}
			require.GreaterOrEqual(t, n, v.BAT+12)
			require.Contains(t, imagetest.Codes(img.Issues, ondisk.Refuse), "vhd-footers", "%d bytes", n)
			issues, err := img.Check()
			require.NoError(t, err)
			require.Equal(t, n < v.Blocks[2]+sector+mib+3*sector, len(imagetest.Codes(issues, ondisk.Broken)) > 0,
				"%d bytes: blocks are lost", n)
			require.NoError(t, img.Close())
		}
	}
	f := fixedVHD()
	for _, n := range []int64{0, 1, 510, 511, 512, 513, f.Footer - 1, f.Footer, f.Footer + 510} {
		_, err := image.Open(imagetest.Write(t, t.TempDir(), "disk.vhd", f.Bytes[:n]), image.Options{Format: "vhd"})
		require.ErrorIs(t, err, ondisk.ErrFormat, "%d bytes", n)
	}
	for _, n := range []int64{511, 512} { // a footer, and nothing else
		_, err := image.Open(imagetest.Write(t, t.TempDir(), "disk.vhd", f.Bytes[f.Footer:][:n]), image.Options{})
		require.ErrorIs(t, err, ondisk.ErrFormat)
		_, err = image.Open(imagetest.Write(t, t.TempDir(), "disk.vhd", v.Bytes[:n]), image.Options{})
		require.ErrorIs(t, err, ondisk.ErrFormat)
	}
}

// A table of four thousand million entries that is a hole of the file costs nothing to make, and every entry of it is
// damaged.
func TestVHDTableOfAHole(t *testing.T) {
	const entries = 1<<32 - 2
	v := vhdforge.New(make([]byte, sector), vhdforge.Layout{Block: 4 * kib})
	v.Head(func(off int64) { v.BE32(off+vhdforge.MaxEntries, entries) })
	v.Foot(func(off int64) { v.BE64(off+vhdforge.CurrentSize, entries*4*kib) })
	path := imagetest.Write(t, t.TempDir(), "disk.vhd", v.Bytes[:v.BAT])
	disktest.WriteAt(t, path, v.BAT+4*entries, v.Bytes[v.Footer:])
	img := imagetest.Open(t, path)
	spent := disktest.Spent()
	issues, err := img.Check()
	require.NoError(t, err)
	require.Less(t, spent(), 2*time.Second)
	require.Contains(t, imagetest.Codes(issues, ondisk.Broken), "vhd-tables")
}
