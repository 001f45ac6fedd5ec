package image_test

import (
	"path/filepath"
	"testing"

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
	want := disktest.ReadFile(t, filepath.Join(dir, "monolithicFlat-flat.vmdk"))
	disktest.CheckBytes(t, imagetest.Open(t, filepath.Join(dir, "monolithicFlat.vmdk")).Disk, want)
	disktest.CheckBytes(t, imagetest.Open(t, filepath.Join(dir, "monolithicSparse.vmdk")).Disk, want)
	thick := disktest.ReadFile(t, filepath.Join(dir, "vmfs_thick-flat.vmdk"))
	disktest.CheckBytes(t, imagetest.Open(t, filepath.Join(dir, "vmfs_thick.vmdk")).Disk, thick)
}
