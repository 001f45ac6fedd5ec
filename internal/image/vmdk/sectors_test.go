package vmdk_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
)

// flatOfSectors is a flat VMDK of bytes whose descriptor says how large the sectors are.
func flatOfSectors(t *testing.T, size int, sectors string) string {
	t.Helper()
	dir := t.TempDir()
	imagetest.Write(t, dir, "d-flat.vmdk", imagetest.Noise(7, size))
	text := vmdkforge.Descriptor("monolithicFlat", fmt.Sprintf(`RW %d FLAT "d-flat.vmdk" 0`, size/sector))
	return imagetest.Write(t, dir, "d.vmdk", []byte(text+"ddb.logicalSectorSize = \""+sectors+"\"\n"))
}

// A descriptor that names the size of sectors is believed, and every copy of it says the same.
func TestSectorSizeOfAVMDK(t *testing.T) {
	src := imagetest.Open(t, flatOfSectors(t, 256*kib, "4096"))
	require.Equal(t, int64(4096), src.Disk.SectorSize())
	for _, o := range imagetest.Kinds {
		path := filepath.Join(t.TempDir(), "out.vmdk")
		imagetest.Copy(t, src, path, o)
		if o.Format == "raw" {
			continue
		}
		require.Equal(t, int64(4096), imagetest.Open(t, path).Disk.SectorSize(), o.Subformat)
	}
	_, err := store.Create(filepath.Join(t.TempDir(), "out.qcow2"), src.Disk.Size(), src,
		store.CreateOptions{Format: "qcow2"})
	require.ErrorContains(t, err, "the format qcow2 cannot record that")
	require.Equal(t, int64(512), imagetest.Open(t, flatOfSectors(t, 256*kib, "512")).Disk.SectorSize())
}

func TestSectorSizesThatNoVMDKHas(t *testing.T) {
	_, err := image.Open(flatOfSectors(t, 256*kib, "1024"), image.Options{})
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	require.ErrorContains(t, err, "ddb.logicalSectorSize 1024")
	_, err = image.Open(flatOfSectors(t, 256*kib+sector, "4096"), image.Options{})
	require.ErrorContains(t, err, "not a multiple of it")
}
