package raw_test

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/ondisk"
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
	path := disktest.Blank(t, "disk.img", 1<<40)
	disktest.WriteAt(t, path, 1<<39, []byte{1})
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

// A file with a partition table that ends within a sector is a disk to QEMU, which fills the sector with zeros. One
// without is not a disk image.
func TestRawOfAnOddSize(t *testing.T) {
	disktest.Tool(t, "qemu-img")
	for _, more := range []int{1, 102, 511} {
		data := tableforge.NewMBR(2048, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 1000})
		data = append(data, imagetest.Noise(7, more)...)
		path := filepath.Join(t.TempDir(), "disk.img")
		require.NoError(t, os.WriteFile(path, data, 0o644))
		img := imagetest.Open(t, path)
		require.Equal(t, "raw", img.Format)
		require.False(t, img.Flat, "no command writes into it")
		require.Nil(t, img.Around)
		require.Equal(t, []string{raw.CodeOdd}, imagetest.Codes(img.Issues, ondisk.Warn))
		require.Contains(t, img.Issues[0].Remedy, "truncate -s 1048576 ")
		whole := filepath.Join(t.TempDir(), "whole.img")
		disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "raw", path, whole)
		disktest.CheckBytes(t, img.Disk, disktest.ReadFile(t, whole))

		for name, spoil := range map[string]func(forge.Bytes){
			"no signature": func(f forge.Bytes) { f.U8(510, 0) },
			"no entry":     func(f forge.Bytes) { clear(f[446:510]) },
			"code":         func(f forge.Bytes) { f.U8(446, 0x33) },
		} {
			other := slices.Clone(data)
			spoil(other)
			require.NoError(t, os.WriteFile(path, other, 0o644))
			_, err := image.Open(path, image.Options{})
			require.ErrorIs(t, err, raw.ErrNone, name)
		}
	}
}
