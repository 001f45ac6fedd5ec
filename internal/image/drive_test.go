package image

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/ondisk"
)

// drive is a disk as Windows shows it.
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

// A disk of Windows is a raw one, also where something else seems to be on it.
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

// What Windows uses is not copied, unless Windows could not be told to do without.
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
