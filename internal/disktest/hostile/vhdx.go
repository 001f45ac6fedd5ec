//go:build linux || windows

package hostile

import (
	"fmt"
	"slices"
	"testing"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdxforge"
)

// vhdxDisk is the common disk as a dynamic VHDX, with one change and valid checksums.
func vhdxDisk(change func(v *vhdxforge.File)) Writer {
	return func(t testing.TB, dir string) string {
		t.Helper()
		disk := Disk()
		v := vhdxforge.New(vhdxforge.Layout{Size: int64(len(disk))}).Fill(disk)
		change(v)
		return writeForged("disk.vhdx", v.Seal().Bytes)(t, dir)
	}
}

// spoiled is vhdxDisk with a change that does not update the checksums.
func spoiled(change func(v *vhdxforge.File)) Writer {
	return func(t testing.TB, dir string) string {
		t.Helper()
		disk := Disk()
		v := vhdxforge.New(vhdxforge.Layout{Size: int64(len(disk))}).Fill(disk)
		change(v)
		return writeForged("disk.vhdx", v.Bytes)(t, dir)
	}
}

// both sets a field in both headers.
func both(at int64, set func(v *vhdxforge.File, at int64)) func(v *vhdxforge.File) {
	return func(v *vhdxforge.File) {
		set(v, vhdxforge.Header1+at)
		set(v, vhdxforge.Header2+at)
	}
}

// VHDX returns images with wrong headers, logs, regions, tables or parents.
func VHDX() []Row {
	return slices.Concat(vhdxHeaders(), vhdxLogs(), vhdxRegions(), vhdxItems(), vhdxParents(), vhdxBlocks())
}

func vhdxHeaders() []Row {
	format := func(name string, image Writer, says ...string) Row {
		return unread("T32 "+name, "format", image, says...)
	}
	return []Row{
		format("both checksums wrong", spoiled(both(8, func(v *vhdxforge.File, at int64) { v.U64(at, 1000) })),
			"vhdx header at 0x10004", "checksum 0x"),
		format("no signature", vhdxDisk(both(0, func(v *vhdxforge.File, at int64) { v.Text(at, "tail") })),
			"vhdx header at 0x10000", `signature "tail"`),
		format("equal numbers, different content", vhdxDisk(func(v *vhdxforge.File) {
			v.U64(vhdxforge.Header1+vhdxforge.Sequence, 8)
			v.U8(vhdxforge.Header1+100, 1)
		}),
			"vhdx header at 0x20008", "sequence number 8", "whose content differs"),
		format("sequence 2^64-1", vhdxDisk(func(v *vhdxforge.File) {
			v.U64(vhdxforge.Header2+vhdxforge.Sequence, 1<<64-1)
		}), "vhdx header at 0x20008", "sequence number 18446744073709551615"),
		format("version 2", vhdxDisk(both(vhdxforge.Version, func(v *vhdxforge.File, at int64) { v.U16(at, 2) })),
			"vhdx header at 0x20042", "version 2, want 1"),
		format("cut behind the identifier", writeForged("disk.vhdx", forge.Bytes("vhdxfile")), "vhdx header at 0x10000",
			"file size 8"),
	}
}

func vhdxLogs() []Row {
	format := func(name string, change func(v *vhdxforge.File), says ...string) Row {
		return unread("T33 "+name, "format", vhdxDisk(change), says...)
	}
	return []Row{
		format("dirty and empty", func(v *vhdxforge.File) { v.Dirty(0) }, "vhdx log at 0x100000",
			"want a sequence to replay"),
		format("log length 0", func(v *vhdxforge.File) {
			v.Dirty(0)
			both(vhdxforge.LogLength, func(v *vhdxforge.File, at int64) { v.U32(at, 0) })(v)
		}, "vhdx header at 0x20044", "log length 0"),
		format("log length near 4 GiB", both(vhdxforge.LogLength,
			func(v *vhdxforge.File, at int64) { v.U32(at, 0xfff00000) }), "vhdx header at 0x20048",
			"log offset 1048576", "4293918720 bytes fit"),
		format("odd log length", both(vhdxforge.LogLength, func(v *vhdxforge.File, at int64) { v.U32(at, 1<<20+4096) }),
			"vhdx header at 0x20044", "log length 1052672"),
		format("log in the header section", both(vhdxforge.LogOffset,
			func(v *vhdxforge.File, at int64) { v.U64(at, 0) }), "vhdx header at 0x20048", "log offset 0"),
		format("log offset that wraps", both(vhdxforge.LogOffset,
			func(v *vhdxforge.File, at int64) { v.U64(at, 1<<64-1<<20) }), "log offset 18446744073708503040"),
		format("log version 1", func(v *vhdxforge.File) {
			v.Dirty(0)
			both(vhdxforge.LogVersion, func(v *vhdxforge.File, at int64) { v.U16(at, 1) })(v)
		}, "vhdx header at 0x20040", "log version 1"),
		format("log in the BAT", func(v *vhdxforge.File) {
			both(vhdxforge.LogOffset, func(_ *vhdxforge.File, at int64) { v.U64(at, uint64(v.BAT)) })(v)
		}, "vhdx region table at 0x300000", "want a place apart from the"),
	}
}

func vhdxRegions() []Row {
	regions := func(name, code string, says []string, change func(bat, meta vhdxforge.Region) []vhdxforge.Region) Row {
		return unread("T34 "+name, code, vhdxDisk(func(v *vhdxforge.File) {
			bat := vhdxforge.Region{GUID: vhdxforge.RegionBAT, Off: uint64(v.BAT), Len: 1 << 20, Required: 1}
			meta := vhdxforge.Region{GUID: vhdxforge.RegionMetadata, Off: uint64(v.Metadata), Len: 1 << 20, Required: 1}
			v.SetRegions(change(bat, meta)...)
		}), says...)
	}
	type list = []vhdxforge.Region
	const other = "01234567-89ab-cdef-0123-456789abcdef"
	return []Row{
		unread("T34 2048 regions", "format", vhdxDisk(func(v *vhdxforge.File) {
			v.U32(vhdxforge.Regions1+8, 2048)
			v.U32(vhdxforge.Regions2+8, 2048)
		}), "vhdx region table at 0x30008", "entry count 2048"),
		kept("T34 region tables that differ", "format", vhdxDisk(func(v *vhdxforge.File) {
			v.U8(vhdxforge.Regions2+5000, 1)
		}), "two region tables"),
		regions("overlap", "format", []string{"BAT", "want a place apart from the metadata"},
			func(bat, meta vhdxforge.Region) list {
				bat.Off = meta.Off
				return list{meta, bat}
			}),
		regions("duplicate", "format", []string{"want each region once"},
			func(bat, meta vhdxforge.Region) list { return list{bat, meta, bat} }),
		regions("unknown required", "unsupported", []string{other, "required"},
			func(bat, meta vhdxforge.Region) list {
				return list{bat, meta, {GUID: other, Off: 100 << 20, Len: 1 << 20, Required: 1}}
			}),
		regions("no BAT", "format", []string{"region", "none"},
			func(_, meta vhdxforge.Region) list { return list{meta} }),
		regions("beyond the file", "format", []string{"file offset 1125899906842624"},
			func(bat, meta vhdxforge.Region) list {
				bat.Off = 1 << 50
				return list{bat, meta}
			}),
		regions("odd offset", "format", []string{"file offset 3149824", "multiple of 1 MiB"},
			func(bat, meta vhdxforge.Region) list {
				bat.Off += 4096
				return list{bat, meta}
			}),
		regions("length 0", "format", []string{"length 0"}, func(bat, meta vhdxforge.Region) list {
			bat.Len = 0
			return list{bat, meta}
		}),
	}
}

func vhdxItems() []Row {
	item := func(name, code string, change func(v *vhdxforge.File), says ...string) Row {
		return unread("T34 "+name, code, vhdxDisk(change), says...)
	}
	out := []Row{
		item("2048 items", "format", func(v *vhdxforge.File) { v.U16(v.Metadata+10, 2048) },
			"vhdx metadata at 0x20000a", "entry count 2048"),
		item("no metadata", "format", func(v *vhdxforge.File) { v.Text(v.Metadata, "nothing.") },
			"vhdx metadata at 0x200000", `signature "nothing."`),
		item("offset and length over 2^32", "format", func(v *vhdxforge.File) {
			v.AddItem(vhdxforge.DataWriteGUID, 0, nil)
			v.U32(v.ItemEntry(5)+16, 1<<32-1)
			v.U32(v.ItemEntry(5)+20, 100)
		}, "offset 4294967295"),
		item("item below 64 KiB", "format", func(v *vhdxforge.File) { v.U32(v.ItemEntry(0)+16, 4096) },
			"offset 4096, want from 65536 on"),
		item("items that overlap", "format", func(v *vhdxforge.File) { v.U32(v.ItemEntry(1)+16, 65540) },
			"want a place apart from item"),
		item("item twice", "format", func(v *vhdxforge.File) { v.AddItem(vhdxforge.DiskSize, 6, make([]byte, 8)) },
			"want each item once"),
		item("item too short", "format", func(v *vhdxforge.File) { v.U32(v.ItemEntry(1)+20, 4) }, "length of item",
			"4, want 8"),
		item("item missing", "format", func(v *vhdxforge.File) { v.U16(v.Metadata+10, 4) }, "item", "none",
			"cda348c7-445d-4471-9cc9-e9885251c556"),
		item("unknown required", "unsupported", func(v *vhdxforge.File) {
			v.AddItem(vhdxforge.DataWriteGUID, 4, []byte("?"))
		}, vhdxforge.DataWriteGUID, "required"),
		item("logical sector 513", "format", func(v *vhdxforge.File) { v.U32(v.Item(vhdxforge.Logical), 513) },
			"logical sector size 513, want 512 or 4096"),
		item("physical sector 0", "format", func(v *vhdxforge.File) { v.U32(v.Item(vhdxforge.Physical), 0) },
			"physical sector size 0, want 512 or 4096"),
		item("disk too large for its BAT", "format",
			func(v *vhdxforge.File) { v.U64(v.Item(vhdxforge.DiskSize), 64<<40) },
			"length of the BAT 1048576, want at least"),
	}
	for _, n := range []uint32{0, 3 << 20, 512 << 20, 512 << 10, 1<<32 - 1} {
		out = append(out, item(fmt.Sprintf("block size %d", n), "format",
			func(v *vhdxforge.File) { v.U32(v.Item(vhdxforge.Parameters), n) },
			fmt.Sprintf("block size %d, want a power of two", n)))
	}
	for _, n := range []uint64{0, 1<<64 - 512, 64<<40 + 512, 1000} {
		out = append(out, item(fmt.Sprintf("disk size %d", n), "format",
			func(v *vhdxforge.File) { v.U64(v.Item(vhdxforge.DiskSize), n) }, fmt.Sprintf("virtual disk size %d, want",
				n)))
	}
	return out
}

func vhdxParents() []Row {
	child := func(name, code string, pairs map[string]string, says ...string) Row {
		r := unread("T35 "+name, code, func(t testing.TB, dir string) string {
			t.Helper()
			v := vhdxforge.New(vhdxforge.Layout{Size: 1 << 20, Parent: pairs})
			if pairs == nil {
				v.U32(v.Item(vhdxforge.Parameters)+4, 2)
			}
			return writeForged("child.avhdx", v.Bytes)(t, dir)
		}, says...)
		if code == "reference" {
			r.End = Refused
		}
		return r
	}
	const link = "{" + vhdxforge.DiskIDGUID + "}"
	return []Row{
		child("paths that lead elsewhere", "reference", map[string]string{
			"parent_linkage": link, "relative_path": `..\..\etc\shadow`, "absolute_win32_path": `\\?\c:\windows\sam`,
		}, "shadow", "missing"),
		child("bit without locator", "reference", nil, "no parent locator names it"),
		child("bad linkage", "format", map[string]string{"parent_linkage": "x", "relative_path": "base.vhdx"},
			"vhdx parent locator", `parent_linkage "x"`),
	}
}

func vhdxBlocks() []Row {
	entry := func(name string, value func(v *vhdxforge.File) uint64, says ...string) Row {
		return broken("T36 "+name, "format", vhdxDisk(func(v *vhdxforge.File) { v.U64(v.Entry(1), value(v)) }),
			says...)
	}
	at := func(state uint64, off int64) func(v *vhdxforge.File) uint64 {
		return func(*vhdxforge.File) uint64 { return state | uint64(off)>>20<<20 }
	}
	return []Row{
		entry("state 4", at(4, 0), "1 BAT entries", "entry 0x4", "state that is not reserved"),
		entry("state 5", at(5, 4<<20), "entry 0x400005", "state that is not reserved"),
		entry("offset 0", at(6, 0), "vhdx BAT at 0x300008", "entry 0x6", "want a place from 1 MiB on"),
		entry("past the end", at(6, 1<<40), "entry 0x10000000006", "want a place from 1 MiB on"),
		entry("offset that wraps", func(*vhdxforge.File) uint64 { return 1<<64 - 1<<20 | 6 },
			"entry 0xfffffffffff00006"),
		entry("in the BAT", func(v *vhdxforge.File) uint64 { return uint64(v.BAT) | 6 },
			"want a place apart from the BAT"),
		entry("twice", func(v *vhdxforge.File) uint64 { return uint64(v.Blocks) | 6 }, "1 blocks at a place in use"),
		entry("partially present", func(v *vhdxforge.File) uint64 { return uint64(v.Blocks) | 7 },
			"no partially present block"),
	}
}
