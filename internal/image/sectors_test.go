package image

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// Sector sizes that a container can state: [MS-VHDX] 2.6.2.4 has 512 and 4096; the others use sectors of 512 bytes, as
// QEMU, VirtualBox and VMware show them. A raw image states none, so its machine has to be configured.
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

// An image that states its size keeps it in a copy of its own format; if its table has another size, the copy states
// that.
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

// drive is a disk as shown by Windows.
type drive struct {
	*bytes.Reader
	used, fixed bool
	closed      int
}

func (*drive) Name() string               { return "PhysicalDrive1" }
func (*drive) ID() string                 { return "PhysicalDrive1" }
func (*drive) Forget()                    {}
func (*drive) Device() bool               { return true }
func (*drive) Unchanged() error           { return nil }
func (d *drive) Used() (used, fixed bool) { return d.used, d.fixed }
func (d *drive) Close() error             { d.closed++; return nil }
func (d *drive) Extent(off, limit int64) (disk.Extent, error) {
	return disk.Extent{Range: disk.Range{Off: off, Len: min(limit, d.Size()-off)}}, nil
}

// A Windows disk is a raw one, even if its content resembles another format.
func TestDrivesAreRaw(t *testing.T) {
	t.Parallel()
	mbr := make([]byte, 1<<20)
	copy(mbr[510:], "\x55\xaa")
	d := &drive{Reader: bytes.NewReader(mbr)}
	img, err := openRaw(d, `\\.\PhysicalDrive1`, Options{SectorSize: 4096})
	require.NoError(t, err)
	require.Equal(t, "raw", img.Format)
	require.Equal(t, int64(4096), img.Disk.SectorSize())
	require.True(t, img.Unseen())
	require.Empty(t, img.Issues)
	require.NoError(t, img.Close())
	require.Equal(t, 1, d.closed)

	descriptor := "# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\n" +
		"createType=\"monolithicFlat\"\n" +
		"RW 2048 FLAT \"a-flat.vmdk\" 0\nddb.adapterType = \"ide\"\n"
	for what, content := range map[string][]byte{
		"qcow2": qcow2forge.New(mbr, 16).Bytes, "an image in files": []byte(descriptor),
	} {
		d := &drive{Reader: bytes.NewReader(content)}
		_, err := openRaw(d, `\\.\PhysicalDrive1`, Options{})
		var refused *ondisk.Refusal
		require.ErrorAs(t, err, &refused, what)
		require.Contains(t, refused.Reason, "the device holds "+what)
		require.Equal(t, 1, d.closed, what)
	}
	older := &drive{Reader: bytes.NewReader(qcow2forge.New(mbr, 16).Bytes)}
	img, err = openRaw(older, `\\.\PhysicalDrive1`, Options{Format: "raw"})
	require.NoError(t, err)
	require.Equal(t, "format-overridden", img.Issues[0].Code)
	require.NoError(t, img.Close())
}

// A disk that Windows uses is not copied, unless Windows cannot take it offline.
func TestDrivesInUse(t *testing.T) {
	t.Parallel()
	require.Empty(t, driveBusy(&drive{fixed: true}))
	fixed := driveBusy(&drive{used: true, fixed: true})
	require.Len(t, fixed, 1)
	require.Equal(t, ondisk.Refuse, fixed[0].Effect)
	require.ErrorIs(t, fixed[0].Err, ondisk.ErrBusy)
	require.Contains(t, fixed[0].Remedy, "Set-Disk -Number 1 -IsOffline $true")
	stick := driveBusy(&drive{used: true})
	require.Len(t, stick, 1)
	require.Equal(t, ondisk.Warn, stick[0].Effect)
	require.NoError(t, stick[0].Err)
}
