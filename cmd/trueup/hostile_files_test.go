package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// TestManyHostileFileSystems gives every partition of a full GPT a root folder of 65,536 names: looking for a file is dear in each of them, and
// together they must cost no more than one.
func TestManyHostileFileSystems(t *testing.T) {
	const count, sectors = 128, 8192
	volume := crowdedFAT(t, sectors)
	var entries []disktest.GPTEntryFields
	for i := range uint64(count) {
		entries = append(entries, disktest.GPTEntryFields{First: 63 + sectors*i, Last: 62 + sectors*(i+1)})
	}
	const size = (63 + sectors*count + 100) * sectorSize
	disk := disktest.ForgeGPT(sectorSize, size/sectorSize, count, entries...)
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
	(hostile{says: []string{"limit exceeded"}}).checkFindings(t, report.Findings)
}

// crowdedFAT is the part of a FAT32 that is not zero: its root has as many names as a folder can have.
func crowdedFAT(t testing.TB, sectors int64) disktest.Forged {
	t.Helper()
	const folder = 65536 * 32
	path := filepath.Join(t.TempDir(), "fat")
	require.NoError(t, os.WriteFile(path, make([]byte, sectors*sectorSize), 0o600))
	disktest.Run(t, "mkfs.fat", "-F", "32", "-s", "1", path)
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	f := disktest.Forged(raw)
	reserved, table := int64(binary.LittleEndian.Uint16(raw[14:])), int64(binary.LittleEndian.Uint32(raw[36:]))
	data := (reserved + 2*table) * sectorSize
	for c := int64(2); c < 2+folder/sectorSize; c++ {
		f.U32(reserved*sectorSize+4*c, uint32(c+1))
	}
	f.U32(reserved*sectorSize+4*(1+folder/sectorSize), 0x0fffffff)
	for i := range int64(folder / 32) {
		f.Text(data+32*i, fmt.Sprintf("N%07dTXT ", i))
	}
	return f[:data+folder]
}
