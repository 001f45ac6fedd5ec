package realign

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// standIn is a device in a file, of a size and with bytes at some places.
func standIn(t *testing.T, size int64, at map[int64][]byte) *Device {
	t.Helper()
	path := filepath.Join(t.TempDir(), "device")
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(size))
	for off, b := range at {
		_, err := f.WriteAt(b, off)
		require.NoError(t, err)
	}
	return &Device{Device: &store.Device{Path: "/dev/x", Node: path, Size: size, Sector: sector}}
}

// A device is blank where nothing lies at its edges, nor where file systems have copies of their superblocks, nor in
// samples. What else lies on it has a name.
func TestContentOfADevice(t *testing.T) {
	t.Parallel()
	x, qcow2 := []byte("x"), qcow2forge.New(make([]byte, 1<<16), 16).Bytes
	mbr := tableforge.NewMBR(2048, tableforge.Slot{Type: 0xda, Start: 63, Sectors: 300})
	for name, c := range map[string]struct {
		size int64
		at   map[int64][]byte
		want string
	}{
		"nothing":                  {units.GiB, nil, ""},
		"the end of its head":      {units.GiB, map[int64][]byte{4*units.MiB - 1: x}, "unknown content"},
		"behind its head":          {units.GiB, map[int64][]byte{5 * units.MiB: x}, ""},
		"the start of its tail":    {units.GiB, map[int64][]byte{1023 * units.MiB: x}, "unknown content"},
		"a backup of ext":          {units.GiB, map[int64][]byte{8 * units.MiB: x}, "unknown content"},
		"a sample":                 {units.GiB, map[int64][]byte{528 * units.MiB: x}, "unknown content"},
		"a table":                  {units.MiB, map[int64][]byte{0: mbr}, "MBR"},
		"an image":                 {units.MiB, map[int64][]byte{0: qcow2}, "qcow2 image"},
		"a mark":                   {units.MiB, map[int64][]byte{0: image.Mark(sector)}, ""},
		"a mark before other data": {units.MiB, map[int64][]byte{0: image.Mark(sector), sector: x}, "unfinished copy"},
	} {
		d := standIn(t, c.size, c.at)
		got, err := d.content()
		require.NoError(t, err, name)
		if c.want != "" {
			c.want = fmt.Sprintf("%d bytes: %s", c.size, c.want)
		}
		require.Equal(t, c.want, got, name)
	}
	_, err := (&Device{Device: &store.Device{Node: filepath.Join(t.TempDir(), "none"), Sector: sector}}).content()
	require.ErrorIs(t, err, os.ErrNotExist)
}

// What cannot be read of a device is not taken for blank.
func TestBadSectorsOfADevice(t *testing.T) {
	t.Parallel()
	mbr := tableforge.NewMBR(512, tableforge.Slot{Type: 0xda, Start: 63, Sectors: 300})
	for _, at := range []map[int64][]byte{nil, {0: image.Mark(sector)}, {0: mbr}} {
		d := standIn(t, units.MiB/4, at)
		img, err := image.Open(d.Node, image.Options{Format: "raw"})
		require.NoError(t, err)
		defer img.Close()
		disktest.EveryBadRead(t, img.Disk, func(bad disk.Disk) (string, error) {
			img.Disk = broken{bad}
			got, err := d.contentOf(img)
			if strings.Contains(got, "unknown content") && at[0] == nil || strings.Contains(got, "unfinished copy") {
				return disktest.ErrFault.Error(), err // and so kept
			}
			return got, err
		})
	}
}

// A read of the edges or of a sample of a device that fails is an error.
func TestEdgesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	d := standIn(t, units.MiB, nil)
	img, err := image.Open(d.Node, image.Options{Format: "raw"})
	require.NoError(t, err)
	defer img.Close()
	good := img.Disk
	for n := range 3 { // head, tail, and the first sample
		img.Disk = broken{failsOnce{good, &n}}
		_, err = d.contentOf(img)
		require.ErrorIs(t, err, disktest.ErrFault)
	}
	_, err = blankAt(unread(good.Size()), disk.Range{Len: sector})
	require.ErrorIs(t, err, disktest.ErrFault)
}

// broken is a disk whose faults are those of the system.
type broken struct{ disk.Disk }

func (d broken) ReadAt(p []byte, off int64) (int, error) {
	n, err := d.Disk.ReadAt(p, off)
	if errors.Is(err, disktest.ErrFault) {
		err = errors.Join(err, syscall.EIO)
	}
	return n, err
}

// The volumes of a device stand in their order with their labels, and of many the first.
func TestVolumesOfADevice(t *testing.T) {
	t.Parallel()
	ext := &volume.Volume{Kind: volume.Ext4, Label: "data"}
	l := &layout.Layout{Table: &table.Table{Scheme: table.GPT}, Outer: &volume.Volume{Kind: volume.ISO9660}}
	l.Partitions = []boot.Partition{{Volume: ext}, {Volume: &volume.Volume{Kind: volume.Unknown}}}
	require.Equal(t, `GPT, iso9660, ext4 "data"`, volumesOf(l))
	l.Partitions = slices.Repeat([]boot.Partition{{Volume: ext}}, 9)
	require.Equal(t, `GPT, iso9660, `+strings.Repeat(`ext4 "data", `, 6)+"3 more", volumesOf(l))
	require.Equal(t, "unknown content", volumesOf(&layout.Layout{}))
}

// A device that holds something is overwritten only if the user names that.
func TestDeviceThatIsNotBlank(t *testing.T) {
	t.Parallel()
	s := open(t, smallDisk(t))
	p := mustPlan(t, s)
	d := standIn(t, s.Image.Disk.Size(), map[int64][]byte{0: []byte("x")})
	small := standIn(t, s.Image.Disk.Size()-sector, nil)
	_, err := small.create(t.Context(), s, p)
	require.ErrorContains(t, err, "is too small")
	small.Node, small.Size = t.TempDir(), d.Size
	_, err = small.create(t.Context(), s, p)
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	d.Overwrite = "something else"
	_, err = d.create(t.Context(), s, p)
	require.ErrorContains(t, err, "is not blank, and its content would be lost (--overwrite-content names")
	require.ErrorContains(t, err, ": unknown content'")
	_, err = (&Job{Jobs: 1}).Write(t.Context(), s, p, d)
	require.ErrorContains(t, err, ": unknown content'")
}
