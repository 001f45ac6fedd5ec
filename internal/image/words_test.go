package image_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
)

// An image that lacks its end says so before it says which field shows it.
func TestTruncatedImagesSaySo(t *testing.T) {
	t.Parallel()
	for format, rest := range map[string]int64{"vmdk": 100_000, "vpc": 100_000, "qcow2": 400_000, "vhdx": 5_000_000} {
		path := filepath.Join(t.TempDir(), "disk")
		disktest.Run(t, "qemu-img", "convert", "-O", format, "../../testdata/xp-lba63.vmdk", path)
		require.NoError(t, os.Truncate(path, rest))
		img, err := image.Open(path, image.Options{})
		if err == nil {
			issues, checkErr := img.Check()
			require.NoError(t, checkErr)
			require.NotEmpty(t, issues, format)
			err = issues[0].Err
			require.NoError(t, img.Close())
		}
		require.ErrorIs(t, err, ondisk.ErrFormat, format)
		require.ErrorContains(t, err, "the file is truncated or damaged, copy it again: ", format)
	}
}

// An extent names the image that it belongs to, where that lies beside it.
func TestAnExtentNamesItsImage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "vmdk", "-o", "subformat=twoGbMaxExtentSparse",
		filepath.Join(dir, "split disk.vmdk"), "4M")
	extent := filepath.Join(dir, "split disk-s001.vmdk")
	_, err := image.Open(extent, image.Options{})
	require.EqualError(t, err, `it is an extent of "split disk.vmdk": name that file instead`)
	require.NoError(t, os.Remove(filepath.Join(dir, "split disk.vmdk")))
	_, err = image.Open(extent, image.Options{})
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	require.ErrorContains(t, err, "open the descriptor file that names this extent")
}
