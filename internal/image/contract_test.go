package image_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
)

const (
	sector = 512
	kib    = 1 << 10
	mib    = 1 << 20
)

// VMware's own files. The flat one is the disk byte for byte.
func TestCorpusImagesAreOneDisk(t *testing.T) {
	dir := disktest.CorpusSet(t, "vmdk-rs")
	want, err := os.ReadFile(filepath.Join(dir, "monolithicFlat-flat.vmdk"))
	require.NoError(t, err)
	disktest.CheckBytes(t, imagetest.Open(t, filepath.Join(dir, "monolithicFlat.vmdk")).Disk, want)
	disktest.CheckBytes(t, imagetest.Open(t, filepath.Join(dir, "monolithicSparse.vmdk")).Disk, want)
	thick, err := os.ReadFile(filepath.Join(dir, "vmfs_thick-flat.vmdk"))
	require.NoError(t, err)
	disktest.CheckBytes(t, imagetest.Open(t, filepath.Join(dir, "vmfs_thick.vmdk")).Disk, thick)
}
