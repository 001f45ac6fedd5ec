package vhdx_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vhdxforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
)

// guidOf is the DataWriteGuid of link n of a chain.
func guidOf(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

// childOf is a disk that completes link n-1 of a chain.
func childOf(n int, parent string, l vhdxforge.Layout) *vhdxforge.File {
	l.DataWrite = guidOf(n)
	l.Parent = map[string]string{
		"parent_linkage": "{" + strings.ToUpper(guidOf(n-1)) + "}",
		"relative_path":  `.\` + parent,
	}
	return vhdxforge.New(l)
}

// putPartial stores those sectors of a block that present wants, in the file and in what is expected.
func putPartial(v *vhdxforge.File, want, data []byte, block int64, present func(sector int64) bool) {
	part := make([]byte, v.Block)
	for s := block * v.Block / v.Logical; s < (block+1)*v.Block/v.Logical && s*v.Logical < v.Size; s++ {
		off := s * v.Logical
		from := data[off : off+v.Logical]
		copy(part[off-block*v.Block:], from) // what is not present is rubbish in the block
		if present(s) {
			copy(want[off:], from)
		}
	}
	v.AddBlock(block, vhdxforge.Partial, part)
}

// Three links: a base, a child with whole, partial, zero and absent blocks, and a grandchild that is larger.
func TestVHDXChain(t *testing.T) {
	for _, logical := range []int64{512, 4096} {
		t.Run(fmt.Sprintf("sectors of %d bytes", logical), func(t *testing.T) {
			dir := t.TempDir()
			want := imagetest.Noise(21, 8*mib)
			base := vhdxforge.New(vhdxforge.Layout{Size: 8 * mib, Logical: logical, DataWrite: guidOf(0)}).Fill(want)
			imagetest.Write(t, dir, "base.vhdx", base.Bytes)

			child := childOf(1, "base.vhdx", vhdxforge.Layout{Size: 8 * mib, Logical: logical})
			data := imagetest.Noise(22, 8*mib)
			copy(want[mib:], data[mib:2*mib])
			child.AddBlock(1, vhdxforge.Present, data[mib:2*mib])
			// Block 3 is absent between two that hide the parent.
			for block, state := range map[int64]uint64{
				2: vhdxforge.Zero, 4: vhdxforge.Undefined,
				6: vhdxforge.Unmapped,
			} {
				clear(want[block*mib : (block+1)*mib])
				child.SetEntry(child.Entry(block), state, 0)
			}
			present := func(s int64) bool { return s%7 < 3 || s/8%5 == 2 }
			putPartial(child, want, data, 5, present)
			putPartial(child, want, data, 7, present)
			child.AddBitmap(0, present)
			imagetest.Write(t, dir, "child.avhdx", child.Bytes)
			img := imagetest.Open(t, filepath.Join(dir, "child.avhdx"))
			require.Equal(t, "differencing", img.Subformat)
			require.True(t, img.Child)
			disktest.CheckBytes(t, img.Disk, want)
			imagetest.NoDamage(t, img)

			size := 10*mib + 3*logical
			want = append(want, make([]byte, int(size)-len(want))...)
			grandchild := childOf(2, "child.avhdx", vhdxforge.Layout{Size: size, Logical: logical, Block: 4 * mib})
			data = imagetest.Noise(23, int(size))
			first := func(s int64) bool { return s == 0 || s > 100 && s < 300 || s*logical >= 9*mib }
			putPartial(grandchild, want, data, 0, first)
			putPartial(grandchild, want, data, 2, first)
			grandchild.AddBitmap(0, first)
			imagetest.Write(t, dir, "grandchild.avhdx", grandchild.Bytes)
			img = imagetest.Open(t, filepath.Join(dir, "grandchild.avhdx"))
			disktest.CheckBytes(t, img.Disk, want)
			imagetest.NoDamage(t, img)
			require.Len(t, img.Chain, 2)
			require.Equal(t, guidOf(1), img.Chain[0].ContentID)

			children, err := imagetest.Open(t, filepath.Join(dir, "child.avhdx")).Children()
			require.NoError(t, err)
			require.Len(t, children, 1)
			require.Contains(t, children[0].Text, "grandchild.avhdx")
		})
	}
}

// The sector bitmap of the second chunk is another block of the file than that of the first.
func TestVHDXBitmapOfTheSecondChunk(t *testing.T) {
	const size = 4<<30 + 2*mib
	dir := t.TempDir()
	base := vhdxforge.New(vhdxforge.Layout{Size: size, DataWrite: guidOf(0)})
	base.AddBlock(4097, vhdxforge.Present, []byte(strings.Repeat("parent..", 128*kib)))
	imagetest.Write(t, dir, "base.vhdx", base.Bytes)
	child := childOf(1, "base.vhdx", vhdxforge.Layout{Size: size})
	child.AddBlock(4097, vhdxforge.Partial, []byte(strings.Repeat("child...", 128*kib)))
	child.AddBitmap(1, func(s int64) bool { return s == 4097*2048+5 })
	img := imagetest.Open(t, imagetest.Write(t, dir, "child.avhdx", child.Bytes))
	b := make([]byte, 3*sector)
	_, err := img.Disk.ReadAt(b, 4097*mib+4*sector)
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("parent..", 64)+strings.Repeat("child...", 64)+strings.Repeat("parent..", 64),
		string(b))
	imagetest.NoDamage(t, img)
}

// locatorOf makes a child with these keys beside a base.
func locatorOf(t *testing.T, pairs map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	base := vhdxforge.New(vhdxforge.Layout{Size: mib, DataWrite: guidOf(0)})
	imagetest.Write(t, dir, "base.vhdx", base.AddData("base").Bytes)
	return imagetest.Write(t, dir, "child.avhdx",
		vhdxforge.New(vhdxforge.Layout{Size: mib, DataWrite: guidOf(1), Parent: pairs}).Bytes)
}

func TestVHDXFindsItsParent(t *testing.T) {
	link := "{" + guidOf(0) + "}"
	for name, pairs := range map[string]map[string]string{
		"relative":       {"parent_linkage": link, "relative_path": `.\base.vhdx`},
		"another folder": {"parent_linkage": link, "relative_path": `..\..\templates\base.vhdx`},
		"volume": {
			"parent_linkage": link,
			"volume_path":    `\\?\Volume{26A21BDA-A627-11D7-9931-806E6F6E6963}\vm\base.vhdx`,
		},
		"drive": {"parent_linkage": link, "absolute_win32_path": `\\?\d:\vm\base.vhdx`},
		"second name": {
			"parent_linkage": link, "relative_path": `.\gone.vhdx`,
			"absolute_win32_path": `\\?\d:\vm\base.vhdx`,
		},
		"without braces": {"parent_linkage": guidOf(0), "relative_path": `base.vhdx`},
		"with the 2nd key": {
			"parent_linkage": link, "parent_linkage2": "{" + guidOf(9) + "}",
			"relative_path": `base.vhdx`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			img := imagetest.Open(t, locatorOf(t, pairs))
			b := disktest.Head(t, img.Disk, 4)
			require.Equal(t, "base", string(b))
			require.Equal(t, "base.vhdx", img.Chain[0].Name)
		})
	}
}

func TestVHDXParentFaults(t *testing.T) {
	link := "{" + guidOf(0) + "}"
	for name, tc := range map[string]struct {
		pairs map[string]string
		says  string
	}{
		"missing": {map[string]string{
			"parent_linkage": link, "relative_path": `.\gone.vhdx`,
			"absolute_win32_path": `\\?\d:\vm\away.vhdx`,
		}, `there is no "gone.vhdx`},
		"stale": {
			map[string]string{"parent_linkage": "{" + guidOf(7) + "}", "relative_path": `.\base.vhdx`},
			"was created on top of " + guidOf(7),
		},
		"no path":    {map[string]string{"parent_linkage": link}, "does not name"},
		"no linkage": {map[string]string{"relative_path": `.\base.vhdx`}, "parent_linkage"},
		"bad linkage": {
			map[string]string{"parent_linkage": "{" + guidOf(0), "relative_path": `.\base.vhdx`},
			"parent_linkage",
		},
		"itself": {
			map[string]string{"parent_linkage": "{" + guidOf(1) + "}", "relative_path": `.\child.avhdx`},
			"not in the chain already",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := image.Open(locatorOf(t, tc.pairs), image.Options{})
			require.ErrorContains(t, err, tc.says)
			_, refused := errors.AsType[*ondisk.Refusal](err)
			require.True(t, refused || errors.Is(err, ondisk.ErrFormat), "%v", err)
		})
	}
}

// A chain whose middle link is missing, one in a cycle, and sectors of another size.
func TestVHDXBrokenChains(t *testing.T) {
	dir := t.TempDir()
	imagetest.Write(t, dir, "a.vhdx", childOf(2, "b.vhdx", vhdxforge.Layout{Size: mib}).Bytes)
	b := imagetest.Write(t, dir, "b.vhdx", childOf(1, "c.vhdx", vhdxforge.Layout{Size: mib}).Bytes)
	_, err := image.Open(filepath.Join(dir, "a.vhdx"), image.Options{})
	require.ErrorContains(t, err, `the parent of "b.vhdx" is missing`)
	imagetest.Write(t, dir, "c.vhdx", childOf(3, "a.vhdx", vhdxforge.Layout{Size: mib, DataWrite: guidOf(0)}).Bytes)
	require.NoError(t, os.Remove(b))
	require.NoError(t, os.Rename(filepath.Join(dir, "c.vhdx"), b))
	_, err = image.Open(filepath.Join(dir, "a.vhdx"), image.Options{})
	require.ErrorContains(t, err, "not in the chain already")

	dir = t.TempDir()
	imagetest.Write(t, dir, "base.vhdx", vhdxforge.New(vhdxforge.Layout{Size: mib, DataWrite: guidOf(0)}).Bytes)
	_, err = image.Open(imagetest.Write(t, dir, "child.vhdx",
		childOf(1, "base.vhdx", vhdxforge.Layout{Size: mib, Logical: 4096}).Bytes), image.Options{})
	require.ErrorContains(t, err, "logical sector size 4096, want 512, which the parent has")
}
