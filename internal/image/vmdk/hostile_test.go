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
		{"another magic number", set32(0, 0), ondisk.ErrFormat, "magic number"},
		{"version 0", set32(vmdkforge.COWDVersion, 0), ondisk.ErrFormat, "at 0x4: version 0"},
		{"version 2", set32(vmdkforge.COWDVersion, 2), ondisk.ErrFormat, "at 0x4: version 2"},
		{"child", set32(vmdkforge.COWDFlags, 2), ondisk.ErrUnsupported, "at 0x8: flags 0x2 of a child"},
		{"unknown flag", set32(vmdkforge.COWDFlags, 7), ondisk.ErrUnsupported, "at 0x8: flags 0x7"},
		{"no sectors", set32(vmdkforge.COWDNumSectors, 0), ondisk.ErrFormat, "at 0xc: numSectors 0"},
		{
			"other size than the extent", set32(vmdkforge.COWDNumSectors, 6143), ondisk.ErrFormat,
			"6144 sectors, but the capacity in the header",
		},
		{
			"most sectors", set32(vmdkforge.COWDNumSectors, 1<<32-1), ondisk.ErrFormat,
			"at 0x18: numGDEntries 2, want at least 1048576",
		},
		{"grain size 0", set32(vmdkforge.COWDGrainSize, 0), ondisk.ErrFormat, "at 0x10: grainSize 0"},
		{"grain size 3", set32(vmdkforge.COWDGrainSize, 3), ondisk.ErrFormat, "at 0x10: grainSize 3"},
		{"grain size 4096", set32(vmdkforge.COWDGrainSize, 4096), ondisk.ErrFormat, "at 0x10: grainSize 4096"},
		{"gdOffset 0", set32(vmdkforge.COWDGDOffset, 0), ondisk.ErrFormat, "at 0x14: gdOffset 0"},
		{"gdOffset inside the header", set32(vmdkforge.COWDGDOffset, 3), ondisk.ErrFormat, "apart from the header"},
		{
			"gdOffset past the end", set32(vmdkforge.COWDGDOffset, 1<<32-1), ondisk.ErrFormat,
			"at 0x14: gdOffset 4294967295",
		},
		{
			"no directory", set32(vmdkforge.COWDNumGDEntries, 0), ondisk.ErrFormat,
			"at 0x18: numGDEntries 0, want at least 2",
		},
		{
			"too small a directory", set32(vmdkforge.COWDNumGDEntries, 1), ondisk.ErrFormat,
			"at 0x18: numGDEntries 1, want at least 2",
		},
		{
			"directory of 16 GiB", set32(vmdkforge.COWDNumGDEntries, 1<<32-1), ondisk.ErrFormat,
			"a sector from which 17179869180 bytes fit",
		},
	})
}

// Headers of SESparse extents.
func TestHostileSESparse(t *testing.T) {
	data := imagetest.Noise(1, 3*mib)
	good := vmdkforge.NewSESparse(data, 0, nil)
	refuses(t, "seSparse", "SESPARSE", len(data), good.Bytes, []fault{
		{"another magic number", set64(0, 0xcafebabf), ondisk.ErrFormat, "magic number 0xcafebabf"},
		{"version 1", set64(vmdkforge.SEVersion, 1), ondisk.ErrFormat, "at 0x8: version 0x1, want 0x200000001"},
		{"capacity 0", set64(vmdkforge.SECapacity, 0), ondisk.ErrFormat, "at 0x10: capacity 0"},
		{"capacity 2^63", set64(vmdkforge.SECapacity, 1<<63), ondisk.ErrFormat, "at 0x10: capacity"},
		{
			"capacity whose directory is missing", set64(vmdkforge.SECapacity, 1<<52), ondisk.ErrFormat,
			"at 0x88: grain directory size",
		},
		{
			"other size than the extent", set64(vmdkforge.SECapacity, 6143), ondisk.ErrFormat,
			"6144 sectors, but the capacity in the header",
		},
		{"grain size 16", set64(vmdkforge.SEGrainSize, 16), ondisk.ErrFormat, "at 0x18: grain size 16"},
		{"grain table size 32", set64(vmdkforge.SETableSize, 32), ondisk.ErrFormat, "at 0x20: grain table size 32"},
		{"flags", set64(vmdkforge.SEFlags, 1), ondisk.ErrUnsupported, "at 0x28: flags 0x1"},
		{"reserved", set64(vmdkforge.SEReserved+24, 1), ondisk.ErrUnsupported, "at 0x30: reserved"},
		{"padding", set64(vmdkforge.SEPad+296, 1), ondisk.ErrUnsupported, "at 0xd0"},
		{
			"volatile header past the end", set64(vmdkforge.SEVolatile, 1<<40), ondisk.ErrFormat,
			"at 0x50: volatile header offset",
		},
		{
			"volatile header at an offset that overflows", set64(vmdkforge.SEVolatile, 1<<55), ondisk.ErrFormat,
			"at 0x50: volatile header offset",
		},
		{
			"volatile header is the header", set64(vmdkforge.SEVolatile, 0), ondisk.ErrFormat,
			"at 0x50: volatile header offset 0",
		},
		{
			"directory past the end", set64(vmdkforge.SEGrainDir, 1<<40), ondisk.ErrFormat,
			"at 0x80: grain directory offset",
		},
		{
			"directory at an offset that overflows", set64(vmdkforge.SEGrainDir, 1<<63+1), ondisk.ErrFormat,
			"at 0x80: grain directory offset",
		},
		{
			"directory in the volatile header", set64(vmdkforge.SEGrainDir, 1), ondisk.ErrFormat,
			"apart from the volatile header",
		},
		{"directory size 0", set64(vmdkforge.SEGrainDirSize, 0), ondisk.ErrFormat, "at 0x88: grain directory size 0"},
		{
			"tables past the end", set64(vmdkforge.SEGrainTables, 1<<40), ondisk.ErrFormat,
			"at 0x90: grain tables offset",
		},
		{
			"tables at an offset that overflows", set64(vmdkforge.SEGrainTables, 1<<55+1), ondisk.ErrFormat,
			"at 0x90: grain tables offset",
		},
		{"grains past the end", set64(vmdkforge.SEGrains, 1<<40), ondisk.ErrFormat, "at 0xc0: grains offset"},
		{
			"grains at an offset that overflows", set64(vmdkforge.SEGrains, 1<<64-1), ondisk.ErrFormat,
			"at 0xc0: grains offset",
		},
		{"volatile magic", set64(good.Volatile, 1), ondisk.ErrFormat, "volatile header at 0x200: magic number 0x1"},
		{
			"journal to replay", set64(good.Volatile+vmdkforge.SEReplayJournal, 1), ondisk.ErrUnsupported,
			"at 0x218: replay_journal is 1",
		},
		{"volatile padding", set64(good.Volatile+504, 1), ondisk.ErrUnsupported, "volatile header at 0x200"},
	})
}

// Headers of an extent of a split disk.
func TestHostileSplitExtent(t *testing.T) {
	data := imagetest.Noise(1, 3*mib)
	f := forge.Bytes(sparseImage{grain: 128, redundant: true}.forge(data))
	clear(f[sector : 21*sector])
	refuses(t, "twoGbMaxExtentSparse", "SPARSE", len(data), f, []fault{
		{"no sparse file", set32(0, 0), ondisk.ErrFormat, "magic number"},
		{"COWD", func(f forge.Bytes) { f.Text(0, "COWD") }, ondisk.ErrFormat, "magic number"},
		{"grain size 3", set64(vmdkforge.GrainSize, 3), ondisk.ErrFormat, "at 0x14: grain size 3"},
		{"511 entries", set32(vmdkforge.NumGTEs, 511), ondisk.ErrFormat, "at 0x2c: numGTEsPerGT 511"},
		{"capacity 0", set64(vmdkforge.Capacity, 0), ondisk.ErrFormat, "at 0xc: capacity 0"},
		{"capacity 2^63", set64(vmdkforge.Capacity, 1<<63), ondisk.ErrFormat, "at 0xc: capacity"},
		{
			"other size than the extent", set64(vmdkforge.Capacity, 6143), ondisk.ErrFormat,
			"6144 sectors, but the capacity in the header",
		},
		{
			"directory past the end", set64(vmdkforge.GDOffset, 1<<40), ondisk.ErrFormat,
			"at 0x38: grain directory offset",
		},
		{"damaged in transfer", set32(vmdkforge.NewLine, 0), ondisk.ErrFormat, "text mode"},
		{"compressed", func(f forge.Bytes) {
			f.U32(vmdkforge.Flags, 0x30001)
			f.U16(vmdkforge.Compress, 1)
		}, ondisk.ErrFormat, "flags 0x30001"},
		{"unknown flag", set32(vmdkforge.Flags, 1<<20|1), ondisk.ErrUnsupported, "at 0x8: flags"},
		{
			"a disk of its own", func(f forge.Bytes) { f.Text(sector, vmdkforge.Descriptor("monolithicSparse")) },
			ondisk.ErrFormat, "no descriptor inside an extent",
		},
		// What a header without data would make of its text is never asked.
		{"hidden descriptor", func(f forge.Bytes) {
			f.U64(vmdkforge.Capacity, 0)
			f.Text(sector, vmdkforge.Descriptor("monolithicFlat", `RW 6144 FLAT "/etc/passwd" 0`))
		}, ondisk.ErrFormat, "at 0xc: capacity 0"},
	})
}

// Descriptors of sparse extents.
func TestHostileExtentLines(t *testing.T) {
	const kind = "twoGbMaxExtentSparse"
	for _, c := range []struct {
		name, kind string
		lines      []string
		class      error
		says       string
	}{
		{"none", kind, nil, ondisk.ErrFormat, "extents 0"},
		{
			"the descriptor itself", kind,
			[]string{`RW 6144 SPARSE "disk.vmdk"`},
			ondisk.ErrFormat,
			"extent 0 is the same file",
		},
		{
			"another descriptor", kind,
			[]string{`RW 6144 SPARSE "other.vmdk"`},
			ondisk.ErrFormat,
			"is a descriptor itself",
		},
		{
			"a link to the descriptor", kind,
			[]string{`RW 6144 SPARSE "link.vmdk"`},
			ondisk.ErrFormat,
			"extent 0 is the same file",
		},
		{
			"one file twice", kind,
			[]string{`RW 6144 SPARSE "extent.bin"`, `RW 6144 SPARSE "extent.bin"`},
			ondisk.ErrFormat, "line 10: extent 1",
		},
		{
			"NOACCESS", kind,
			[]string{`NOACCESS 6144 SPARSE "extent.bin"`},
			ondisk.ErrUnsupported,
			"line 9: extent 0 is NOACCESS",
		},
		{
			"unknown type", kind,
			[]string{`RW 6144 ROUND "extent.bin"`},
			ondisk.ErrUnsupported,
			`"ROUND": not supported, want SPARSE`,
		},
		{"flat", kind, []string{`RW 6144 FLAT "extent.bin" 0`}, ondisk.ErrFormat, "extent 0 is FLAT, want SPARSE"},
		{
			"zeros", kind,
			[]string{`RW 6144 SPARSE "extent.bin"`, `RW 8 ZERO`},
			ondisk.ErrFormat,
			"extent 1 is ZERO, want SPARSE",
		},
		{
			"of ESXi", kind,
			[]string{`RW 6144 VMFSSPARSE "extent.bin"`},
			ondisk.ErrFormat,
			"extent 0 is VMFSSPARSE, want SPARSE",
		},
		{
			"sparse in a flat disk", "twoGbMaxExtentFlat",
			[]string{`RW 6144 SESPARSE "extent.bin"`},
			ondisk.ErrFormat,
			"extent 0 is SESPARSE, want FLAT",
		},
		{
			"hosted in a disk of ESXi", "vmfsSparse",
			[]string{`RW 6144 VMFSSPARSE "extent.bin"`},
			ondisk.ErrFormat,
			"magic number",
		},
		{"hosted as seSparse", "seSparse", []string{`RW 6144 SESPARSE "extent.bin"`}, ondisk.ErrFormat, "magic number"},
		{
			"at an offset", kind,
			[]string{`RW 6144 SPARSE "extent.bin" 1`},
			ondisk.ErrFormat,
			"at offset 512 of its file",
		},
		{"too short", kind, []string{`RW 6144 SPARSE "short.bin"`}, ondisk.ErrFormat, "file size 100"},
		{
			"too short for ESX", "vmfsSparse",
			[]string{`RW 6144 VMFSSPARSE "short.bin"`},
			ondisk.ErrFormat,
			"file size 100",
		},
		{"too short for ESXi", "seSparse", []string{`RW 6144 SESPARSE "short.bin"`}, ondisk.ErrFormat, "file size 100"},
		{
			"elsewhere", kind,
			[]string{`RW 6144 SPARSE "../extent.bin"`},
			ondisk.ErrReference,
			"leaves the image's folder",
		},
		{"missing", kind, []string{`RW 6144 SPARSE "none.bin"`}, os.ErrNotExist, `extent 0: file "none.bin"`},
		{
			"sum of sizes", kind,
			[]string{`RW 6144 SPARSE "extent.bin"`, `RW 18014398509481983 SPARSE "x.bin"`},
			ondisk.ErrFormat, "line 10: extents add up",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			f := forge.Bytes(sparseImage{grain: 128}.forge(imagetest.Noise(1, 3*mib)))
			clear(f[sector : 21*sector])
			f.Write(t, filepath.Join(dir, "extent.bin"))
			imagetest.Write(t, dir, "short.bin", f[:100])
			imagetest.Write(t, dir, "other.vmdk", []byte(vmdkforge.Descriptor(kind, `RW 6144 SPARSE "disk.vmdk"`)))
			path := imagetest.Write(t, dir, "disk.vmdk", []byte(vmdkforge.Descriptor(c.kind, c.lines...)))
			require.NoError(t, os.Link(path, filepath.Join(dir, "link.vmdk")))
			_, err := image.Open(path, image.Options{})
			require.ErrorIs(t, err, c.class)
			require.ErrorContains(t, err, c.says)
		})
	}
}

// Damage of the tables is found by a check, and where a reader meets it, it is an error that names the
// extent.
func TestDamagedTablesOfExtents(t *testing.T) {
	data := bytes.Repeat([]byte("grain"), 6*mib/5+1)[:6*mib]
	cowd, se := vmdkforge.NewCOWD(data, 1, nil), vmdkforge.NewSESparse(data, 0, nil)
	hosted := forge.Bytes(sparseImage{grain: 8, redundant: true}.forge(data))
	clear(hosted[sector : 21*sector])
	const hostedRGT, hostedGT = (1 + 20 + 1) * sector, (1 + 20 + 1 + 12 + 1) * sector
	for _, c := range []struct {
		name, kind, word string
		good             forge.Bytes
		change           func(f forge.Bytes)
		says             string
		silent           bool // reads well all the same
	}{
		{
			"COWD table past the end", "vmfsSparse", "VMFSSPARSE", cowd.Bytes, set32(cowd.GD+4, 1<<30),
			"1 grain tables outside", false,
		},
		{
			"COWD table in the directory", "vmfsSparse", "VMFSSPARSE", cowd.Bytes, set32(cowd.GD+4, 4),
			"1 grain tables outside", false,
		},
		{
			"COWD table twice", "vmfsSparse", "VMFSSPARSE", cowd.Bytes, set32(cowd.GD+4, uint32(cowd.Tables[0]/sector)),
			"1 grain tables at a place in use", true,
		},
		{
			"COWD grain past the end", "vmfsSparse", "VMFSSPARSE", cowd.Bytes, set32(cowd.Tables[1]+8, 1<<30),
			"1 grains outside", false,
		},
		{
			"COWD grain in the header", "vmfsSparse", "VMFSSPARSE", cowd.Bytes, set32(cowd.Tables[1]+8, 2),
			"1 grains outside", false,
		},
		{
			"COWD grain in a table", "vmfsSparse", "VMFSSPARSE", cowd.Bytes,
			set32(cowd.Tables[1]+8, uint32(cowd.Tables[1]/sector+31)), "1 grains at a place in use", true,
		},
		{
			"COWD grain twice", "vmfsSparse", "VMFSSPARSE", cowd.Bytes,
			set32(cowd.Tables[1]+8, uint32(cowd.Tables[0]/sector+32)), "1 grains at a place in use", true,
		},
		{
			"seSparse unknown kind of directory entry", "seSparse", "SESPARSE", se.Bytes, set64(se.GD, 2<<60),
			"1 grain tables outside", false,
		},
		{
			"seSparse odd bits of a directory entry", "seSparse", "SESPARSE", se.Bytes, set64(se.GD, 1<<60|1<<32),
			"1 grain tables outside", false,
		},
		{
			"seSparse table past the end", "seSparse", "SESPARSE", se.Bytes, set64(se.GD, 1<<60|1<<32-1),
			"1 grain tables outside", false,
		},
		{
			"seSparse table in the grains", "seSparse", "SESPARSE", se.Bytes, set64(se.GD, 1<<60|1),
			"1 grain tables outside", false,
		},
		{
			"seSparse unknown kind of grain", "seSparse", "SESPARSE", se.Bytes, set64(se.GT+800, 4<<60),
			"1 grains outside", false,
		},
		{
			"seSparse hole with a number", "seSparse", "SESPARSE", se.Bytes, set64(se.GT+800, 1), "1 grains outside",
			false,
		},
		{
			"seSparse grain past the end", "seSparse", "SESPARSE", se.Bytes, set64(se.GT+800, 3<<60|1),
			"1 grains outside", false,
		},
		{
			"seSparse grain at an offset that overflows", "seSparse", "SESPARSE", se.Bytes,
			set64(se.GT+800, 3<<60|(1<<60-1)), "1 grains outside", false,
		},
		{
			"seSparse grain twice", "seSparse", "SESPARSE", se.Bytes, set64(se.GT+800, 3<<60|7<<48),
			"1 grains at a place in use", true,
		},
		{"hosted grain past the end", "twoGbMaxExtentSparse", "SPARSE", hosted, func(f forge.Bytes) {
			f.U32(hostedGT+8, 1<<30)
			f.U32(hostedRGT+8, 1<<30)
		}, "1 grains outside", false},
		{
			"hosted tables that disagree", "twoGbMaxExtentSparse", "SPARSE", hosted, set32(hostedRGT+8, 1<<30),
			"disagree with the primary ones in 1 places", true,
		},
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

// Extents that were not closed are one issue, which names the first.
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

// An extent of ESXi alone is no disk: what it does not hold may be elsewhere.
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

// The largest disk that ESXi makes, of which nothing was written, is looked through at once.
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
