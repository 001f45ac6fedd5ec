package vmdk

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Expected sizes and places are those of Virtual Disk Format 1.1, "Hosted Sparse Extents".
func TestStructSizes(t *testing.T) {
	assert.Equal(t, 512, binary.Size(sparseHeader{}), "sparse header")
	b, err := binary.Append(nil, binary.LittleEndian,
		sparseHeader{Capacity: 1, GrainSize: 2, NumGTEsPerGT: 3, GDOffset: 4, UncleanShutdown: 5, CompressAlgo: 6})
	require.NoError(t, err)
	for at, want := range map[int]byte{atCap: 1, atGrain: 2, atGTEs: 3, atGD: 4, 72: 5, 77: 6} {
		assert.Equal(t, want, b[at], "byte %d", at)
	}
}

// Those of an extent of ESX are from the same document, "ESX Server Sparse Extents": four sectors.
func TestCOWDHeaderSize(t *testing.T) {
	require.Equal(t, 4*512, binary.Size(cowdHeader{}))
	b, err := binary.Append(nil, binary.LittleEndian,
		cowdHeader{GrainSize: 1, GDOffset: 2, NumGDEntries: 3, UncleanShutdown: 4})
	require.NoError(t, err)
	for at, want := range map[int]byte{atCOWDGrain: 1, atCOWDGD: 2, atCOWDNumGDE: 3, atCOWDUnclean: 4} {
		assert.Equal(t, want, b[at], "byte %d", at)
	}
}

// QEMU: block/vmdk.c asserts that both are one sector.
func TestSESparseHeaderSizes(t *testing.T) {
	require.Equal(t, 512, binary.Size(seVolatile{}))
	b, err := binary.Append(nil, binary.LittleEndian, seHeader{
		Capacity: 1, GrainTableSize: 2, Flags: 3, VolatileHeaderOffset: 4, GrainDirOffset: 5, GrainTablesOffset: 6,
		GrainsOffset: 7,
	})
	require.NoError(t, err)
	require.Len(t, b, 512)
	for at, want := range map[int]byte{
		atSECapacity: 1, atSETable: 2, atSEFlags: 3, atSEVolatile: 4, atSEGD: 5,
		atSEGTs: 6, atSEGrains: 7,
	} {
		assert.Equal(t, want, b[at], "byte %d", at)
	}
}
