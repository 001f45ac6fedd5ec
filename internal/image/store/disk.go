package store

import (
	"path/filepath"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// Disk is a device that is changed in its place, past the page cache. Offsets and lengths are any: what is less than a
// sector is read first.
type Disk struct {
	*blockdev

	d    *Device
	path string
}

// Disk returns the device as what a disk lies on. Closing it leaves the claim.
func (d *Device) Disk() (*Disk, error) {
	path, err := filepath.Abs(d.Path)
	b := &blockdev{path: d.Path, file: d.file, stop: func() error { return nil }}
	if err == nil {
		err = b.open()
	}
	return &Disk{b, d, path}, err
}

// Path returns the absolute path, as the user names the device.
func (x *Disk) Path() string { return x.path }

// ID returns what the system knows the device by.
func (x *Disk) ID() string { return x.d.ID }

// End returns the size in bytes.
func (x *Disk) End() int64 { return x.d.Size }

// Extent returns the whole range: a device does not say where its holes are.
func (x *Disk) Extent(off, limit int64) (disk.Extent, error) {
	return disk.Extent{Range: disk.Range{Off: off, Len: limit}}, nil
}

// WriteAt writes bytes. What else is in their sectors stays.
func (x *Disk) WriteAt(p []byte, off int64) (int, error) {
	from, to := units.AlignDown(off, x.d.Sector), units.AlignUp(off+int64(len(p)), x.d.Sector)
	if from == off && to == off+int64(len(p)) {
		return x.blockdev.WriteAt(p, off)
	}
	b := make([]byte, to-from)
	if err := ondisk.ReadFull(x.blockdev, b, from); err != nil {
		return 0, err
	}
	copy(b[off-from:], p)
	if _, err := x.blockdev.WriteAt(b, from); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Zero has a range read as zeros.
func (x *Disk) Zero(off, n int64) error {
	from := min(units.AlignUp(off, x.d.Sector), off+n)
	to := max(units.AlignDown(off+n, x.d.Sector), from)
	if from < to {
		if err := x.blockdev.Zero(from, to-from); err != nil {
			return err
		}
	}
	for _, r := range []disk.Range{{Off: off, Len: from - off}, {Off: to, Len: off + n - to}} {
		if r.Len > 0 {
			if _, err := x.WriteAt(make([]byte, r.Len), r.Off); err != nil {
				return err
			}
		}
	}
	return nil
}

// Truncate refuses another size.
func (x *Disk) Truncate(size int64) error {
	if size != x.d.Size {
		return ondisk.In(ondisk.ErrOutput, "%s has %d bytes, want %d: a device keeps its size", x.d, x.d.Size, size)
	}
	return nil
}

// Reread has the kernel read the table again. A device without partitions cannot, and one in use is not claimed.
func (x *Disk) Reread() { _ = sys.Of(x.d.file).RereadTable() }
