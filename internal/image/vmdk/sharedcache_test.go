package vmdk

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
)

// Files of odd sizes stand behind each other in the cache, and each reader sees its own.
func TestSharedCache(t *testing.T) {
	c := newSharedCache(tableCache)
	var readers []tableReader
	sizes := []int{1, 512, 40_000, cacheAlign, cacheAlign + 3, 7}
	for i, size := range sizes {
		f := disktest.NewMemFile(fmt.Sprint(i), bytes.Repeat([]byte{byte(i + 1)}, size), int64(size))
		require.False(t, c.has(f))
		require.NoError(t, c.add(f))
		require.True(t, c.has(f))
		readers = append(readers, c.last())
	}
	for round := range 2 {
		for i, size := range sizes {
			got := make([]byte, size)
			require.NoError(t, readers[i].Read(got, 0), "round %d, file %d", round, i)
			require.Equal(t, bytes.Repeat([]byte{byte(i + 1)}, size), got)
		}
	}
	n, err := readers[2].U32(39_996)
	require.NoError(t, err)
	require.Equal(t, uint32(0x03030303), n)
	wide, err := readers[4].U64(cacheAlign - 4)
	require.NoError(t, err)
	require.Equal(t, uint64(0x0005050505050505), wide, "what the file has, and zeros behind it")
	require.ErrorIs(t, c.add(disktest.NewMemFile("x", nil, math.MaxInt64)), ondisk.ErrLimit)
}

// What is a hole of a file, or lies between two files, is known without reading it.
func TestSharedCacheKnowsHoles(t *testing.T) {
	c := newSharedCache(tableCache)
	for i := range 3 {
		require.NoError(t, c.add(holedFile{disktest.NewMemFile(fmt.Sprint(i), nil, cacheAlign+100)}))
	}
	const second = 2 * cacheAlign
	for _, want := range []disk.Extent{
		{Range: disk.Range{Off: second, Len: 50}},
		{Range: disk.Range{Off: second + 50, Len: cacheAlign + 50}, Zero: true},
		{Range: disk.Range{Off: second + cacheAlign + 100, Len: cacheAlign - 100}, Zero: true},
	} {
		e, err := c.Extent(want.Off, math.MaxInt64)
		require.NoError(t, err)
		require.Equal(t, want, e)
	}
	_, err := c.Extent(c.Size(), 1)
	require.ErrorIs(t, err, io.EOF)
}

// holedFile has 50 bytes, and a hole.
type holedFile struct{ *disktest.MemFile }

func (f holedFile) Extent(off, most int64) (disk.Extent, error) {
	if off < 50 {
		return disk.Extent{Range: disk.Range{Off: off, Len: min(50-off, most)}}, nil
	}
	return disk.Extent{Range: disk.Range{Off: off, Len: min(f.Size()-off, most)}, Zero: true}, nil
}
