package vmdk_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
)

// A disk of the type custom can have flat extents, some at an offset, beside sparse ones that qemu-img wrote. A copy of
// it is a split disk.
func TestCustomDisk(t *testing.T) {
	dir := t.TempDir()
	flat, grains, tail := imagetest.Noise(1, 3*mib+7*sector), imagetest.Noise(2, 4*mib), imagetest.Noise(3, 2*mib)
	clear(grains[mib : 3*mib])
	imagetest.Write(t, dir, "a-flat.vmdk", flat)
	imagetest.Write(t, dir, "tail.bin", append(imagetest.Noise(4, 5*sector), tail...))
	raw := imagetest.Write(t, dir, "b.img", grains)
	disktest.Run(t, "qemu-img", "convert", "-O", "vmdk", "-o", "subformat=twoGbMaxExtentSparse", raw,
		filepath.Join(dir, "b.vmdk"))
	require.NoError(t, os.Remove(raw))
	path := imagetest.Write(t, dir, "disk.vmdk", []byte(vmdkforge.Descriptor("custom",
		fmt.Sprintf(`RW %d FLAT "a-flat.vmdk" 0`, len(flat)/sector),
		fmt.Sprintf(`RW %d SPARSE "b-s001.vmdk"`, len(grains)/sector),
		"RW 100 ZERO",
		fmt.Sprintf(`RDONLY %d FLAT "tail.bin" 5`, len(tail)/sector))))
	want := slices.Concat(flat, grains, make([]byte, 100*sector), tail)

	img := imagetest.Open(t, path)
	disktest.CheckBytes(t, img.Disk, want)
	imagetest.NoDamage(t, img)
	require.Len(t, img.Files(), 4)
	require.Contains(t, imagetest.Codes(img.Issues, ondisk.Warn), "view", "an extent lies inside of a file")
	copied := filepath.Join(t.TempDir(), "copy.vmdk")
	imagetest.Copy(t, img, copied, store.CreateOptions{})
	require.Equal(t, "twoGbMaxExtentSparse", agrees(t, copied, want).Subformat)

	twice := imagetest.Write(t, dir, "twice.vmdk", []byte(vmdkforge.Descriptor("custom",
		`RW 8 FLAT "a-flat.vmdk" 0`, fmt.Sprintf(`RW %d SPARSE "b-s001.vmdk"`, len(grains)/sector),
		`RW 8 FLAT "a-flat.vmdk" 8`)))
	_, err := image.Open(twice, image.Options{})
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	require.ErrorContains(t, err, "convert it first: vmware-vdiskmanager -r")

	require.NoError(t, os.Truncate(filepath.Join(dir, "a-flat.vmdk"), int64(len(flat)-1)))
	_, err = image.Open(path, image.Options{})
	require.ErrorContains(t, err, fmt.Sprintf(`but the file "a-flat.vmdk" has %d bytes`, len(flat)-1))
}

// A map of a device is a flat disk where a file beside it has the data. A device is not opened, and a map without data
// is no disk.
func TestMapsOfDevices(t *testing.T) {
	data := imagetest.Noise(6, 200*sector)
	for kind, c := range map[string]struct{ word, subformat string }{
		"fullDevice":                  {"FLAT", "monolithicFlat"},
		"custom":                      {"FLAT", "monolithicFlat"},
		"vmfsRaw":                     {"VMFSRAW", "vmfs"},
		"vmfsRDM":                     {"VMFSRDM", "vmfs"},
		"vmfsRawDeviceMap":            {"VMFSRDM", "vmfs"},
		"vmfsPassthroughRawDeviceMap": {"VMFSRDM", "vmfs"},
	} {
		t.Run(kind, func(t *testing.T) {
			dir := t.TempDir()
			open := func(file string) (*image.Image, error) {
				line := fmt.Sprintf(`RW 200 %s "%s"`, c.word, file)
				return image.Open(imagetest.Write(t, dir, "disk.vmdk", []byte(vmdkforge.Descriptor(kind, line))),
					image.Options{})
			}
			imagetest.Write(t, dir, "disk-rdm.vmdk", data)
			img, err := open("disk-rdm.vmdk")
			require.NoError(t, err)
			disktest.CheckBytes(t, img.Disk, data)
			require.Equal(t, c.subformat, img.Subformat)
			require.Equal(t, kind == "custom", img.Flat)
			require.Equal(t, kind != "custom", img.MapsDevice)
			copied := filepath.Join(t.TempDir(), "copy.vmdk")
			imagetest.Copy(t, img, copied, store.CreateOptions{})
			require.NoError(t, img.Close())
			qemuReads(t, copied, data)

			for _, device := range []string{
				"/dev/sda", `\\.\PhysicalDrive0`, "/vmfs/devices/disks/vmhba1:0:0:0",
				`\\.\PhysicalDrive0" 0 partitionUUID "x`, // as VMware Workstation writes it
			} {
				_, err = open(device)
				require.ErrorIs(t, err, ondisk.ErrUnsupported)
				require.ErrorContains(t, err, "extent 0 is the device ")
			}
			imagetest.Write(t, dir, "disk-rdm.vmdk", bytes.Repeat([]byte{1}, sector))
			_, err = open("disk-rdm.vmdk")
			if c.word == "FLAT" {
				require.ErrorIs(t, err, ondisk.ErrFormat)
				return
			}
			require.ErrorIs(t, err, ondisk.ErrUnsupported)
			require.ErrorContains(t, err, "has 512 of 102400 bytes")
		})
	}
}

// VirtualBox and VMware map partitions: sectors of the table from a file of its own, and the rest from others.
func TestMapOfPartitions(t *testing.T) {
	dir := t.TempDir()
	table, part := imagetest.Noise(7, 63*sector), imagetest.Noise(8, 300*sector)
	imagetest.Write(t, dir, "disk-pt.vmdk", table)
	imagetest.Write(t, dir, "part.img", part)
	text := vmdkforge.Descriptor("partitionedDevice", `RW 63 FLAT "disk-pt.vmdk" 0`, `RW 300 FLAT "part.img" 0`,
		"RW 37 ZERO")
	img := imagetest.Open(t, imagetest.Write(t, dir, "disk.vmdk", []byte(text)))
	disktest.CheckBytes(t, img.Disk, slices.Concat(table, part, make([]byte, 37*sector)))
	require.Equal(t, "monolithicFlat", img.Subformat)
}
