//go:build linux || windows

package hostile

import (
	"fmt"
	"slices"
	"testing"

	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
)

// vhdDisk is the common disk as a dynamic VHD of one block, with one change.
func vhdDisk(change func(v *vhdforge.File)) Writer {
	return vhdOf(func() *vhdforge.File { return vhdforge.New(Disk(), vhdforge.Layout{ID: 5}) }, change)
}

// fixedVHD is the common disk as a fixed VHD.
func fixedVHD(change func(v *vhdforge.File)) Writer {
	return vhdOf(func() *vhdforge.File { return vhdforge.NewFixed(Disk()) }, change)
}

// twoBlockVHD has a second block after it.
func twoBlockVHD(change func(v *vhdforge.File)) Writer {
	return vhdOf(func() *vhdforge.File {
		return vhdforge.New(append(Disk(), bytesOf(7, 2<<20)...), vhdforge.Layout{ID: 5})
	}, change)
}

func vhdOf(forged func() *vhdforge.File, change func(v *vhdforge.File)) Writer {
	return func(t testing.TB, dir string) string {
		t.Helper()
		v := forged()
		change(v)
		return writeForged("disk.vhd", v.Bytes)(t, dir)
	}
}

// VHD returns images with wrong footers, headers, tables or parents.
func VHD() []Row {
	return slices.Concat(vhdFooters(), vhdSizes(), vhdMarks(), vhdHeaders(), vhdEntries(), vhdParents())
}

// vhdFooters are footers with which no disk can be read.
func vhdFooters() []Row {
	var out []Row
	foot := func(name, code string, set func(v *vhdforge.File, off int64), says ...string) {
		change := func(v *vhdforge.File) { v.Foot(func(off int64) { set(v, off) }) }
		out = append(out,
			unread("T29 dynamic, "+name, code, vhdDisk(change), append(says, "vhd footer at 0x")...),
			unread("T29 fixed, "+name, code, fixedVHD(change), append(says, "vhd footer at 0x2000")...))
	}
	for _, n := range []uint64{0, 513, 1 << 63, 1<<64 - 512} {
		foot(fmt.Sprintf("current size %d", n), "format",
			func(v *vhdforge.File, off int64) { v.BE64(off+vhdforge.CurrentSize, n) },
			fmt.Sprint("current size ", n, ", want"))
	}
	for _, n := range []uint32{0, 6} {
		foot(fmt.Sprintf("type %d", n), "format", func(v *vhdforge.File, off int64) { v.BE32(off+vhdforge.Type, n) },
			fmt.Sprintf("disk type %d, want 2 (fixed), 3 (dynamic) or 4 (differencing)", n))
	}
	foot("version 2", "unsupported", func(v *vhdforge.File, off int64) { v.BE32(off+vhdforge.Version, 2<<16) },
		"file format version 0x20000")
	sums := func(v *vhdforge.File) {
		v.U8(v.Footer+200, 1)
		v.U8(200, 1)
	}
	const has, want = "checksum 0x", ", want 0x"
	out = append(out,
		unread("T29 checksums of both footers", "format", vhdDisk(sums), has, want, "vhd footer at 0x200a40"),
		unread("T29 checksum of a fixed disk", "format", fixedVHD(sums), has, want, "vhd footer at 0x200040"),
		unread("T28 checksum of a footer of 511 bytes", "format", fixedVHD(func(v *vhdforge.File) {
			sums(v)
			v.Bytes = v.Bytes[:len(v.Bytes)-1]
		}), has, want, "vhd footer at 0x200040"))
	for _, n := range []uint64{0, 511, 1 << 40, 1<<64 - 1} {
		out = append(out, unread(fmt.Sprintf("T29 data offset %d", n), "format", vhdDisk(func(v *vhdforge.File) {
			v.Foot(func(off int64) { v.BE64(off+vhdforge.DataOffset, n) })
		}), fmt.Sprintf("data offset %d, want", n), "vhd footer at 0x200a10"))
	}
	return out
}

// vhdSizes are possible sizes that this disk does not have.
func vhdSizes() []Row {
	row := func(name string, n uint64, image func(func(v *vhdforge.File)) Writer, says ...string) Row {
		return unread("T29 "+name, "format", image(func(v *vhdforge.File) {
			v.Foot(func(off int64) { v.BE64(off+vhdforge.CurrentSize, n) })
		}), says...)
	}
	const header, footer = "vhd dynamic header at 0x21c", "vhd footer at 0x200030"
	return []Row{
		row("dynamic, current size 2^60", 1<<60, vhdDisk, header, "max table entries 1, want at least 549755813888"),
		row("fixed, current size 2^60", 1<<60, fixedVHD, footer,
			"current size 1152921504606846976, want at most the 2097152 bytes"),
		row("more blocks than the table has", 2<<20+512, vhdDisk, header, "max table entries 1, want at least 2"),
		row("one sector more than the file has", 2<<20+512, fixedVHD, footer,
			"current size 2097664, want at most the 2097152 bytes in front of the footer"),
	}
}

// vhdMarks are readable footers: the disk is shown, a copy is refused.
func vhdMarks() []Row {
	saved := func(v *vhdforge.File) { v.Foot(func(off int64) { v.U8(off+vhdforge.SavedState, 1) }) }
	return []Row{
		kept("T28 footers that disagree", "format", vhdDisk(func(v *vhdforge.File) {
			last := *v
			last.Header = 0 // so that only the last footer is changed
			last.Foot(func(off int64) { v.U8(off+90, 1) })
		}), "vhd footer at 0x200a00", "0x0 disagree", "byte 67"),
		kept("T28 damaged last footer", "format", vhdDisk(func(v *vhdforge.File) { v.U8(v.Footer+200, 1) }),
			"vhd footer at 0x200a40", "checksum", "copy at 0x0 is used"),
		kept("T28 last footer cut off", "format", vhdDisk(func(v *vhdforge.File) { v.Bytes = v.Bytes[:v.Footer] }),
			"cookie", "copy at 0x0 is used"),
		kept("T28 damaged copy", "format", vhdDisk(func(v *vhdforge.File) { v.U8(200, 1) }),
			"copy of the vhd footer at 0x0", "checksum", "footer at 0x200a00 is used"),
		kept("T28 no copy", "format", vhdDisk(func(v *vhdforge.File) { clear(v.Bytes[:512]) }),
			"copy of the vhd footer at 0x0", "cookie", "footer at 0x200a00 is used"),
		kept("T29 saved state, dynamic", "busy", vhdDisk(saved), "suspended"),
		kept("T29 saved state, fixed", "busy", fixedVHD(saved), "suspended"),
	}
}

// vhdHeaders are dynamic headers.
func vhdHeaders() []Row {
	var out []Row
	head := func(name, code string, set func(v *vhdforge.File, off int64), says ...string) {
		out = append(out, unread("T30 "+name, code, vhdDisk(func(v *vhdforge.File) {
			v.Head(func(off int64) { set(v, off) })
		}), append(says, "vhd dynamic header at 0x2")...))
	}
	for _, n := range []uint32{0, 3, 512, 2048, 3 << 20, 512 << 20, 1 << 31, 1<<32 - 1} {
		head(fmt.Sprintf("block size %d", n), "format",
			func(v *vhdforge.File, off int64) { v.BE32(off+vhdforge.BlockSize, n) },
			fmt.Sprintf("block size %d, want a power of two", n))
	}
	for _, n := range []uint64{0, 508, 1 << 40, 1<<63 - 1, 1 << 63, 1<<64 - 1} {
		head(fmt.Sprintf("table offset %d", n), "format",
			func(v *vhdforge.File, off int64) { v.BE64(off+vhdforge.TableOffset, n) },
			fmt.Sprintf("table offset %d, want", n))
	}
	head("max entries 2^32-1", "format", func(v *vhdforge.File, off int64) { v.BE32(off+vhdforge.MaxEntries, 1<<32-1) },
		"a place for 4294967295 entries")
	head("max entries 0", "format", func(v *vhdforge.File, off int64) { v.BE32(off+vhdforge.MaxEntries, 0) },
		"max table entries 0, want at least 1")
	for _, into := range []int64{0, 1020} {
		head(fmt.Sprintf("table at byte %d of the header", into), "format", func(v *vhdforge.File, off int64) {
			v.BE64(off+vhdforge.TableOffset, uint64(off+into))
		}, "apart from the dynamic header")
	}
	head("table at the last footer", "format", func(v *vhdforge.File, off int64) {
		v.BE64(off+vhdforge.TableOffset, uint64(v.Footer))
	}, "table offset 2099712, want")
	head("version 2", "unsupported", func(v *vhdforge.File, off int64) { v.BE32(off+vhdforge.HeaderVer, 2<<16) },
		"header version 0x20000")
	head("cookie", "format", func(v *vhdforge.File, off int64) { v.U8(off, 'C') }, `cookie "Cxsparse"`)
	return append(out,
		unread("T30 table over the last footer", "format", twoBlockVHD(func(v *vhdforge.File) {
			v.Head(func(off int64) { v.BE64(off+vhdforge.TableOffset, uint64(v.Footer-4)) })
		}), "vhd dynamic header at 0x210", "a place for 2 entries"),
		unread("T30 checksum of the header", "format", vhdDisk(func(v *vhdforge.File) { v.U8(v.Header+800, 1) }),
			"vhd dynamic header at 0x224", "checksum 0x"))
}

// vhdEntries are tables with an invalid entry for the second of two blocks.
func vhdEntries() []Row {
	entry := func(name string, at func(v *vhdforge.File) int64, says ...string) Row {
		return broken("T30 entry at "+name, "format",
			twoBlockVHD(func(v *vhdforge.File) { v.BE32(v.BAT+4, uint32(at(v)/512)) }), says...)
	}
	const bat = "vhd block allocation table at 0x604"
	return []Row{
		entry("the footer's copy", func(*vhdforge.File) int64 { return 0 }, bat, "entry 0,",
			"apart from the metadata at 0x0"),
		entry("the header", func(v *vhdforge.File) int64 { return v.Header }, bat, "entry 1,",
			"apart from the metadata at 0x200"),
		entry("the end of the header", func(v *vhdforge.File) int64 { return v.Header + 512 }, bat, "entry 2,",
			"apart from the metadata at 0x200"),
		entry("the table", func(v *vhdforge.File) int64 { return v.BAT }, bat, "entry 3,",
			"apart from the metadata at 0x600"),
		entry("the last footer", func(v *vhdforge.File) int64 { return v.Footer }, bat, "fit in front of byte"),
		entry("one sector over the last footer", func(v *vhdforge.File) int64 { return v.Blocks[1] + 512 }, bat,
			"fit in front of byte"),
		entry("2^41 bytes", func(*vhdforge.File) int64 { return 0xfffffffe * 512 }, bat, "entry 4294967294,",
			"fit in front of byte"),
		entry("another block", func(v *vhdforge.File) int64 { return v.Blocks[0] }, "1 blocks at a place in use"),
		entry("half of another block", func(v *vhdforge.File) int64 { return v.Blocks[0] + 1<<20 },
			"1 blocks at a place in use"),
	}
}

// vhdParents are differencing disks. The parent names lead nowhere, and a child is not a disk without its parent;
// qemu-img reads it as a whole one.
func vhdParents() []Row {
	child := func(name, parent string, change func(v *vhdforge.File), says string) Row {
		return refused("T31 "+name, vhdOf(func() *vhdforge.File {
			return vhdforge.New(Disk(), vhdforge.Layout{ID: 5, Parent: &vhdforge.Parent{
				ID: 6, Name: parent, Absolute: `C:\x\gone.vhd`,
			}})
		}, change), says)
	}
	locator := func(at int64, n uint32) func(v *vhdforge.File) {
		return func(v *vhdforge.File) { v.Head(func(off int64) { v.BE32(off+vhdforge.Locators+at, n) }) }
	}
	const etc, one = "/etc/shadow", `there is no "shadow" in its folder`
	return []Row{
		child(etc, etc, func(*vhdforge.File) {}, `there is no "gone.vhd" and no "shadow" in its folder`),
		child("locator of 2^32-1 bytes", etc, locator(8, 1<<32-1), one),
		child("locator of 100 KiB", etc, locator(8, 100<<10), one),
		child("locator beyond the file", etc, func(v *vhdforge.File) {
			v.Head(func(off int64) { v.BE64(off+vhdforge.Locators+16, 1<<63+5) })
		}, one),
		child("no name", "", locator(0, 0), "does not name it"),
	}
}
