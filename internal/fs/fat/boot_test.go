package fat

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// Expected sizes are those of the specification.
func TestStructSizes(t *testing.T) {
	require.Equal(t, atExt, binary.Size(BPB{}), "BPB up to the extension")
	require.Equal(t, 26, binary.Size(extension{}), "extension")
	require.Equal(t, atExt32-atExt, binary.Size(bpb32{}), "FAT32 extension")
}

// forged is a FAT16 of 16,000 sectors with one field changed.
func forged(change func(f forge.Bytes)) (*bootSector, error) {
	f := make(forge.Bytes, 16000*512)
	fsforge.PutFAT16(f, 0, 16000)
	change(f)
	return readBoot(disktest.ShortDisk(f, int64(len(f))))
}

// A broken boot sector is a broken FAT only by its name: without one it is the boot sector of something else.
func TestBrokenFATNeedsItsName(t *testing.T) {
	_, err := forged(func(f forge.Bytes) { f.U8(0x15, 0xf1) })
	require.ErrorIs(t, err, ondisk.ErrFormat)
	require.ErrorContains(t, err, "media 0xf1")
	_, err = forged(func(f forge.Bytes) {
		f.U8(0x15, 0xf1)
		f.Text(0x36, "        ")
	})
	require.ErrorIs(t, err, ondisk.ErrNoMatch)
}

// A cluster without an entry in the FAT is not one, but the kind follows from the size of the volume.
// Spec: "FAT Type Determination".
func TestClustersOfShortFAT(t *testing.T) {
	whole, err := forged(func(forge.Bytes) {})
	require.NoError(t, err)
	require.Equal(t, int64(16), whole.Bits)
	b, err := forged(func(f forge.Bytes) { f.U16(0x16, 1) })
	require.NoError(t, err)
	require.Equal(t, int64(16), b.Bits)
	require.Equal(t, int64(512/2-2), b.Clusters)
	require.Greater(t, whole.Clusters, b.Clusters)
	require.True(t, b.has(255))
	require.False(t, b.has(256))
	require.False(t, b.has(1))
}
