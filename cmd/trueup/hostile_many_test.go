package main

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// TestManyHostileFileSystems gives every partition of a full GPT a root folder of 65,536 names: looking for a file is
// dear in each of them, and together they must cost no more than one.
func TestManyHostileFileSystems(t *testing.T) {
	t.Parallel()
	const count, sectors = 128, 8192

	// Of a FAT32, the part that is not zero: its root has as many names as a folder can have.
	const folder = 65536 * 32
	fat := disktest.Blank(t, "fat", sectors*sectorSize)
	disktest.Run(t, "mkfs.fat", "-F", "32", "-s", "1", fat)
	volume := forge.Bytes(disktest.ReadFile(t, fat))
	reserved, table := int64(binary.LittleEndian.Uint16(volume[14:])), int64(binary.LittleEndian.Uint32(volume[36:]))
	data := (reserved + 2*table) * sectorSize
	for c := int64(2); c < 2+folder/sectorSize; c++ {
		volume.U32(reserved*sectorSize+4*c, uint32(c+1))
	}
	volume.U32(reserved*sectorSize+4*(1+folder/sectorSize), 0x0fffffff)
	for i := range int64(folder / 32) {
		volume.Text(data+32*i, fmt.Sprintf("N%07dTXT ", i))
	}
	volume = volume[:data+folder]

	var entries []tableforge.GPTEntry
	for i := range uint64(count) {
		entries = append(entries, tableforge.GPTEntry{First: 63 + sectors*i, Last: 62 + sectors*(i+1)})
	}
	const size = (63 + sectors*count + 100) * sectorSize
	disk := tableforge.NewGPT(sectorSize, size/sectorSize, count, entries...)
	pieces := map[int64][]byte{0: disk[:63*sectorSize], size - 34*sectorSize: disk[size-34*sectorSize:]}
	for i := range int64(count) {
		pieces[(63+sectors*i)*sectorSize] = volume
	}
	path := filepath.Join(t.TempDir(), "disk.raw")
	sparsely(t, path, size, pieces)
	ends := measure(t, []string{"inspect", "--json", path}, []string{"plan", "--json", path})
	var report jsonInspect
	unmarshal(t, ends[0], &report)
	require.Len(t, report.Partitions, count)
	require.Equal(t, "fat32", report.Partitions[count-1].Volume.Kind)
	require.True(t, slices.ContainsFunc(report.Findings, func(f jsonFinding) bool {
		return strings.Contains(f.Text, "limit exceeded")
	}))
}

// TestManyHostileHives fills a disk with registry hives, each of which is as dear as it can be.
func TestManyHostileHives(t *testing.T) {
	t.Parallel()
	keys := make([]hiveforge.Key, 9_999)
	for i := range keys {
		keys[i].Name = fmt.Sprintf("Key%04d", i)
	}
	below := slices.Clone(keys)
	keys[0].Keys, keys[0].List = below, "lh"
	f := hiveforge.New(5, hiveforge.Key{Name: "ROOT", Keys: keys, List: "ri"})
	named := func(at int64) int64 { return 4096 + 4 + int64(binary.LittleEndian.Uint32(f[at:])) } // a cell
	root := named(hiveforge.RootCell)
	list := named(root + 28)
	first := named(named(list+4) + 4)
	f.U32(root+20, 1<<32-1)
	for i := range int64(3333) { // each names all keys below the first
		f.U32(list+4+4*i, binary.LittleEndian.Uint32(f[first+28:]))
	}
	hive := hostFile(t, string(f))
	d := windowsDisk{signature: windowsSignature, sectors: 200_000}
	for i := range int64(4) {
		d.volumes = append(d.volumes, windowsVolume{
			number: int(i + 1), kind: "fat16", typ: "6", start: 63 + i*40_000,
			sectors: 40_000, files: map[string]string{
				"Boot/BCD": hive, "EFI/Microsoft/Boot/BCD": hive, "WINDOWS/System32/config/SYSTEM": hive,
				"WINNT/System32/config/SYSTEM": hive,
			},
		})
	}
	path := d.make(t)
	ends := measure(t, []string{"inspect", path}, []string{"plan", path})
	require.Equal(t, 3, ends[0].code, ends[0].stderr)
	require.Equal(t, 4, ends[1].code, ends[1].stderr)
}
