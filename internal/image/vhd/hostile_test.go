package vhd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
)

// hostileVHD is a valid VHD with one thing changed.
type hostileVHD struct {
	name   string
	change func(v *vhdforge.File)
	class  error // of the error of Open
	says   string
}

func (h hostileVHD) run(t *testing.T, forged func() *vhdforge.File) {
	t.Helper()
	t.Run(h.name, func(t *testing.T) {
		v := forged()
		h.change(v)
		_, err := image.Open(imagetest.Write(t, t.TempDir(), "disk.vhd", v.Bytes), image.Options{})
		require.ErrorIs(t, err, h.class)
		require.ErrorContains(t, err, h.says)
	})
}

const vhdSize = 5*mib + 3*sector // three blocks

func fixedVHD() *vhdforge.File { return vhdforge.NewFixed(imagetest.Noise(31, vhdSize)) }
func dynamicVHD() *vhdforge.File {
	return vhdforge.New(imagetest.Noise(31, vhdSize), vhdforge.Layout{ID: 5})
}

// foot64 changes both footers.
func foot64(at int64, n uint64) func(v *vhdforge.File) {
	return func(v *vhdforge.File) { v.Foot(func(off int64) { v.BE64(off+at, n) }) }
}

func head32(at int64, n uint32) func(v *vhdforge.File) {
	return func(v *vhdforge.File) { v.Head(func(off int64) { v.BE32(off+at, n) }) }
}

// Footers that lie, in both imagetest.Kinds of disk.
func TestHostileVHDFooters(t *testing.T) {
	sizes := func(n uint64) hostileVHD {
		return hostileVHD{
			fmt.Sprintf("T29 current size %d", n), foot64(vhdforge.CurrentSize, n), ondisk.ErrFormat, fmt.Sprint(n),
		}
	}
	both := []hostileVHD{
		sizes(0), sizes(513), sizes(1 << 60), sizes(1 << 63), sizes(1<<64 - 512),
		{
			"T29 type 0", func(v *vhdforge.File) { v.Foot(func(off int64) { v.BE32(off+vhdforge.Type, 0) }) },
			ondisk.ErrFormat, "disk type 0, want 2 (fixed), 3 (dynamic) or 4 (differencing)",
		},
		{
			"T29 type 6", func(v *vhdforge.File) { v.Foot(func(off int64) { v.BE32(off+vhdforge.Type, 6) }) },
			ondisk.ErrFormat, "disk type 6",
		},
		{
			"T29 version 2",
			func(v *vhdforge.File) { v.Foot(func(off int64) { v.BE32(off+vhdforge.Version, 0x20000) }) },
			ondisk.ErrUnsupported, "file format version 0x20000",
		},
		{"T29 checksum of both", func(v *vhdforge.File) {
			v.U8(v.Footer+200, 1)
			v.U8(200, 1)
		}, ondisk.ErrFormat, "vhd footer at"},
	}
	for _, h := range both {
		h.run(t, fixedVHD)
		h.run(t, dynamicVHD)
	}
	tooBig := fmt.Sprintf("current size %d, want at most the %d bytes in front of the footer", vhdSize+sector, vhdSize)
	hostileVHD{
		"T29 one sector more than the file has", foot64(vhdforge.CurrentSize, vhdSize+sector), ondisk.ErrFormat, tooBig,
	}.run(t, fixedVHD)
	hostileVHD{
		"T29 more blocks than the table has", foot64(vhdforge.CurrentSize, 6*mib+sector), ondisk.ErrFormat,
		"max table entries 3, want at least 4",
	}.run(t, dynamicVHD)
	for _, n := range []uint64{0, 511, uint64(vhdSize) * 2, 1<<64 - 1} {
		hostileVHD{
			fmt.Sprintf("T29 data offset %d", n), foot64(vhdforge.DataOffset, n), ondisk.ErrFormat,
			fmt.Sprintf("data offset %d", n),
		}.run(t, dynamicVHD)
	}
}

// What can be read, and what a copy must not pass over in silence.
func TestVHDFootersThatDisagree(t *testing.T) {
	end := fmt.Sprintf("%#x", dynamicVHD().Footer)
	fixedEnd := fmt.Sprintf("%#x", vhdSize)
	for _, tc := range []struct {
		name   string
		forged func() *vhdforge.File
		change func(v *vhdforge.File)
		code   string
		effect ondisk.Effect
		class  error
		says   []string
	}{
		{"copies differ", dynamicVHD, func(v *vhdforge.File) {
			one := *v
			one.Header = 0
			one.Foot(func(off int64) { v.U8(off+90, 1) })
		}, "vhd-footers", ondisk.Refuse, ondisk.ErrFormat, []string{end, "0x0 disagree", "byte 67"}},
		{
			"the end is damaged", dynamicVHD, func(v *vhdforge.File) { v.U8(v.Footer+200, 1) }, "vhd-footers",
			ondisk.Refuse, ondisk.ErrFormat,
			[]string{"vhd footer at 0x", "checksum", "copy at 0x0 is used"},
		},
		{
			"the end is cut off", dynamicVHD, func(v *vhdforge.File) { v.Bytes = v.Bytes[:v.Footer] }, "vhd-footers",
			ondisk.Refuse, ondisk.ErrFormat,
			[]string{"cookie", "copy at 0x0 is used"},
		},
		{
			"the copy is damaged", dynamicVHD, func(v *vhdforge.File) { v.U8(200, 1) }, "vhd-footers", ondisk.Refuse,
			ondisk.ErrFormat,
			[]string{"copy of the vhd footer at 0x0", "checksum", end},
		},
		{
			"the copy is gone", dynamicVHD, func(v *vhdforge.File) { clear(v.Bytes[:512]) }, "vhd-footers",
			ondisk.Refuse, ondisk.ErrFormat,
			[]string{"copy of the vhd footer at 0x0", "cookie", end},
		},
		{
			"a footer in the first sector of a fixed disk", fixedVHD,
			func(v *vhdforge.File) { copy(v.Bytes, v.Bytes[v.Footer:]) }, "vhd-footers", ondisk.Refuse,
			ondisk.ErrFormat,
			[]string{fixedEnd, "another footer at 0x0"},
		},
		{"saved state", dynamicVHD, func(v *vhdforge.File) {
			v.Foot(func(off int64) {
				v.U8(off+vhdforge.SavedState, 1)
			})
		}, "vhd-saved-state", ondisk.Refuse, ondisk.ErrBusy, []string{"suspended"}},
		{
			"geometry smaller than the size", fixedVHD,
			func(v *vhdforge.File) { v.Foot(func(off int64) { v.BE16(off+vhdforge.Geometry, 1) }) }, "vhd-geometry",
			ondisk.Warn, nil,
			[]string{"1/4/17", "covers 34816 bytes", "the size field counts"},
		},
		{
			"bytes behind the disk", fixedVHD, foot64(vhdforge.CurrentSize, vhdSize-sector), "vhd-slack", ondisk.Warn,
			nil,
			[]string{"512 bytes lie between"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := tc.forged()
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
			if v.Header != 0 {
				disktest.CheckBytes(t, img.Disk, imagetest.Noise(31, vhdSize))
			}
		})
	}
}

// Headers of dynamic disks.
func TestHostileVHDHeaders(t *testing.T) {
	rows := []hostileVHD{
		{
			"T30 checksum", func(v *vhdforge.File) { v.U8(v.Header+800, 1) }, ondisk.ErrFormat,
			"vhd dynamic header at 0x224: checksum",
		},
		{
			"T30 cookie", func(v *vhdforge.File) { v.Head(func(off int64) { v.U8(off, 'C') }) }, ondisk.ErrFormat,
			`cookie "Cxsparse"`,
		},
		{"T30 version", head32(vhdforge.HeaderVer, 0x20000), ondisk.ErrUnsupported, "header version 0x20000"},
		{
			"T30 max entries 2^32-1", head32(vhdforge.MaxEntries, 1<<32-1), ondisk.ErrFormat,
			"a place for 4294967295 entries",
		},
		{"T30 max entries 2", head32(vhdforge.MaxEntries, 2), ondisk.ErrFormat, "max table entries 2, want at least 3"},
		{"T30 table inside the header", func(v *vhdforge.File) {
			v.Head(func(off int64) { v.BE64(off+vhdforge.TableOffset, uint64(off+1020)) })
		}, ondisk.ErrFormat, "apart from the dynamic header"},
		{"T30 table over the footer", func(v *vhdforge.File) {
			v.Head(func(off int64) { v.BE64(off+vhdforge.TableOffset, uint64(v.Footer-8)) })
		}, ondisk.ErrFormat, "table offset"},
	}
	for _, n := range []uint32{0, 3, 512, 2048, 3 << 20, 512 << 20, 1 << 31, 1<<32 - 1} {
		rows = append(rows, hostileVHD{
			fmt.Sprintf("T30 block size %d", n), head32(vhdforge.BlockSize, n),
			ondisk.ErrFormat, fmt.Sprintf("block size %d, want a power of two", n),
		})
	}
	for _, n := range []uint64{0, 508, 1 << 40, 1<<63 - 1, 1 << 63, 1<<64 - 1} {
		rows = append(rows, hostileVHD{fmt.Sprintf("T30 table offset %d", n), func(v *vhdforge.File) {
			v.Head(func(off int64) { v.BE64(off+vhdforge.TableOffset, n) })
		}, ondisk.ErrFormat, fmt.Sprintf("table offset %d", n)})
	}
	for _, h := range rows {
		h.run(t, dynamicVHD)
	}
}

// Entries of the table. The walk finds all of them, a read those that leave the data.
func TestHostileVHDTables(t *testing.T) {
	for name, tc := range map[string]struct {
		entry func(v *vhdforge.File) int64 // of block 1, in bytes
		says  string
		reads bool
	}{
		"the footer's copy": {func(*vhdforge.File) int64 { return 0 }, "metadata at 0x0", false},
		"the header":        {func(v *vhdforge.File) int64 { return v.Header + 512 }, "metadata at 0x200", false},
		"the table":         {func(v *vhdforge.File) int64 { return v.BAT }, "metadata at 0x600", false},
		"over the last footer": {
			func(v *vhdforge.File) int64 { return v.Blocks[2] + sector }, "fit in front of byte", false,
		},
		"beyond the file": {func(*vhdforge.File) int64 { return 0xfffffffe * sector }, "entry 4294967294", false},
		"another block": {
			func(v *vhdforge.File) int64 { return v.Blocks[0] }, "1 blocks at a place in use",
			true,
		},
		"half of another block": {
			func(v *vhdforge.File) int64 { return v.Blocks[0] + 1024*sector },
			"at a place in use", true,
		},
	} {
		t.Run("T30 "+name, func(t *testing.T) {
			v := dynamicVHD()
			v.BE32(v.BAT+4, uint32(tc.entry(v)/sector))
			img := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "disk.vhd", v.Bytes))
			issues, err := img.Check()
			require.NoError(t, err)
			require.NotEmpty(t, issues)
			require.Equal(t, ondisk.Broken, issues[0].Effect)
			require.ErrorIs(t, issues[0].Err, ondisk.ErrFormat)
			require.Contains(t, issues[0].Text, tc.says)
			_, err = img.Disk.ReadAt(make([]byte, 10), 3*mib)
			if tc.reads {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, ondisk.ErrFormat)
				require.ErrorContains(t, err, fmt.Sprintf("vhd block allocation table at %#x", v.BAT+4))
			}
		})
	}
}

// A footer that cannot be believed is no place for data all the same.
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

// What a differencing disk says about its parent leads to no file outside of the folder, and the disk is never
// complete without it. qemu-img reads it as complete.
func TestHostileVHDParents(t *testing.T) {
	child := func(name string) *vhdforge.File {
		return vhdforge.New(imagetest.Noise(31, vhdSize),
			vhdforge.Layout{ID: 5, Parent: &vhdforge.Parent{ID: 6, Name: name, Absolute: `C:\x\gone.vhd`}})
	}
	for _, tc := range []struct {
		name, parent string
		change       func(v *vhdforge.File)
		says         string
	}{
		{"/etc/shadow", "/etc/shadow", func(*vhdforge.File) {}, `there is no "gone.vhd" and no "shadow" in its folder`},
		{"a locator of 2^32-1 bytes", "/etc/shadow", func(v *vhdforge.File) {
			v.Head(func(off int64) { v.BE32(off+vhdforge.Locators+8, 1<<32-1) })
		}, `there is no "shadow" in its folder`},
		{"a locator of 100 KiB", "/etc/shadow", func(v *vhdforge.File) {
			v.Head(func(off int64) { v.BE32(off+vhdforge.Locators+8, 100<<10) })
		}, `there is no "shadow" in its folder`},
		{"a locator beyond the file", "/etc/shadow", func(v *vhdforge.File) {
			v.Head(func(off int64) { v.BE64(off+vhdforge.Locators+16, 1<<63+5) })
		}, `there is no "shadow" in its folder`},
		{
			"no name", "", func(v *vhdforge.File) { v.Head(func(off int64) { v.BE32(off+vhdforge.Locators, 0) }) },
			"does not name that",
		},
	} {
		t.Run("T31 "+tc.name, func(t *testing.T) {
			v := child(tc.parent)
			tc.change(v)
			_, err := image.Open(imagetest.Write(t, t.TempDir(), "disk.vhd", v.Bytes), image.Options{})
			imagetest.RefusesReference(t, err, tc.says)
		})
	}
	for _, name := range []string{"..", "a\x1b[31mb", "nbd:x", strings.Repeat("n", 256)} {
		v := child(name)
		v.Head(func(off int64) { v.BE32(off+vhdforge.Locators, 0) })
		_, err := image.Open(imagetest.Write(t, t.TempDir(), "disk.vhd", v.Bytes), image.Options{})
		require.ErrorIs(t, err, ondisk.ErrReference, "%q", name)
		require.NotContains(t, err.Error(), "\x1b")
	}
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

// Until it is finished, a copy is no VHD.
func TestUnfinishedVHDIsNoImage(t *testing.T) {
	for _, sub := range []string{"dynamic", "fixed"} {
		src := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "src.img", imagetest.Noise(5, 3*mib)))
		dir := t.TempDir()
		imagetest.Unfinished(t, src, dir, "x.vhd", store.CreateOptions{Format: "vhd", Subformat: sub})
		img, err := image.Open(filepath.Join(dir, ".x.vhd.partial"), image.Options{})
		require.NoError(t, err)
		require.Equal(t, "raw", img.Format)
		require.NoError(t, img.Close())
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
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer f.Close()
	_, err = f.WriteAt(v.Bytes[v.Footer:], v.BAT+4*entries)
	require.NoError(t, err)
	img := imagetest.Open(t, path)
	spent := disktest.Spent()
	issues, err := img.Check()
	require.NoError(t, err)
	require.Less(t, spent(), 2*time.Second)
	require.Contains(t, imagetest.Codes(issues, ondisk.Broken), "vhd-tables")
}
