package main

import (
	"fmt"
	"testing"

	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
)

// vhdDisk is the disk of the other hostile cases as a dynamic VHD of one block, with one thing changed.
func vhdDisk(change func(v *vhdforge.File)) func(testing.TB, string) string {
	return vhdOf(func() *vhdforge.File { return vhdforge.New(xpDisk(), vhdforge.Layout{ID: 5}) }, change)
}

// fixedVHDDisk is the same as a fixed one.
func fixedVHDDisk(change func(v *vhdforge.File)) func(testing.TB, string) string {
	return vhdOf(func() *vhdforge.File { return vhdforge.NewFixed(xpDisk()) }, change)
}

func vhdOf(forge func() *vhdforge.File, change func(v *vhdforge.File)) func(testing.TB, string) string {
	return func(t testing.TB, dir string) string {
		t.Helper()
		v := forge()
		change(v)
		return writeForged("disk.vhd", v.Bytes)(t, dir)
	}
}

// TestHostileVHD tries footers, headers, tables and parents.
func TestHostileVHD(t *testing.T) {
	t.Parallel()
	runHostile(t, vhdFooters(), vhdMarks(), vhdHeaders(), vhdEntries(), vhdParents())
}

// vhdFooters are those that no disk can be read from.
func vhdFooters() []hostile {
	var out []hostile
	foot := func(name, code string, set func(v *vhdforge.File, off int64), says ...string) {
		change := func(v *vhdforge.File) { v.Foot(func(off int64) { set(v, off) }) }
		out = append(out,
			hostile{
				name: "T29 dynamic, " + name, code: code, image: vhdDisk(change),
				says: append(says, "vhd footer at 0x"),
			},
			hostile{
				name: "T29 fixed, " + name, code: code, image: fixedVHDDisk(change),
				says: append(says, "vhd footer at 0x2000"),
			})
	}
	for _, n := range []uint64{0, 513, 1 << 63, 1<<64 - 512} {
		foot(fmt.Sprintf("current size %d", n), "format",
			func(v *vhdforge.File, off int64) { v.BE64(off+vhdforge.CurrentSize, n) },
			fmt.Sprint("current size ", n, ", want"))
	}
	foot("type 6", "format", func(v *vhdforge.File, off int64) { v.BE32(off+vhdforge.Type, 6) },
		"disk type 6, want 2 (fixed), 3 (dynamic) or 4 (differencing)")
	foot("version 2", "unsupported", func(v *vhdforge.File, off int64) { v.BE32(off+vhdforge.Version, 2<<16) },
		"file format version 0x20000")
	sums := func(v *vhdforge.File) {
		v.U8(v.Footer+200, 1)
		v.U8(200, 1)
	}
	says := []string{"checksum 0x", ", want 0x"}
	huge := func(v *vhdforge.File) { v.Foot(func(off int64) { v.BE64(off+vhdforge.CurrentSize, 1<<60) }) }
	return append(out,
		hostile{
			name: "T29 dynamic, current size 2^60", code: "format", image: vhdDisk(huge),
			says: []string{"vhd dynamic header at 0x21c", "max table entries 1, want at least 549755813888"},
		},
		hostile{
			name: "T29 fixed, current size 2^60", code: "format", image: fixedVHDDisk(huge),
			says: []string{
				"vhd footer at 0x200030",
				"current size 1152921504606846976, want at most the 2097152 bytes",
			},
		},
		hostile{
			name: "T29 checksums of both footers", code: "format", image: vhdDisk(sums),
			says: append(says, "vhd footer at 0x"),
		},
		hostile{
			name: "T29 checksum of a fixed disk", code: "format", image: fixedVHDDisk(sums),
			says: append(says, "vhd footer at 0x200040"),
		},
		hostile{
			name: "T28 checksum of a footer of 511 bytes", code: "format",
			says: append(says, "vhd footer at 0x200040"), image: fixedVHDDisk(func(v *vhdforge.File) {
				sums(v)
				v.Bytes = v.Bytes[:len(v.Bytes)-1]
			}),
		})
}

// vhdMarks are footers that can be read: inspect shows the disk, a copy is refused.
func vhdMarks() []hostile {
	mark := func(name, code string, image func(testing.TB, string) string, says ...string) hostile {
		return hostile{name: name, code: code, image: image, inspect: 3, copy: 4, report: true, says: says}
	}
	saved := func(v *vhdforge.File) { v.Foot(func(off int64) { v.U8(off+vhdforge.SavedState, 1) }) }
	return []hostile{
		mark("T28 footers that disagree", "format", vhdDisk(func(v *vhdforge.File) {
			last := *v
			last.Header = 0 // so that only the last footer is changed
			last.Foot(func(off int64) { v.U8(off+90, 1) })
		}), "vhd footer at 0x200a00", "0x0 disagree"),
		mark("T28 damaged last footer", "format", vhdDisk(func(v *vhdforge.File) { v.U8(v.Footer+200, 1) }),
			"vhd footer at 0x200a40", "checksum", "copy at 0x0 is used"),
		mark("T28 damaged copy", "format", vhdDisk(func(v *vhdforge.File) { v.U8(200, 1) }),
			"copy of the vhd footer at 0x0", "checksum"),
		mark("T29 saved state, dynamic", "busy", vhdDisk(saved), "suspended"),
		mark("T29 saved state, fixed", "busy", fixedVHDDisk(saved), "suspended"),
	}
}

// vhdHeaders are dynamic headers.
func vhdHeaders() []hostile {
	var out []hostile
	head := func(name, code string, set func(v *vhdforge.File, off int64), says ...string) {
		out = append(out, hostile{
			name: "T30 " + name, code: code, says: append(says, "vhd dynamic header at 0x2"),
			image: vhdDisk(func(v *vhdforge.File) {
				v.Head(func(off int64) { set(v, off) })
			}),
		})
	}
	for _, n := range []uint32{0, 3, 512, 3 << 20, 512 << 20, 1 << 31, 1<<32 - 1} {
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
	head("table inside the header", "format", func(v *vhdforge.File, off int64) {
		v.BE64(off+vhdforge.TableOffset, uint64(off))
	}, "apart from the dynamic header")
	head("table in the last footer", "format", func(v *vhdforge.File, off int64) {
		v.BE64(off+vhdforge.TableOffset, uint64(v.Footer))
	}, "table offset")
	head("version 2", "unsupported", func(v *vhdforge.File, off int64) { v.BE32(off+vhdforge.HeaderVer, 2<<16) },
		"header version 0x20000")
	return append(out, hostile{
		name: "T30 checksum of the header", code: "format",
		image: vhdDisk(func(v *vhdforge.File) { v.U8(v.Header+800, 1) }), says: []string{
			"vhd dynamic header at 0x224",
			"checksum 0x",
		},
	})
}

// vhdEntries are tables with an entry that leads nowhere, of the second of two blocks.
func vhdEntries() []hostile {
	two := func() *vhdforge.File {
		disk := append(xpDisk(), noise("second block", 2<<20)...)
		return vhdforge.New(disk, vhdforge.Layout{})
	}
	entry := func(name string, at func(v *vhdforge.File) int64, says ...string) hostile {
		return hostile{
			name: "T30 entry at " + name, code: "format", report: true, says: says,
			image: vhdOf(two, func(v *vhdforge.File) { v.BE32(v.BAT+4, uint32(at(v)/512)) }),
		}
	}
	bat := "vhd block allocation table at 0x604"
	return []hostile{
		entry("the footer's copy", func(*vhdforge.File) int64 { return 0 }, bat, "entry 0,",
			"apart from the metadata at 0x0"),
		entry("the header", func(v *vhdforge.File) int64 { return v.Header }, bat, "entry 1,",
			"apart from the metadata at 0x200"),
		entry("the table", func(v *vhdforge.File) int64 { return v.BAT }, bat, "entry 3,",
			"apart from the metadata at 0x600"),
		entry("the last footer", func(v *vhdforge.File) int64 { return v.Footer }, bat, "fit in front of byte"),
		entry("2^41 bytes", func(*vhdforge.File) int64 { return 0xfffffffe * 512 }, bat, "entry 4294967294,",
			"fit in front of byte"),
		entry("another block", func(v *vhdforge.File) int64 { return v.Blocks[0] }, "1 blocks at a place in use"),
		entry("half of another block", func(v *vhdforge.File) int64 { return v.Blocks[0] + 1<<20 },
			"1 blocks at a place in use"),
	}
}

// vhdParents are differencing disks. The names lead nowhere, and a child is no disk without its parent.
func vhdParents() []hostile {
	child := func(name, parent string, change func(v *vhdforge.File), says ...string) hostile {
		return hostile{name: "T31 " + name, code: "reference", copy: 4, says: says, image: vhdOf(func() *vhdforge.File {
			return vhdforge.New(xpDisk(), vhdforge.Layout{ID: 5, Parent: &vhdforge.Parent{
				ID: 6, Name: parent, Absolute: `C:\x\gone.vhd`,
			}})
		}, change)}
	}
	locator := func(at int64, n uint32) func(v *vhdforge.File) {
		return func(v *vhdforge.File) { v.Head(func(off int64) { v.BE32(off+vhdforge.Locators+at, n) }) }
	}
	return []hostile{
		child("/etc/shadow", "/etc/shadow", func(*vhdforge.File) {}, "refused",
			`no "gone.vhd" and no "shadow" in its folder`),
		child("locator of 2^32-1 bytes", "/etc/shadow", locator(8, 1<<32-1), "refused", `no "shadow" in its folder`),
		child("locator beyond the file", "/etc/shadow", func(v *vhdforge.File) {
			v.Head(func(off int64) { v.BE64(off+vhdforge.Locators+16, 1<<63+5) })
		}, "refused", `no "shadow" in its folder`),
		child("no name", "", locator(0, 0), "refused", "does not name that"),
	}
}
