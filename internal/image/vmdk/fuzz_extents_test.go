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
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
)

// fuzzExtent opens a disk of one extent, whose file is data and a hole behind it. Every other one has a parent.
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

// FuzzSplitExtent reads anything as header and tables of an extent of a split disk.
func FuzzSplitExtent(f *testing.F) {
	const headerSize, tablesAt = 80, 21 * 512
	v := vmdkforge.NewSparse(bytes.Repeat([]byte("grain of a disk "), 300*512/16))
	v.SetDescriptor("")
	tables := []byte(v.Bytes[tablesAt : v.GT+16])
	for _, hole := range []uint32{1 << 20, 1<<20 + 1} {
		f.Add([]byte(v.Bytes[:headerSize]), tables, hole)
	}
	for _, b := range disktest.Seeds(f, 64<<10, "vmdk-rs/twoGbMaxExtentSparse-s001.vmdk.xz") {
		f.Add(b[:headerSize], b[tablesAt:tablesAt+4096], uint32(32<<20))
	}
	f.Fuzz(func(t *testing.T, header, tables []byte, hole uint32) {
		data := make([]byte, tablesAt+len(tables))
		copy(data, header[:min(len(header), 512)])
		copy(data[tablesAt:], tables)
		fuzzExtent(t, splitSparse, binary.LittleEndian.Uint64(data[vmdkforge.Capacity:]), data, hole)
	})
}
