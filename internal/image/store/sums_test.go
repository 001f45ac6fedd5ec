package store_test

import (
	"context"
	"crypto/sha256"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/units"
)

// The digests of an output are those of its files, the named one first. What is not wanted any more has none.
func TestSumsOfAnOutput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	img, err := image.Open(imagetest.Write(t, dir, "src.img", make([]byte, units.MiB)), image.Options{})
	require.NoError(t, err)
	defer img.Close()
	path := filepath.Join(dir, "out.vmdk")
	out, err := store.Create(path, img.Disk.Size(), img, flat)
	require.NoError(t, err)
	_, err = out.WriteAt([]byte("some data"), 5*units.SectorSize)
	require.NoError(t, err)
	require.NoError(t, out.Finish())
	var total, read int64
	sums, err := out.Sums(t.Context(), func(n int64) { total += n }, func(n int64) { read += n })
	require.NoError(t, err)
	require.Equal(t, total, read)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	quiet := func(int64) {}
	_, err = out.Sums(ended, quiet, quiet)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []string{sums[0].File, sums[1].File}, out.Files())
	require.NoError(t, out.Publish())
	require.NoError(t, out.Discard())
	for _, s := range sums {
		b := disktest.ReadFile(t, filepath.Join(dir, s.File))
		require.Equal(t, sha256.Sum256(b), s.SHA256, s.File)
	}
}
