package vmdk_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
)

// fault is one change to a valid extent, and how it must be refused.
type fault struct {
	name   string
	change func(f forge.Bytes)
	class  error
	says   string
}

// set32 and set64 change one field.
func set32(at int64, v uint32) func(forge.Bytes) {
	return func(f forge.Bytes) { f.U32(at, v) }
}

func set64(at int64, v uint64) func(forge.Bytes) {
	return func(f forge.Bytes) { f.U64(at, v) }
}

// badExtent is malformed, foreignExtent not supported.
func badExtent(name, says string, change func(f forge.Bytes)) fault {
	return fault{name, change, ondisk.ErrFormat, says}
}

func foreignExtent(name, says string, change func(f forge.Bytes)) fault {
	return fault{name, change, ondisk.ErrUnsupported, says}
}

// refuses opens a disk of one extent, changed in each of several ways. Every message names the extent's file.
func refuses(t *testing.T, kind, word string, size int, good []byte, faults []fault) {
	t.Helper()
	for _, c := range faults {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			f := forge.Bytes(bytes.Clone(good))
			c.change(f)
			f.Write(t, filepath.Join(dir, "extent.bin"))
			path := imagetest.Write(t, dir, "disk.vmdk",
				[]byte(vmdkforge.Descriptor(kind, fmt.Sprintf(`RW %d %s "extent.bin"`, size/sector, word))))
			_, err := image.Open(path, image.Options{})
			require.ErrorIs(t, err, c.class)
			require.ErrorContains(t, err, c.says)
			require.ErrorContains(t, err, "extent.bin")
		})
	}
}

// Headers of COWD extents.
func TestHostileCOWD(t *testing.T) {
	data := imagetest.Noise(1, 3*mib)
	refuses(t, "vmfsSparse", "VMFSSPARSE", len(data), vmdkforge.NewCOWD(data, 1, nil).Bytes, []fault{
		badExtent("another magic number", "magic number", set32(0, 0)),
		badExtent("version 0", "at 0x4: version 0", set32(vmdkforge.COWDVersion, 0)),
		badExtent("version 2", "at 0x4: version 2", set32(vmdkforge.COWDVersion, 2)),
		foreignExtent("child", "at 0x8: flags 0x2 of a child", set32(vmdkforge.COWDFlags, 2)),
		foreignExtent("unknown flag", "at 0x8: flags 0x7", set32(vmdkforge.COWDFlags, 7)),
		badExtent("no sectors", "at 0xc: numSectors 0", set32(vmdkforge.COWDNumSectors, 0)),
		badExtent("other size than the extent", "6144 sectors, but the capacity in the header",
			set32(vmdkforge.COWDNumSectors, 6143)),
		badExtent("most sectors", "at 0x18: numGDEntries 2, want at least 1048576",
			set32(vmdkforge.COWDNumSectors, 1<<32-1)),
		badExtent("grain size 0", "at 0x10: grainSize 0", set32(vmdkforge.COWDGrainSize, 0)),
		badExtent("grain size 3", "at 0x10: grainSize 3", set32(vmdkforge.COWDGrainSize, 3)),
		badExtent("grain size 4096", "at 0x10: grainSize 4096", set32(vmdkforge.COWDGrainSize, 4096)),
		badExtent("gdOffset 0", "at 0x14: gdOffset 0", set32(vmdkforge.COWDGDOffset, 0)),
		badExtent("gdOffset inside the header", "apart from the header", set32(vmdkforge.COWDGDOffset, 3)),
		badExtent("gdOffset past the end", "at 0x14: gdOffset 4294967295", set32(vmdkforge.COWDGDOffset, 1<<32-1)),
		badExtent("no directory", "at 0x18: numGDEntries 0, want at least 2", set32(vmdkforge.COWDNumGDEntries, 0)),
		badExtent("too small a directory", "at 0x18: numGDEntries 1, want at least 2",
			set32(vmdkforge.COWDNumGDEntries, 1)),
		badExtent("directory of 16 GiB", "a sector from which 17179869180 bytes fit",
			set32(vmdkforge.COWDNumGDEntries, 1<<32-1)),
	})
}

// Headers of SESparse extents.
func TestHostileSESparse(t *testing.T) {
	data := imagetest.Noise(1, 3*mib)
	good := vmdkforge.NewSESparse(data, 0, nil)
	refuses(t, "seSparse", "SESPARSE", len(data), good.Bytes, []fault{
		badExtent("another magic number", "magic number 0xcafebabf", set64(0, 0xcafebabf)),
		badExtent("version 1", "at 0x8: version 0x1, want 0x200000001", set64(vmdkforge.SEVersion, 1)),
		badExtent("capacity 0", "at 0x10: capacity 0", set64(vmdkforge.SECapacity, 0)),
		badExtent("capacity 2^63", "at 0x10: capacity", set64(vmdkforge.SECapacity, 1<<63)),
		badExtent("capacity whose directory is missing", "at 0x88: grain directory size",
			set64(vmdkforge.SECapacity, 1<<52)),
		badExtent("other size than the extent", "6144 sectors, but the capacity in the header",
			set64(vmdkforge.SECapacity, 6143)),
		badExtent("grain size 16", "at 0x18: grain size 16", set64(vmdkforge.SEGrainSize, 16)),
		badExtent("grain table size 32", "at 0x20: grain table size 32", set64(vmdkforge.SETableSize, 32)),
		foreignExtent("flags", "at 0x28: flags 0x1", set64(vmdkforge.SEFlags, 1)),
		foreignExtent("reserved", "at 0x30: reserved", set64(vmdkforge.SEReserved+24, 1)),
		foreignExtent("padding", "at 0xd0", set64(vmdkforge.SEPad+296, 1)),
		badExtent("volatile header past the end", "at 0x50: volatile header offset",
			set64(vmdkforge.SEVolatile, 1<<40)),
		badExtent("volatile header at an offset that overflows", "at 0x50: volatile header offset",
			set64(vmdkforge.SEVolatile, 1<<55)),
		badExtent("volatile header is the header", "at 0x50: volatile header offset 0",
			set64(vmdkforge.SEVolatile, 0)),
		badExtent("directory past the end", "at 0x80: grain directory offset", set64(vmdkforge.SEGrainDir, 1<<40)),
		badExtent("directory at an offset that overflows", "at 0x80: grain directory offset",
			set64(vmdkforge.SEGrainDir, 1<<63+1)),
		badExtent("directory in the volatile header", "apart from the volatile header",
			set64(vmdkforge.SEGrainDir, 1)),
		badExtent("directory size 0", "at 0x88: grain directory size 0", set64(vmdkforge.SEGrainDirSize, 0)),
		badExtent("tables past the end", "at 0x90: grain tables offset", set64(vmdkforge.SEGrainTables, 1<<40)),
		badExtent("tables at an offset that overflows", "at 0x90: grain tables offset",
			set64(vmdkforge.SEGrainTables, 1<<55+1)),
		badExtent("grains past the end", "at 0xc0: grains offset", set64(vmdkforge.SEGrains, 1<<40)),
		badExtent("grains at an offset that overflows", "at 0xc0: grains offset", set64(vmdkforge.SEGrains, 1<<64-1)),
		badExtent("volatile magic", "volatile header at 0x200: magic number 0x1", set64(good.Volatile, 1)),
		foreignExtent("journal to replay", "at 0x218: replay_journal is 1",
			set64(good.Volatile+vmdkforge.SEReplayJournal, 1)),
		foreignExtent("volatile padding", "volatile header at 0x200", set64(good.Volatile+504, 1)),
	})
}

// Headers of an extent of a split disk: hostile.VMDK has the fields that it shares with a monolithicSparse disk.
func TestHostileSplitExtent(t *testing.T) {
	data := imagetest.Noise(1, 3*mib)
	good := vmdkforge.NewSparseOf(data, vmdkforge.SparseLayout{Short: true, Extent: true}).Bytes
	refuses(t, "twoGbMaxExtentSparse", "SPARSE", len(data), good, []fault{
		badExtent("no sparse file", "magic number", set32(0, 0)),
		badExtent("COWD", "magic number", func(f forge.Bytes) { f.Text(0, "COWD") }),
		badExtent("capacity 0", "at 0xc: capacity 0", set64(vmdkforge.Capacity, 0)),
		badExtent("other size than the extent", "6144 sectors, but the capacity in the header",
			set64(vmdkforge.Capacity, 6143)),
		badExtent("compressed", "flags 0x30001", func(f forge.Bytes) {
			f.U32(vmdkforge.Flags, 0x30001)
			f.U16(vmdkforge.Compress, 1)
		}),
		foreignExtent("unknown flag", "at 0x8: flags", set32(vmdkforge.Flags, 1<<20|1)),
		badExtent("a disk of its own", "no descriptor inside an extent",
			func(f forge.Bytes) { f.Text(sector, vmdkforge.Descriptor("monolithicSparse")) }),
		// The text of a header without data is not decoded.
		badExtent("hidden descriptor", "at 0xc: capacity 0", func(f forge.Bytes) {
			f.U64(vmdkforge.Capacity, 0)
			f.Text(sector, vmdkforge.Descriptor("monolithicFlat", `RW 6144 FLAT "/etc/passwd" 0`))
		}),
	})
}

type extentLines struct {
	name, kind string
	class      error
	says       string
	lines      []string
}

// Descriptors of sparse extents.
func TestHostileExtentLines(t *testing.T) {
	const kind = "twoGbMaxExtentSparse"
	bad := func(name, says string, lines ...string) extentLines {
		return extentLines{name, kind, ondisk.ErrFormat, says, lines}
	}
	other := func(name, kind string, class error, says string, lines ...string) extentLines {
		return extentLines{name, kind, class, says, lines}
	}
	for _, c := range []extentLines{
		bad("none", "extents 0"),
		bad("the descriptor itself", "extent 0 is the same file", `RW 6144 SPARSE "disk.vmdk"`),
		bad("another descriptor", "is a descriptor, must be", `RW 6144 SPARSE "other.vmdk"`),
		bad("a link to the descriptor", "extent 0 is the same file", `RW 6144 SPARSE "link.vmdk"`),
		bad("one file twice", "line 10: extent 1", `RW 6144 SPARSE "extent.bin"`, `RW 6144 SPARSE "extent.bin"`),
		other("NOACCESS", kind, ondisk.ErrUnsupported, "line 9: extent 0 is NOACCESS",
			`NOACCESS 6144 SPARSE "extent.bin"`),
		other("unknown type", kind, ondisk.ErrUnsupported, `"ROUND": not supported, want SPARSE`,
			`RW 6144 ROUND "extent.bin"`),
		bad("flat", "extent 0 is FLAT, want SPARSE", `RW 6144 FLAT "extent.bin" 0`),
		bad("zeros", "extent 1 is ZERO, want SPARSE", `RW 6144 SPARSE "extent.bin"`, `RW 8 ZERO`),
		bad("of ESXi", "extent 0 is VMFSSPARSE, want SPARSE", `RW 6144 VMFSSPARSE "extent.bin"`),
		other("sparse in a flat disk", "twoGbMaxExtentFlat", ondisk.ErrFormat, "extent 0 is SESPARSE, want FLAT",
			`RW 6144 SESPARSE "extent.bin"`),
		other("hosted in a disk of ESXi", "vmfsSparse", ondisk.ErrFormat, "magic number",
			`RW 6144 VMFSSPARSE "extent.bin"`),
		other("hosted as seSparse", "seSparse", ondisk.ErrFormat, "magic number", `RW 6144 SESPARSE "extent.bin"`),
		bad("at an offset", "at offset 512 of its file", `RW 6144 SPARSE "extent.bin" 1`),
		bad("too short", "file size 100", `RW 6144 SPARSE "short.bin"`),
		other("too short for ESX", "vmfsSparse", ondisk.ErrFormat, "file size 100", `RW 6144 VMFSSPARSE "short.bin"`),
		other("too short for ESXi", "seSparse", ondisk.ErrFormat, "file size 100", `RW 6144 SESPARSE "short.bin"`),
		other("elsewhere", kind, ondisk.ErrReference, "leaves the image's folder", `RW 6144 SPARSE "../extent.bin"`),
		other("missing", kind, os.ErrNotExist, `extent 0: file "none.bin"`, `RW 6144 SPARSE "none.bin"`),
		bad("sum of sizes", "line 10: extents add up", `RW 6144 SPARSE "extent.bin"`,
			`RW 18014398509481983 SPARSE "x.bin"`),
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			l := vmdkforge.SparseLayout{Short: true, Single: true, Extent: true}
			v := vmdkforge.NewSparseOf(imagetest.Noise(1, 3*mib), l)
			v.Write(t, filepath.Join(dir, "extent.bin"))
			imagetest.Write(t, dir, "short.bin", v.Bytes[:100])
			imagetest.Write(t, dir, "other.vmdk", []byte(vmdkforge.Descriptor(kind, `RW 6144 SPARSE "disk.vmdk"`)))
			path := imagetest.Write(t, dir, "disk.vmdk", []byte(vmdkforge.Descriptor(c.kind, c.lines...)))
			require.NoError(t, os.Link(path, filepath.Join(dir, "link.vmdk")))
			_, err := image.Open(path, image.Options{})
			require.ErrorIs(t, err, c.class)
			require.ErrorContains(t, err, c.says)
		})
	}
}

type damagedExtent struct {
	name, kind, word string
	good             forge.Bytes
	change           func(f forge.Bytes)
	says             string
	silent           bool // can be read anyway
}

// Damage of the tables is found by a check, and a reader that hits it returns an error with the extent.
func TestDamagedTablesOfExtents(t *testing.T) {
	data := bytes.Repeat([]byte("grain"), 6*mib/5+1)[:6*mib]
	cowd, se := vmdkforge.NewCOWD(data, 1, nil), vmdkforge.NewSESparse(data, 0, nil)
	hosted := vmdkforge.NewSparseOf(data, vmdkforge.SparseLayout{Grain: 8, Short: true, Extent: true})
	of := func(kind, word string, good forge.Bytes) func(string, string, bool, func(forge.Bytes)) damagedExtent {
		return func(name, says string, silent bool, change func(forge.Bytes)) damagedExtent {
			return damagedExtent{name, kind, word, good, change, says, silent}
		}
	}
	esx, esxi := of("vmfsSparse", "VMFSSPARSE", cowd.Bytes), of("seSparse", "SESPARSE", se.Bytes)
	split := of("twoGbMaxExtentSparse", "SPARSE", hosted.Bytes)
	for _, c := range []damagedExtent{
		esx("COWD table past the end", "1 grain tables outside", false, set32(cowd.GD+4, 1<<30)),
		esx("COWD table in the directory", "1 grain tables outside", false, set32(cowd.GD+4, 4)),
		esx("COWD table twice", "1 grain tables at a place in use", true,
			set32(cowd.GD+4, uint32(cowd.Tables[0]/sector))),
		esx("COWD grain past the end", "1 grains outside", false, set32(cowd.Tables[1]+8, 1<<30)),
		esx("COWD grain in the header", "1 grains outside", false, set32(cowd.Tables[1]+8, 2)),
		esx("COWD grain in a table", "1 grains at a place in use", true,
			set32(cowd.Tables[1]+8, uint32(cowd.Tables[1]/sector+31))),
		esx("COWD grain twice", "1 grains at a place in use", true,
			set32(cowd.Tables[1]+8, uint32(cowd.Tables[0]/sector+32))),
		esxi("seSparse unknown kind of directory entry", "1 grain tables outside", false, set64(se.GD, 2<<60)),
		esxi("seSparse odd bits of a directory entry", "1 grain tables outside", false, set64(se.GD, 1<<60|1<<32)),
		esxi("seSparse table past the end", "1 grain tables outside", false, set64(se.GD, 1<<60|1<<32-1)),
		esxi("seSparse table in the grains", "1 grain tables outside", false, set64(se.GD, 1<<60|1)),
		esxi("seSparse unknown kind of grain", "1 grains outside", false, set64(se.GT+800, 4<<60)),
		esxi("seSparse hole with a number", "1 grains outside", false, set64(se.GT+800, 1)),
		esxi("seSparse grain past the end", "1 grains outside", false, set64(se.GT+800, 3<<60|1)),
		esxi("seSparse grain at an offset that overflows", "1 grains outside", false,
			set64(se.GT+800, 3<<60|(1<<60-1))),
		esxi("seSparse grain twice", "1 grains at a place in use", true, set64(se.GT+800, 3<<60|7<<48)),
		split("hosted grain past the end", "1 grains outside", false, func(f forge.Bytes) {
			f.U32(hosted.GT+8, 1<<30)
			f.U32(hosted.RGT+8, 1<<30)
		}),
		split("hosted tables that disagree", "differ from the primary ones in 1 places", true,
			set32(hosted.RGT+8, 1<<30)),
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			f := forge.Bytes(bytes.Clone(c.good))
			c.change(f)
			f.Write(t, filepath.Join(dir, "extent.bin"))
			img := imagetest.Open(t, imagetest.Write(t, dir, "disk.vmdk",
				[]byte(vmdkforge.Descriptor(c.kind, fmt.Sprintf(`RW %d %s "extent.bin"`, len(data)/sector, c.word)))))
			issues, err := img.Check()
			require.NoError(t, err)
			require.Len(t, issues, 1)
			assert.Contains(t, issues[0].Text, c.says)
			assert.Contains(t, issues[0].Text, `first: "extent.bin": `)
			_, err = img.Disk.ReadAt(make([]byte, len(data)), 0)
			if c.silent {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, ondisk.ErrFormat)
			require.ErrorContains(t, err, `extent "extent.bin"`)
		})
	}
}

// Extents that were not closed cleanly cause one issue, which names the first of them.
func TestUncleanExtents(t *testing.T) {
	dir := t.TempDir()
	data := imagetest.Noise(1, mib)
	var lines []string
	for i := range 3 {
		c := vmdkforge.NewCOWD(data, 1, nil)
		c.U32(vmdkforge.COWDUnclean, uint32(i))
		name := fmt.Sprintf("%d-delta.vmdk", i)
		c.Write(t, filepath.Join(dir, name))
		lines = append(lines, fmt.Sprintf(`RW 2048 VMFSSPARSE "%s"`, name))
	}
	img := imagetest.Open(t, imagetest.Write(t, dir, "disk.vmdk", []byte(vmdkforge.Descriptor("vmfsSparse", lines...))))
	require.Len(t, img.Issues, 1)
	require.Equal(t, ondisk.Refuse, img.Issues[0].Effect)
	require.ErrorIs(t, img.Issues[0].Err, ondisk.ErrBusy)
	require.Contains(t, img.Issues[0].Text, `"1-delta.vmdk" was not closed cleanly (uncleanShutdown at 0x670 is 1)`)
	require.Contains(t, img.Issues[0].Text, "so were 1 more")
}

// An ESXi extent alone is not a disk: missing data may be elsewhere.
func TestLoneExtents(t *testing.T) {
	dir := t.TempDir()
	data := imagetest.Noise(1, mib)
	for name, f := range map[string]forge.Bytes{
		"COWD": vmdkforge.NewCOWD(data, 1, nil).Bytes, "seSparse": vmdkforge.NewSESparse(data, 0, nil).Bytes,
	} {
		_, err := image.Open(imagetest.Write(t, dir, strings.ToLower(name), f), image.Options{})
		require.ErrorIs(t, err, ondisk.ErrUnsupported)
		require.ErrorContains(t, err, name)
		require.ErrorContains(t, err, "open the descriptor file that names this extent")
	}
}

// The largest ESXi disk, without data, is checked immediately.
func TestLargestSESparse(t *testing.T) {
	const size = int64(62) << 40
	dir := t.TempDir()
	good := vmdkforge.NewSESparse(make([]byte, sector), 0, nil)
	f := good.Bytes[:good.GT]
	const directory = size / (16 * mib) * 8
	end := uint64(good.GD + directory)
	f.U64(vmdkforge.SECapacity, uint64(size/sector))
	f.U64(vmdkforge.SEGrainDirSize, uint64(directory/sector))
	f.U64(vmdkforge.SEGrainTables, end/sector)
	f.U64(vmdkforge.SEGrains, end/sector+64)
	f.U64(good.GD, 0)
	path := filepath.Join(dir, "x-sesparse.vmdk")
	f.Write(t, path)
	require.NoError(t, os.Truncate(path, int64(end)+mib))
	img := imagetest.Open(t, imagetest.Write(t, dir, "x.vmdk",
		[]byte(vmdkforge.Descriptor("seSparse", fmt.Sprintf(`RW %d SESPARSE "x-sesparse.vmdk"`, size/sector)))))
	imagetest.NoDamage(t, img)
	for off := int64(0); off < size; {
		e, err := img.Disk.Extent(off, size-off)
		require.NoError(t, err)
		require.True(t, e.Zero)
		off = e.End()
	}
}
