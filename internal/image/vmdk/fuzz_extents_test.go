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
)

// fuzzExtent opens a disk of one extent, whose file is data and a hole behind it. Every other one has a parent.
func fuzzExtent(t *testing.T, kind string, sectors uint64, data []byte, hole uint32) {
	t.Helper()
	text := disktest.VMDKDescriptor(kind, fmt.Sprintf(`RW %d %s "x-delta.vmdk"`, sectors, sparseTypes[kind]))
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
	good := disktest.ForgeCOWD(bytes.Repeat([]byte("grain of a disk "), 4096*40), 1, nil)
	tables := []byte(good.Forged[directory : good.Tables[0]+256])
	f.Add([]byte(good.Forged[:known]), tables, uint32(8<<20))
	f.Add([]byte(good.Forged[:known]), tables, uint32(8<<20+1))
	for _, c := range []struct {
		at int64
		v  uint32
	}{
		{disktest.COWDNumSectors, 1<<32 - 1},
		{disktest.COWDNumSectors, 1},
		{disktest.COWDGrainSize, 0},
		{disktest.COWDGrainSize, 128},
		{disktest.COWDGDOffset, 5},
		{disktest.COWDNumGDEntries, 1<<32 - 1},
		{disktest.COWDFlags, 2},
	} {
		header := slices.Clone(good.Forged[:known])
		header.U32(c.at, c.v)
		f.Add([]byte(header), tables, uint32(32<<20+1))
	}
	f.Fuzz(func(t *testing.T, header, tables []byte, hole uint32) {
		data := make([]byte, directory+len(tables))
		copy(data, header[:min(len(header), directory)])
		copy(data[directory:], tables)
		fuzzExtent(t, vmfsSparse, uint64(binary.LittleEndian.Uint32(data[disktest.COWDNumSectors:])), data, hole)
	})
}

// FuzzSESparse reads anything as the two headers, directory and first table of an extent of ESXi.
func FuzzSESparse(f *testing.F) {
	const volatile, directory, table, known = 512, 1024, 1536, 208
	good := disktest.ForgeSESparse(bytes.Repeat([]byte("grain of a disk "), 4096*40), 0, nil)
	good.U64(disktest.SEGrainDir, directory/512)
	good.U64(disktest.SEGrainTables, table/512)
	good.U64(disktest.SEGrains, table/512+64)
	tables := append([]byte(good.Forged[good.GD:good.GD+512]), good.Forged[good.GT:good.GT+256]...)
	f.Add([]byte(good.Forged[:known]), []byte(good.Forged[volatile:volatile+32]), tables, uint32(8<<20))
	f.Add([]byte(good.Forged[:known]), []byte(good.Forged[volatile:volatile+32]), tables, uint32(8<<20+1))
	for _, c := range []struct {
		at int64
		v  uint64
	}{
		{disktest.SECapacity, 1<<64 - 1},
		{disktest.SECapacity, 1 << 37},
		{disktest.SEGrainSize, 16},
		{disktest.SEGrainDir, 1 << 55},
		{disktest.SEGrainTables, 1 << 63},
		{disktest.SEGrains, 1},
		{disktest.SEVolatile, 2},
	} {
		header := slices.Clone(good.Forged[:known])
		header.U64(c.at, c.v)
		f.Add([]byte(header), []byte(good.Forged[volatile:volatile+32]), tables, uint32(32<<20+1))
	}
	f.Fuzz(func(t *testing.T, header, second, tables []byte, hole uint32) {
		data := make([]byte, directory+len(tables))
		copy(data, header[:min(len(header), volatile)])
		copy(data[volatile:directory], second)
		copy(data[directory:], tables)
		fuzzExtent(t, seSparse, binary.LittleEndian.Uint64(data[disktest.SECapacity:]), data, hole)
	})
}

// FuzzSplitExtent reads anything as header and tables of an extent of a split disk.
func FuzzSplitExtent(f *testing.F) {
	const headerSize, tablesAt = 80, 21 * 512
	v := disktest.ForgeSparseVMDK(bytes.Repeat([]byte("grain of a disk "), 300*512/16))
	v.SetDescriptor("")
	tables := []byte(v.Forged[tablesAt : v.GT+16])
	for _, hole := range []uint32{1 << 20, 1<<20 + 1} {
		f.Add([]byte(v.Forged[:headerSize]), tables, hole)
	}
	for _, b := range disktest.Seeds(f, 64<<10, "vmdk-rs/twoGbMaxExtentSparse-s001.vmdk.xz") {
		f.Add(b[:headerSize], b[tablesAt:tablesAt+4096], uint32(32<<20))
	}
	f.Fuzz(func(t *testing.T, header, tables []byte, hole uint32) {
		data := make([]byte, tablesAt+len(tables))
		copy(data, header[:min(len(header), 512)])
		copy(data[tablesAt:], tables)
		fuzzExtent(t, splitSparse, binary.LittleEndian.Uint64(data[disktest.VMDKCapacity:]), data, hole)
	})
}
