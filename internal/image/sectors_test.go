package image

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// What a container can state: [MS-VHDX] 2.6.2.4 has 512 and 4096; the others count sectors of 512 bytes, which is what
// QEMU, VirtualBox and VMware show them with. A raw image states nothing, so that its machine is told.
func TestSectorsThatFormatsHold(t *testing.T) {
	for format, sizes := range map[string][]int64{
		"raw": {512, 1024, 2048, 4096}, "vhdx": {512, 4096},
		"qcow2": {512}, "vmdk": {512}, "vhd": {512}, "vdi": {512},
	} {
		for _, n := range disk.SectorSizes {
			img := &Image{Format: "raw", Image: &driver.Image{Disk: disktest.Memory(make([]byte, 4096))}}
			err := img.HoldsSectors(format, n)
			if slices.Contains(sizes, n) {
				require.NoError(t, err, "%s of %d", format, n)
				continue
			}
			refusal := &ondisk.Refusal{}
			require.ErrorAs(t, err, &refusal, "%s of %d", format, n)
			require.Contains(t, refusal.Reason, "the format "+format+" cannot record that")
			require.Contains(t, refusal.Remedy, "--to raw")
			require.Equal(t, n == 4096, strings.Contains(refusal.Remedy, "--to vhdx"), "VHDX holds no %d", n)
		}
	}
}

// An image that states the size keeps it in a copy of its own format; one whose table counts others states its own.
func TestSectorsThatImagesState(t *testing.T) {
	of := func(format string, sector int64) *Image {
		return &Image{Format: format, Image: &driver.Image{
			Disk: disk.InSectors(disktest.Memory(make([]byte, 8192)), sector),
		}}
	}
	require.Zero(t, of("raw", 4096).StatedSectors(), "a file states none")
	device := of("raw", 512)
	device.device = 512
	require.EqualValues(t, 512, device.StatedSectors())
	stated := of("vmdk", 4096)
	require.EqualValues(t, 4096, stated.StatedSectors())
	require.NoError(t, stated.HoldsSectors("vmdk", 4096))
	require.Error(t, stated.HoldsSectors("vdi", 4096))
	silent := of("vmdk", 512)
	silent.CountIn(4096)
	require.EqualValues(t, 512, silent.StatedSectors())
	require.EqualValues(t, 4096, silent.Disk.SectorSize())
	require.Error(t, silent.HoldsSectors("vmdk", 4096))
	disktest.CheckBytes(t, silent.Disk, make([]byte, 8192))
}
