package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
)

// extentDisk is a descriptor of one extent, x.vmdk, with one thing changed in that.
func extentDisk(createType, word string, forged func() forge.Bytes, change func(f forge.Bytes)) func(testing.TB,
	string) string {
	return func(t testing.TB, dir string) string {
		t.Helper()
		f := forged()
		change(f)
		f.Write(t, filepath.Join(dir, "x.vmdk"))
		return writeText("disk.vmdk", vmdkforge.Descriptor(createType, fmt.Sprintf(`RW %d %s "x.vmdk"`, xpSectors,
			word)))(t, dir)
	}
}

func cowdDisk(change func(f forge.Bytes)) func(testing.TB, string) string {
	return extentDisk("vmfsSparse", "VMFSSPARSE", func() forge.Bytes {
		return vmdkforge.NewCOWD(xpDisk(), 1, nil).Bytes
	}, change)
}

func seSparseDisk(change func(f forge.Bytes)) func(testing.TB, string) string {
	return extentDisk("seSparse", "SESPARSE", func() forge.Bytes {
		return vmdkforge.NewSESparse(xpDisk(), 0, nil).Bytes
	}, change)
}

// splitDisk has an extent of the hosted kind, which is that of a disk in one file but for its text.
func splitDisk(change func(f forge.Bytes)) func(testing.TB, string) string {
	return extentDisk("twoGbMaxExtentSparse", "SPARSE", func() forge.Bytes {
		v := vmdkforge.NewSparse(xpDisk())
		v.SetDescriptor("")
		return v.Bytes
	}, change)
}

// extentCase names the extent in all messages.
func extentCase(name, code string, image func(testing.TB, string) string, says ...string) hostile {
	return hostile{name: name, code: code, image: image, says: append(says, `"x.vmdk"`)}
}

func put32(at int64, n uint32) func(f forge.Bytes) {
	return func(f forge.Bytes) { f.U32(at, n) }
}

func put64(at int64, n uint64) func(f forge.Bytes) {
	return func(f forge.Bytes) { f.U64(at, n) }
}

// TestHostileExtents tries extents of split disks, COWD and SESparse.
func TestHostileExtents(t *testing.T) {
	t.Parallel()
	runHostile(t, splitExtents(), cowdExtents(), seSparseExtents(), extentTables())
}

func splitExtents() []hostile {
	row := func(name, code string, change func(f forge.Bytes), says ...string) hostile {
		return extentCase("split, "+name, code, splitDisk(change), says...)
	}
	return []hostile{
		row("T14 grain size 3", "format", put64(vmdkforge.GrainSize, 3), "at 0x14", "grain size 3, want"),
		row("T15 511 entries", "format", put32(vmdkforge.NumGTEs, 511), "at 0x2c", "numGTEsPerGT 511, want 512"),
		row("T16 capacity 2^63", "format", put64(vmdkforge.Capacity, 1<<63), "at 0xc",
			"capacity 9223372036854775808, want"),
		row("T18 gdOffset 2^40", "format", put64(vmdkforge.GDOffset, 1<<40), "at 0x38",
			"grain directory offset 1099511627776, want"),
		row("T21 text mode", "format", put32(vmdkforge.NewLine, 0), "at 0x49", "text mode"),
		row("T25 version 9", "format", put32(vmdkforge.Version, 9), "at 0x4", "version 9"),
		row("T25 unknown flag", "unsupported", put32(vmdkforge.Flags, 1<<20|1), "at 0x8", "flags 0x100001"),
		row("T05 hidden descriptor", "format", func(f forge.Bytes) {
			f.U64(vmdkforge.Capacity, 0)
			f.Text(512, flatOf("/etc/shadow"))
		}, "at 0xc", "capacity 0, want"),
	}
}

// cowdExtents are broken COWD extents.
func cowdExtents() []hostile {
	row := func(name, code string, change func(f forge.Bytes), says ...string) hostile {
		return extentCase("T26 "+name, code, cowdDisk(change), append(says, "vmdk COWD header at 0x")...)
	}
	return []hostile{
		row("numGDEntries 2^32-1", "format", put32(vmdkforge.COWDNumGDEntries, 1<<32-1), "at 0x14",
			"a sector from which 17179869180 bytes fit"),
		row("numGDEntries 0", "format", put32(vmdkforge.COWDNumGDEntries, 0), "at 0x18",
			"numGDEntries 0, want at least 1"),
		row("most sectors", "format", put32(vmdkforge.COWDNumSectors, 1<<32-1), "at 0x18", "want at least 1048576"),
		row("grain size 0", "format", put32(vmdkforge.COWDGrainSize, 0), "at 0x10", "grainSize 0, want"),
		row("grain size 3", "format", put32(vmdkforge.COWDGrainSize, 3), "at 0x10", "grainSize 3, want"),
		row("gdOffset past the end", "format", put32(vmdkforge.COWDGDOffset, 1<<32-1), "at 0x14",
			"gdOffset 4294967295, want"),
		row("gdOffset in the header", "format", put32(vmdkforge.COWDGDOffset, 3), "at 0x14", "apart from the header"),
		row("version 2", "format", put32(vmdkforge.COWDVersion, 2), "at 0x4", "version 2, want 1"),
		row("child", "unsupported", put32(vmdkforge.COWDFlags, 2), "at 0x8", "flags 0x2 of a child"),
		row("unknown flag", "unsupported", put32(vmdkforge.COWDFlags, 7), "at 0x8", "flags 0x7"),
	}
}

// seSparseExtents are broken SESparse extents.
func seSparseExtents() []hostile {
	row := func(name, code string, change func(f forge.Bytes), says ...string) hostile {
		return extentCase("T27 "+name, code, seSparseDisk(change), says...)
	}
	const volatile = 512
	return []hostile{
		row("journal to replay", "unsupported", put64(volatile+vmdkforge.SEReplayJournal, 1), "at 0x218",
			"replay_journal is 1"),
		row("grain size 16", "format", put64(vmdkforge.SEGrainSize, 16), "at 0x18", "grain size 16, want 8"),
		row("table size 32", "format", put64(vmdkforge.SETableSize, 32), "at 0x20", "grain table size 32, want 64"),
		row("version 1", "format", put64(vmdkforge.SEVersion, 1), "at 0x8", "version 0x1, want 0x200000001"),
		row("capacity 2^63", "format", put64(vmdkforge.SECapacity, 1<<63), "at 0x10",
			"capacity 9223372036854775808, want"),
		row("unknown flag", "unsupported", put64(vmdkforge.SEFlags, 1), "at 0x28", "flags 0x1"),
		row("volatile header that overflows", "format", put64(vmdkforge.SEVolatile, 1<<55), "at 0x50",
			"volatile header offset 36028797018963968, want"),
		row("directory that overflows", "format", put64(vmdkforge.SEGrainDir, 1<<63+1), "at 0x80",
			"grain directory offset 9223372036854775809, want"),
		row("tables that overflow", "format", put64(vmdkforge.SEGrainTables, 1<<55+1), "at 0x90",
			"grain tables offset 36028797018963969, want"),
		row("grains that overflow", "format", put64(vmdkforge.SEGrains, 1<<64-1), "at 0xc0",
			"grains offset 18446744073709551615, want"),
	}
}

// extentTables are broken in single entries: inspect reports them.
func extentTables() []hostile {
	se := vmdkforge.NewSESparse(xpDisk(), 0, nil)
	cowd := vmdkforge.NewCOWD(xpDisk(), 1, nil)
	row := func(name string, image func(testing.TB, string) string, says ...string) hostile {
		h := extentCase(name, "format", image, says...)
		h.report = true
		return h
	}
	last := se.GT + 8*(xpSectors/8-1)
	stored := cowd.Tables[0] + 4*100
	return []hostile{
		row("T27 unknown kind of grain", seSparseDisk(put64(last, 4<<60)), "1 grains outside",
			"entry 0x4000000000000000"),
		row("T27 grain past the end", seSparseDisk(put64(last, 3<<60|1)), "1 grains outside",
			"entry 0x3000000000000001"),
		row("T27 grain at an offset that overflows", seSparseDisk(put64(last, 1<<62-1)), "1 grains outside",
			"entry 0x3fffffffffffffff"),
		row("T27 grain twice", seSparseDisk(put64(last, 3<<60|8<<48)), "1 grains at a place in use"),
		row("T26 grain past the end", cowdDisk(put32(stored, 1<<30)), "1 grains outside", "entry 1073741824"),
		row("T26 grain in the header", cowdDisk(put32(stored, 2)), "1 grains outside", "entry 2,"),
	}
}

// streamDisk is a disk as ovftool writes it, with one thing changed.
func streamDisk(change func(v *vmdkforge.Stream)) func(testing.TB, string) string {
	return func(t testing.TB, dir string) string {
		t.Helper()
		v := vmdkforge.NewStream(xpDisk(), vmdkforge.StreamLayout{})
		change(v)
		return writeForged("disk.vmdk", v.Bytes)(t, dir)
	}
}

// TestHostileStreams is about files; TestHostileGrains, TestHostileMarkers and TestHostileFooters of the format hold
// the same for streams, and their markers.
func TestHostileStreams(t *testing.T) {
	t.Parallel()
	runHostile(t, streamGrains())
	runHostile(t, streamHeaders())
}

// streamGrains are bombs in the first grain, which holds the partition table: nothing can be shown.
func streamGrains() []hostile {
	row := func(name string, pack func(data []byte) []byte, says ...string) hostile {
		return hostile{
			name: "T22 " + name, code: "format", says: append(says, "vmdk"),
			image: func(t testing.TB, dir string) string {
				t.Helper()
				v := vmdkforge.NewStream(xpDisk(), vmdkforge.StreamLayout{Pack: func(grain int64, data []byte) []byte {
					if grain == 0 {
						return pack(data)
					}
					return vmdkforge.Deflated(data)
				}})
				return writeForged("disk.vmdk", v.Bytes)(t, dir)
			},
		}
	}
	return []hostile{
		row("grain of 256 MiB", func([]byte) []byte { return vmdkforge.Deflated(make([]byte, 256<<20)) },
			"vmdk marker at 0x2a08", "want 1 to 131072 bytes"),
		row("grain of 128 MiB", func([]byte) []byte { return vmdkforge.Deflated(make([]byte, 128<<20)) },
			"65536 bytes"),
		row("grain of a byte too much", func(data []byte) []byte {
			return vmdkforge.Deflated(append(bytes.Clone(data), 0))
		}, "65536 bytes"),
		row("grain that is too short", func(data []byte) []byte { return vmdkforge.Deflated(data[:100]) }, "100"),
		row("no deflate", func([]byte) []byte { return bytes.Repeat([]byte{0xff}, 1000) }),
		row("wrong Adler sum", func(data []byte) []byte {
			p := vmdkforge.Deflated(data)
			p[len(p)-1] ^= 1
			return p
		}, "sum"),
	}
}

// streamHeaders are those of footers and versions.
func streamHeaders() []hostile {
	row := func(name, code string, change func(v *vmdkforge.Stream), says ...string) hostile {
		return hostile{name: name, code: code, image: streamDisk(change), says: append(says, "vmdk")}
	}
	foot := func(at int64, n uint64) func(v *vmdkforge.Stream) {
		return func(v *vmdkforge.Stream) { v.U64(v.Footer+512+at, n) }
	}
	both := func(at int64, n uint32) func(v *vmdkforge.Stream) {
		return func(v *vmdkforge.Stream) {
			v.U32(at, n)
			v.U32(v.Footer+512+at, n)
		}
	}
	return []hostile{
		row("T24 gdOffset 2^64-1 in the footer", "format", foot(vmdkforge.GDOffset, 1<<64-1), "footer"),
		row("T24 gdOffset past the end", "format", foot(vmdkforge.GDOffset, 1<<40), "1099511627776"),
		row("T24 other capacity", "format", foot(vmdkforge.Capacity, 8192), "footer", "capacity"),
		row("T24 other grain size", "format", foot(vmdkforge.GrainSize, 64), "footer", "grain"),
		row("T24 no footer", "format", func(v *vmdkforge.Stream) { v.Bytes = v.Bytes[:v.Footer] }, "footer"),
		row("T24 no end marker", "format", func(v *vmdkforge.Stream) { v.U32(v.End+12, 3) }, "marker"),
		row("T25 version 0", "format", both(vmdkforge.Version, 0), "at 0x4", "version 0"),
		row("T25 version 4", "format", both(vmdkforge.Version, 4), "at 0x4", "version 4"),
		row("T25 version 9", "format", both(vmdkforge.Version, 9), "at 0x4", "version 9"),
		row("T25 compressed by nothing", "format", func(v *vmdkforge.Stream) {
			v.U16(vmdkforge.Compress, 0)
			v.U16(v.Footer+512+vmdkforge.Compress, 0)
		}, "compress"),
		row("T25 algorithm without the flag", "format", both(vmdkforge.Flags, 1|1<<17), "flags"),
		row("T25 unknown flag", "unsupported", both(vmdkforge.Flags, 1|3<<16|1<<25), "at 0x8", "flags 0x2030001"),
	}
}
