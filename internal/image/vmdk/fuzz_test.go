package vmdk

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// folder is a gate to a few files, and to a parent for every child.
func folder(main *disktest.MemFile, beside ...*disktest.MemFile) *driver.Source {
	flat := disktest.NewMemFile("x-flat.vmdk", bytes.Repeat([]byte("flat"), 1024), 2<<20)
	open := func(name string) (driver.File, error) {
		for _, f := range append(beside, main, flat) {
			if f.Name() == name {
				return f, nil
			}
		}
		return nil, fmt.Errorf("file name %.256q: %w", name, ondisk.ErrReference)
	}
	parent := func(driver.ParentRef) (*driver.Image, error) {
		d := disktest.ShortDisk(bytes.Repeat([]byte("parent "), 10_000), 1<<20)
		return &driver.Image{Disk: d, Template: plainDescriptor(driver.Geometry{}), ContentID: "00000001"}, nil
	}
	return &driver.Source{File: main, Open: open, Parent: parent}
}

// FuzzDescriptor reads anything as the text of a VMDK.
func FuzzDescriptor(f *testing.F) {
	good := vmdkforge.Descriptor("monolithicFlat", `RW 4096 FLAT "x-flat.vmdk" 0`)
	for _, old := range []string{
		"RW 4096", "4096", "FLAT", `"x-flat.vmdk"`, " 0\n", "monolithicFlat", "ffffffff",
		"4a5b6c7d", `"16"`, "#DDB",
	} {
		for _, new := range []string{
			"", "-1", "ZERO", "RDONLY", "18014398509481983", `"`, "vmfs",
			"parentFileNameHint=x", "SPARSE \"disk.vmdk\"", "\x00", "\r",
		} {
			f.Add([]byte(strings.Replace(good, old, new, 1)))
		}
	}
	f.Add([]byte(strings.ReplaceAll(good, "\n", "\r\n")))
	// their product is 2^64
	f.Add([]byte(strings.NewReplacer(`"16"`, `"4294967296"`, `"63"`, `"4294967296"`).Replace(good)))
	f.Add([]byte(good + "ddb.uuid = \"\xf7\xf7\"\n"))
	f.Add([]byte("\xef\xbb\xbf" + good +
		"ddb.uuid = \"60 00 C2 9a 1d 7b 49 44-dc 53 e6 d3 e5 89 7b 0d\"\nddb.longContentID = \"0\"\n"))
	f.Add([]byte(vmdkforge.NewHiddenDescriptor(good)))
	for _, b := range disktest.Seeds(f, 64<<10, "vmdk-rs/monolithicFlat.vmdk", "vmdk-rs/vmfs_thick.vmdk",
		"vmdk-rs/twoGbMaxExtentSparse.vmdk") {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		spent := disktest.Spent()
		img, err := open(folder(disktest.NewMemFile("disk.vmdk", text, int64(len(text)))))
		if err != nil {
			disktest.RequireClass(t, err)
		} else {
			disktest.ReadSome(t, img.Disk, disktest.RequireClass)
		}
		if d, err := parseDescriptor(text); err == nil {
			// A disk that was read can be written, and the copy can be read.
			written := func() []byte {
				lines := []string{`RW 2048 FLAT "new-flat.vmdk" 0`}
				return d.copyFor(monolithicFlat, 1<<20, lines, []byte("seed"), driver.Geometry{Heads: 16, Sectors: 63})
			}
			copied := written()
			require.Equal(t, copied, written())
			// The copy can exceed the largest readable size a little.
			if len(text) <= maxText/2 && len(d.lines) <= maxLines/2 {
				again, err := parseDescriptor(copied)
				require.NoError(t, err, "%.200q", copied)
				require.LessOrEqual(t, len(again.extents), 1)
				if len(d.extents) > 0 {
					require.Len(t, again.extents, 1)
					require.Equal(t, "new-flat.vmdk", again.extents[0].name)
				}
			}
		}
		require.Less(t, spent(), disktest.Slowest)
	})
}

// FuzzSparse reads anything as header and tables of a sparse VMDK. They are two short inputs, because a mutation hits
// any byte; between them is a text that fits the header, which no mutation would find. A hole of this many bytes
// follows.
func FuzzSparse(f *testing.F) {
	const sectors = 300
	const headerSize, tablesAt = 80, 21 * 512
	v := vmdkforge.NewSparse(bytes.Repeat([]byte("grain of a disk "), sectors*512/16))
	tables := []byte(v.Bytes[tablesAt : v.GT+16])
	f.Add([]byte(v.Bytes[:headerSize]), tables, uint32(1<<20))
	for _, c := range []struct {
		at int64
		v  uint64
	}{
		{vmdkforge.Capacity, 1 << 37},
		{vmdkforge.Capacity, 1<<64 - 1},
		{vmdkforge.GrainSize, 3},
		{vmdkforge.GrainSize, 8},
		{vmdkforge.GDOffset, 21},
		{vmdkforge.RGDOffset, 1 << 40},
		{vmdkforge.OverHead, 0},
		{vmdkforge.DescriptorSize, 1 << 55},
		{vmdkforge.Capacity, 40_000_000},
	} {
		header := slices.Clone(v.Bytes[:headerSize])
		header.U64(c.at, c.v)
		f.Add([]byte(header), tables, uint32(32<<20))
	}
	for _, b := range disktest.Seeds(f, 64<<10, "vmdk-rs/monolithicSparse.vmdk.xz", "vmdk-rs/streamOptimized.vmdk.xz",
		"dfvfs/ext2.vmdk.xz") {
		f.Add(b[:headerSize], b[tablesAt:tablesAt+4096], uint32(32<<20))
	}
	f.Fuzz(func(t *testing.T, header, tables []byte, hole uint32) {
		v := vmdkforge.Sparse{Bytes: make(forge.Bytes, tablesAt+len(tables)), Descriptor: 512}
		v.Put(tablesAt, tables)
		v.Put(0, header[:min(len(header), 512)])
		file := disktest.NewMemFile("disk.vmdk", v.Bytes, int64(len(v.Bytes))+int64(hole%(64<<20)))
		var h sparseHeader
		_, err := ondisk.Decode(file, 0, &h)
		require.NoError(t, err)
		v.SetDescriptor(vmdkforge.Descriptor(monolithicSparse, fmt.Sprintf(`RW %d SPARSE "disk.vmdk"`, h.Capacity)))
		spent := disktest.Spent()
		openFuzzed(t, file)
		require.Less(t, spent(), disktest.Slowest)
	})
}

func openFuzzed(t *testing.T, file *disktest.MemFile) {
	t.Helper()
	if file.Size() < 4 || !detect(disktest.Head(t, file, 64<<10), nil) {
		return
	}
	img, err := open(folder(file))
	if err != nil {
		disktest.RequireClass(t, err)
		return
	}
	disktest.ReadSome(t, img.Disk, disktest.RequireClass)
	if img.Check == nil {
		return
	}
	issues, err := img.Check()
	require.NoError(t, err)
	if img.Subformat == streamOptimized {
		return // the check does not unpack grains
	}
	disktest.ReadSound(t, img.Disk, issues, disktest.NoError)
}

// fuzzExtent opens a disk of one extent, whose file is data followed by a hole. If hole is odd, the disk has a parent.
func fuzzExtent(t *testing.T, kind string, sectors uint64, data []byte, hole uint32) {
	t.Helper()
	text := vmdkforge.Descriptor(kind, fmt.Sprintf(`RW %d %s "x-delta.vmdk"`, sectors, sparseTypes[kind]))
	if hole%2 == 1 {
		text = strings.Replace(text, "parentCID=ffffffff", "parentCID=00000001\nparentFileNameHint=\"parent.vmdk\"", 1)
	}
	extent := disktest.NewMemFile("x-delta.vmdk", data, int64(len(data))+int64(hole%(64<<20)))
	spent := disktest.Spent()
	img, err := open(folder(disktest.NewMemFile("disk.vmdk", []byte(text), int64(len(text))), extent))
	if err != nil {
		disktest.RequireClass(t, err)
		return
	}
	disktest.ReadSome(t, img.Disk, disktest.RequireClass)
	issues, err := img.Check()
	require.NoError(t, err)
	disktest.ReadSound(t, img.Disk, issues, disktest.NoError)
	require.Less(t, spent(), disktest.Slowest)
}

// FuzzCOWD reads anything as header, directory and first table of an extent of ESX. The table is short: mutations hit
// every entry of it.
func FuzzCOWD(f *testing.F) {
	const directory, known = 2048, 32
	good := vmdkforge.NewCOWD(bytes.Repeat([]byte("grain of a disk "), 4096*40), 1, nil)
	tables := []byte(good.Bytes[directory : good.Tables[0]+256])
	f.Add([]byte(good.Bytes[:known]), tables, uint32(8<<20))
	f.Add([]byte(good.Bytes[:known]), tables, uint32(8<<20+1))
	for _, c := range []struct {
		at int64
		v  uint32
	}{
		{vmdkforge.COWDNumSectors, 1<<32 - 1},
		{vmdkforge.COWDNumSectors, 1},
		{vmdkforge.COWDGrainSize, 0},
		{vmdkforge.COWDGrainSize, 128},
		{vmdkforge.COWDGDOffset, 5},
		{vmdkforge.COWDNumGDEntries, 1<<32 - 1},
		{vmdkforge.COWDFlags, 2},
	} {
		header := slices.Clone(good.Bytes[:known])
		header.U32(c.at, c.v)
		f.Add([]byte(header), tables, uint32(32<<20+1))
	}
	f.Fuzz(func(t *testing.T, header, tables []byte, hole uint32) {
		data := make([]byte, directory+len(tables))
		copy(data, header[:min(len(header), directory)])
		copy(data[directory:], tables)
		fuzzExtent(t, vmfsSparse, uint64(binary.LittleEndian.Uint32(data[vmdkforge.COWDNumSectors:])), data, hole)
	})
}

// FuzzSESparse reads anything as the two headers, directory and first table of an extent of ESXi.
func FuzzSESparse(f *testing.F) {
	const volatile, directory, table, known = 512, 1024, 1536, 208
	good := vmdkforge.NewSESparse(bytes.Repeat([]byte("grain of a disk "), 4096*40), 0, nil)
	good.U64(vmdkforge.SEGrainDir, directory/512)
	good.U64(vmdkforge.SEGrainTables, table/512)
	good.U64(vmdkforge.SEGrains, table/512+64)
	tables := append([]byte(good.Bytes[good.GD:good.GD+512]), good.Bytes[good.GT:good.GT+256]...)
	f.Add([]byte(good.Bytes[:known]), []byte(good.Bytes[volatile:volatile+32]), tables, uint32(8<<20))
	f.Add([]byte(good.Bytes[:known]), []byte(good.Bytes[volatile:volatile+32]), tables, uint32(8<<20+1))
	for _, c := range []struct {
		at int64
		v  uint64
	}{
		{vmdkforge.SECapacity, 1<<64 - 1},
		{vmdkforge.SECapacity, 1 << 37},
		{vmdkforge.SEGrainSize, 16},
		{vmdkforge.SEGrainDir, 1 << 55},
		{vmdkforge.SEGrainTables, 1 << 63},
		{vmdkforge.SEGrains, 1},
		{vmdkforge.SEVolatile, 2},
	} {
		header := slices.Clone(good.Bytes[:known])
		header.U64(c.at, c.v)
		f.Add([]byte(header), []byte(good.Bytes[volatile:volatile+32]), tables, uint32(32<<20+1))
	}
	f.Fuzz(func(t *testing.T, header, second, tables []byte, hole uint32) {
		data := make([]byte, directory+len(tables))
		copy(data, header[:min(len(header), volatile)])
		copy(data[volatile:directory], second)
		copy(data[directory:], tables)
		fuzzExtent(t, seSparse, binary.LittleEndian.Uint64(data[vmdkforge.SECapacity:]), data, hole)
	})
}

// FuzzStream reads anything as header and body of a streamOptimized VMDK. Between them stands a text that agrees with
// the header, which no mutation would find.
func FuzzStream(f *testing.F) {
	const headerSize, bodyAt = 80, 21 * 512
	seed := func(v *vmdkforge.Stream) { f.Add([]byte(v.Bytes[:headerSize]), []byte(v.Bytes[bodyAt:])) }
	short := bytes.Repeat([]byte("grain "), 2000)[:17*512]
	sparse := make([]byte, 3<<20)
	copy(sparse, "one")
	copy(sparse[5<<19:], "two")
	for _, l := range []vmdkforge.StreamLayout{
		{Grain: 8},
		{Grain: 8, Front: true},
		{Grain: 8, Front: true, Short: true},
		{Grain: 128},
	} {
		seed(vmdkforge.NewStream(short, l))
		seed(vmdkforge.NewStream(sparse, l))
	}
	for _, change := range []func(v *vmdkforge.Stream){
		func(v *vmdkforge.Stream) { v.U64(vmdkforge.Capacity, 1<<37) },
		func(v *vmdkforge.Stream) { v.U64(v.Footer+512+vmdkforge.GDOffset, 22) },
		func(v *vmdkforge.Stream) { v.U32(v.Grains[0]+8, 1<<32-1) },
		func(v *vmdkforge.Stream) { v.U64(v.Grains[1], 0) },
		func(v *vmdkforge.Stream) { v.U32(v.Tables[0]+12, 7) },
		func(v *vmdkforge.Stream) { v.Bytes = v.Bytes[:v.Footer] },
		func(v *vmdkforge.Stream) { v.Bytes = append(v.Bytes, make([]byte, 512)...) },
	} {
		v := vmdkforge.NewStream(short, vmdkforge.StreamLayout{Grain: 8})
		change(v)
		seed(v)
	}
	for _, b := range disktest.Seeds(f, 64<<10, "vmdk-rs/streamOptimized.vmdk.xz") {
		f.Add(b[:headerSize], b[bodyAt:])
	}
	f.Fuzz(func(t *testing.T, header, body []byte) {
		v := vmdkforge.Sparse{Bytes: make(forge.Bytes, bodyAt+len(body)), Descriptor: 512}
		v.Put(bodyAt, body)
		v.Put(0, header[:min(len(header), 512)])
		var h sparseHeader
		_, err := ondisk.Decode(disktest.NewMemFile("disk.vmdk", v.Bytes, 512), 0, &h)
		require.NoError(t, err)
		v.SetDescriptor(vmdkforge.Descriptor(h.subformat(), fmt.Sprintf(`RW %d SPARSE "disk.vmdk"`, h.Capacity)))
		spent := disktest.Spent()
		file := disktest.NewMemFile("disk.vmdk", v.Bytes, int64(len(v.Bytes)))
		openFuzzed(t, file)
		require.Less(t, spent(), disktest.Slowest)
	})
}
