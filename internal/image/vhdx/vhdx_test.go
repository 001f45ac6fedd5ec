package vhdx_test

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vhdxforge"
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

func TestVHDXBlocks(t *testing.T) {
	for _, l := range []vhdxforge.Layout{
		{Size: 5*mib + 3*sector},
		{Size: 5*mib + 3*sector, Fixed: true},
		{Size: 5*mib + 3*4096, Logical: 4096},
		{Size: 5*mib + 3*sector, Block: 4 * mib},
		{Size: 3 * sector},
		{Size: mib, Block: 256 * mib},
	} {
		t.Run(fmt.Sprintf("%+v", l), func(t *testing.T) {
			data := imagetest.Noise(uint64(l.Size), int(l.Size))
			if l.Size > 4*mib {
				clear(data[mib : 3*mib])
			}
			v := vhdxforge.New(l).Fill(data)
			if l.Block == 256*mib {
				v.Bytes = v.Bytes[:v.Blocks+mib] // the last block may end with the disk
			}
			img := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "disk.vhdx", v.Bytes))
			require.Equal(t, "vhdx", img.Format)
			require.Equal(t, map[bool]string{false: "dynamic", true: "fixed"}[l.Fixed], img.Subformat)
			require.Equal(t, v.Logical, img.Disk.SectorSize())
			require.Equal(t, vhdxforge.DataWriteGUID, img.ContentID)
			require.False(t, img.Child)
			require.Empty(t, img.Issues)
			disktest.CheckBytes(t, img.Disk, data)
			imagetest.NoDamage(t, img)
		})
	}
}

// Each state of a block reads as the specification says, whatever its place says.
func TestVHDXBlockStates(t *testing.T) {
	data := imagetest.Noise(3, 8*mib)
	v := vhdxforge.New(vhdxforge.Layout{Size: 8 * mib})
	for i := range int64(8) {
		v.AddBlock(7-i, vhdxforge.Present, data[(7-i)*mib:(8-i)*mib]) // backwards
	}
	for block, state := range map[int64]uint64{
		1: vhdxforge.Undefined, 2: vhdxforge.Zero, 4: vhdxforge.Unmapped,
		5: vhdxforge.NotPresent,
	} {
		v.SetEntry(v.Entry(block), state, v.Blocks+(7-block)*mib)
		clear(data[block*mib : (block+1)*mib])
	}
	img := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "disk.vhdx", v.Bytes))
	disktest.CheckBytes(t, img.Disk, data)
	imagetest.NoDamage(t, img)
	e, err := img.Disk.Extent(mib, 7*mib)
	require.NoError(t, err)
	require.Equal(t, disk.Extent{Range: disk.Range{Off: mib, Len: 2 * mib}, Zero: true}, e)
}

// The header with the greater number counts wherever it stands, and the other one where that is damaged.
func TestVHDXCurrentHeader(t *testing.T) {
	for name, tc := range map[string]struct {
		first, second uint64
		spoil         int64 // place of a byte that is changed behind the checksums
		want          int   // link whose DataWriteGuid is read
	}{
		"the second":                   {7, 8, 0, 2},
		"the first":                    {9, 8, 0, 1},
		"first damaged":                {9, 8, vhdxforge.Header1 + 500, 2},
		"second damaged":               {7, 8, vhdxforge.Header2 + 500, 1},
		"first region table damaged":   {7, 8, vhdxforge.Regions1 + 500, 2},
		"second region table damaged":  {7, 8, vhdxforge.Regions2 + 500, 2},
		"second without its signature": {7, 8, vhdxforge.Header2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			v := vhdxforge.New(vhdxforge.Layout{Size: mib}).AddData("data")
			for i, at := range []int64{vhdxforge.Header1, vhdxforge.Header2} {
				v.U64(at+vhdxforge.Sequence, []uint64{tc.first, tc.second}[i])
				v.Put(at+vhdxforge.DataWrite, vhdxforge.GUID(guidOf(i+1)))
			}
			v.Seal()
			if tc.spoil > 0 {
				v.Bytes[tc.spoil]++
			}
			img := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "disk.vhdx", v.Bytes))
			require.Equal(t, guidOf(tc.want), img.ContentID)
			if tc.spoil == 0 {
				require.Empty(t, img.Issues)
				return
			}
			require.Len(t, img.Issues, 1)
			require.Equal(t, "vhdx-copy-damaged", img.Issues[0].Code)
			require.Equal(t, ondisk.Warn, img.Issues[0].Effect)
		})
	}
}

// A file that is cut at any border of its structures is malformed, or misses the data that it says it has.
func TestVHDXCutShort(t *testing.T) {
	v := vhdxforge.New(vhdxforge.Layout{Size: 2 * mib}).Fill(imagetest.Noise(4, 2*mib))
	imagetest.CutShort(t, v.Bytes, []int64{
		9, 520, vhdxforge.Header1, vhdxforge.Header2, vhdxforge.Regions1, vhdxforge.Regions2, v.Log, v.Metadata, v.BAT,
		v.Blocks, v.Blocks + mib,
	}, func(dir string, cut []byte) string { return imagetest.Write(t, dir, "disk.vhdx", cut) })
}

// Space that no block has is reported, and blocks without data may keep theirs.
func TestVHDXOrphans(t *testing.T) {
	v := vhdxforge.New(vhdxforge.Layout{Size: 8 * mib, Block: 2 * mib})
	v.AddBlock(0, vhdxforge.Present, nil)
	v.AddBlock(1, vhdxforge.Unmapped, nil)
	v.AddBlock(2, vhdxforge.Present, nil)
	v.SetEntry(v.Entry(0), vhdxforge.NotPresent, 0)
	issues, err := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "disk.vhdx", v.Bytes)).Check()
	require.NoError(t, err)
	require.Len(t, issues, 1)
	require.Equal(t, "orphaned-data", issues[0].Code)
	require.Equal(t, ondisk.Note, issues[0].Effect)
	require.Contains(t, issues[0].Text, "1 blocks (2 MiB)")
}

// With blocks of 1 MiB and sectors of 512 bytes the entry of a sector bitmap follows each 4096 entries: what lies
// behind 4 GiB is found only by counting it.
func TestVHDXBehindTheSectorBitmap(t *testing.T) {
	const size = 9<<30 + 5*mib
	v := vhdxforge.New(vhdxforge.Layout{Size: size})
	blocks := map[int64]string{
		0: "first", 4094: "a", 4095: "last of the chunk", 4096: "first of the next", 4097: "b",
		8191: "c", 8192: "d", 9*1024 + 4: "end",
	}
	for block := range int64(9*1024 + 5) {
		if text, ok := blocks[block]; ok {
			v.AddBlock(block, vhdxforge.Present, bytes.Repeat([]byte(text+" "), 100))
		}
	}
	// qemu-img 7.2 left such rubbish in the entries of bitmaps that a disk without a parent does not have.
	v.U64(v.BitmapEntry(0), 0xffff0000_00000007)
	path := imagetest.Write(t, t.TempDir(), "disk.vhdx", v.Bytes)
	img := imagetest.Open(t, path)
	require.Equal(t, int64(size), img.Disk.Size())
	for block, text := range blocks {
		b := make([]byte, len(text))
		_, err := img.Disk.ReadAt(b, block*mib)
		require.NoError(t, err)
		require.Equal(t, text, string(b))
	}
	stored := int64(0)
	for off := int64(0); off < size; {
		e, err := img.Disk.Extent(off, size-off)
		require.NoError(t, err)
		if !e.Zero {
			stored += e.Len
		}
		off = e.End()
	}
	require.LessOrEqual(t, stored, int64(len(blocks))*mib)
	imagetest.NoDamage(t, img)
	raw := filepath.Join(t.TempDir(), "disk.img")
	disktest.Run(t, "qemu-img", "convert", "-f", "vhdx", "-O", "raw", path, raw)
	requireSameData(t, imagetest.Open(t, raw).Disk, img.Disk)
}

// requireSameData compares two disks where either of them has data.
func requireSameData(t *testing.T, want, got disk.Disk) {
	t.Helper()
	require.Equal(t, want.Size(), got.Size())
	size := want.Size()
	for _, d := range []disk.Disk{want, got} {
		for off := int64(0); off < size; {
			e, err := d.Extent(off, size-off)
			require.NoError(t, err)
			for at := off; !e.Zero && at < e.End(); at += mib {
				a := make([]byte, min(mib, e.End()-at))
				b := make([]byte, len(a))
				require.NoError(t, ondisk.ReadFull(want, a, at))
				require.NoError(t, ondisk.ReadFull(got, b, at))
				require.True(t, bytes.Equal(a, b), "at %#x", at)
			}
			off = e.End()
		}
	}
}

// Disks from qemu-img with each of its options.
func TestVHDXByQemuImg(t *testing.T) {
	data := imagetest.Noise(8, 20*mib+3*sector)
	clear(data[3*mib : 9*mib])
	for _, o := range []string{
		"subformat=dynamic", "subformat=fixed", "subformat=dynamic,block_size=1M", "subformat=fixed,block_size=2M",
		"subformat=dynamic,log_size=4M", "subformat=dynamic,block_state_zero=off,block_size=1M",
		"subformat=dynamic,block_size=256M",
	} {
		t.Run(o, func(t *testing.T) {
			dir := t.TempDir()
			raw, path := imagetest.Write(t, dir, "disk.img", data), filepath.Join(dir, "disk.vhdx")
			// which qemu-img convert does not get right
			if o == "subformat=dynamic,block_state_zero=off,block_size=1M" {
				disktest.Run(t, "qemu-img", "create", "-f", "vhdx", "-o", o, path, fmt.Sprint(len(data)))
				disktest.Run(t, "qemu-img", "convert", "-n", "-S", "0", "-f", "raw", "-O", "vhdx", raw, path)
			} else {
				disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "vhdx", "-o", o, raw, path)
			}
			img := imagetest.Open(t, path)
			require.Equal(t, o[len("subformat="):len("subformat=")+len(img.Subformat)], img.Subformat)
			disktest.CheckBytes(t, img.Disk, data)
			issues, err := img.Check()
			require.NoError(t, err)
			for _, i := range issues {
				require.Equal(t, ondisk.Note, i.Effect, i.Text)
			}
		})
	}
}

// Hyper-V's own files. The hash is that of the corpus, the other disks are compared with what qemu-img reads.
func TestVHDXCorpus(t *testing.T) {
	for name, size := range map[string]int64{"btrfs": 1 << 30, "swap": 10 << 30, "xfs5": 10 << 30} {
		path := disktest.Corpus(t, "discutils/"+name+".vhdx.gz")
		img := imagetest.Open(t, path)
		require.Equal(t, "dynamic", img.Subformat)
		require.Equal(t, size, img.Disk.Size())
		imagetest.NoDamage(t, img)
		if name == "btrfs" {
			require.Equal(t, "0b959f9cb4e18348ad8b646f152178282542c8304f02fddf765e3fd1a1de6864", imagetest.Hash(t, img))
		}
		raw := filepath.Join(t.TempDir(), "disk.img")
		disktest.Run(t, "qemu-img", "convert", "-f", "vhdx", "-O", "raw", path, raw)
		requireSameData(t, imagetest.Open(t, raw).Disk, img.Disk)
	}
}

func TestHostileVHDX(t *testing.T) { hostile.Check(t, hostile.VHDX(), imagetest.Issues) }

// guidOf is the DataWriteGuid of link n of a chain.
func guidOf(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

// childOf is a disk whose parent is link n-1 of a chain.
func childOf(n int, parent string, l vhdxforge.Layout) *vhdxforge.File {
	l.DataWrite = guidOf(n)
	l.Parent = map[string]string{
		"parent_linkage": "{" + strings.ToUpper(guidOf(n-1)) + "}",
		"relative_path":  `.\` + parent,
	}
	return vhdxforge.New(l)
}

// putPartial stores the sectors of a block selected by present, in the file and in the expected data.
func putPartial(v *vhdxforge.File, want, data []byte, block int64, present func(sector int64) bool) {
	part := make([]byte, v.Block)
	for s := block * v.Block / v.Logical; s < (block+1)*v.Block/v.Logical && s*v.Logical < v.Size; s++ {
		off := s * v.Logical
		from := data[off : off+v.Logical]
		copy(part[off-block*v.Block:], from) // sectors that are not present are rubbish in the block
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

// The sector bitmap of the second chunk is in another block of the file than that of the first.
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
		"no path":    {map[string]string{"parent_linkage": link}, "does not name"},
		"no linkage": {map[string]string{"relative_path": `.\base.vhdx`}, "parent_linkage"},
		"bad linkage": {
			map[string]string{"parent_linkage": "{" + guidOf(0), "relative_path": `.\base.vhdx`},
			"parent_linkage",
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

// A child has sectors of the size of its parent's.
func TestVHDXChildInOtherSectors(t *testing.T) {
	dir := t.TempDir()
	imagetest.Write(t, dir, "base.vhdx", vhdxforge.New(vhdxforge.Layout{Size: mib, DataWrite: guidOf(0)}).Bytes)
	_, err := image.Open(imagetest.Write(t, dir, "child.vhdx",
		childOf(1, "base.vhdx", vhdxforge.Layout{Size: mib, Logical: 4096}).Bytes), image.Options{})
	require.ErrorContains(t, err, "logical sector size 4096, want 512, which the parent has")
}
