package raw_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

func TestRawWithHoles(t *testing.T) {
	for _, size := range []int{512, 64 * kib, 3*mib + 512} {
		data := imagetest.Noise(1, size)
		path := filepath.Join(t.TempDir(), "disk.img")
		imagetest.SparseFile(t, path, data)
		img := imagetest.Open(t, path)
		require.Equal(t, "raw", img.Format)
		disktest.CheckBytes(t, img.Disk, data)
	}
}

// The file system's holes reach the copier: an empty terabyte is one extent.
func TestRawHolesAreExtents(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("holes of files are not read on Windows")
	}
	path := filepath.Join(t.TempDir(), "disk.img")
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(1<<40))
	_, err = f.WriteAt([]byte{1}, 1<<39)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	d := imagetest.Open(t, path).Disk
	e, err := d.Extent(0, 1<<40)
	require.NoError(t, err)
	require.True(t, e.Zero)
	require.LessOrEqual(t, e.Len, int64(1<<39))
	require.Greater(t, e.Len, int64(1<<38))
	e, err = d.Extent(1<<39, 1<<39)
	require.NoError(t, err)
	require.False(t, e.Zero)
	require.Less(t, e.Len, int64(mib), "the data ends with its block")
}
