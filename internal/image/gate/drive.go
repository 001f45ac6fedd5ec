package gate

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// Drive is a disk of this machine that lies in no folder: Windows names it PhysicalDrive0. Safe for concurrent use.
type Drive struct {
	sectors
	open *sys.File
	info sys.Drive
}

// OpenDrive opens a disk by the name that Windows has for it.
func OpenDrive(path string) (*Drive, error) {
	f, info, err := sys.OpenDrive(path)
	if err != nil {
		return nil, err
	}
	d := &Drive{open: f, info: info}
	if d.sectors, err = sectorsOf(preader{f}, info.Size, info.Sector); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return d, nil
}

// Size returns the size in bytes.
func (d *Drive) Size() int64 { return d.size }

// Sector returns the sector size in bytes.
func (d *Drive) Sector() int64 { return d.sector }

// Name returns the name without folders.
func (d *Drive) Name() string { return d.info.Name }

// ID tells the disk from others.
func (d *Drive) ID() string { return d.info.Name }

// Used reports whether Windows uses the disk, and whether its medium is fixed: only then it can be taken offline.
func (d *Drive) Used() (used, fixed bool) { return !d.info.Offline, d.info.Fixed }

// Extent takes all for data.
func (d *Drive) Extent(off, limit int64) (disk.Extent, error) {
	return disk.Extent{Range: disk.Range{Off: off, Len: min(limit, d.size-off)}}, nil
}

// Forget does nothing: nothing is kept.
func (*Drive) Forget() {}

// Device returns true.
func (*Drive) Device() bool { return true }

// Unchanged returns no error: a disk does not show that others have written to it.
func (*Drive) Unchanged() error { return nil }

// Close closes the disk.
func (d *Drive) Close() error { return d.open.Close() }

// preader reads a file whose end is an error.
type preader struct{ *sys.File }

// ReadAt reads all of p, or returns an error.
func (r preader) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		got, err := r.Pread(p[n:], off+int64(n))
		if err == nil && got == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return n, err
		}
		n += got
	}
	return n, nil
}

// sectors makes of any read some of whole sectors, none longer than a piece.
type sectors struct {
	of           io.ReaderAt
	size, sector int64 // bytes
}

// maxSector is the size of the largest sectors that are read, in bytes.
const maxSector = 64 << 10

// pieces are as long as the longest read. The memory of such long ones begins at a page, as controllers of disks want
// it.
var pieces = sync.Pool{New: func() any { return new([1 << 20]byte) }}

func sectorsOf(of io.ReaderAt, size, sector int64) (sectors, error) {
	switch {
	case size == 0:
		return sectors{}, ondisk.In(ondisk.ErrFormat, "there is no medium in the device: it has 0 bytes")
	case sector < 512 || sector > maxSector || sector&(sector-1) != 0 || size < 0 || size%sector != 0:
		return sectors{}, ondisk.In(ondisk.ErrUnsupported, "the device has %d bytes in sectors of %d bytes, and "+
			"trueup reads whole sectors of 512 to %d bytes", size, sector, maxSector)
	}
	return sectors{of, size, sector}, nil
}

// ReadAt follows the contract of io.ReaderAt.
func (s sectors) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 || off >= s.size {
		return 0, io.EOF
	}
	if int64(len(p)) > s.size-off {
		p, err = p[:s.size-off], io.EOF
	}
	piece, _ := pieces.Get().(*[1 << 20]byte)
	defer pieces.Put(piece)
	for n < len(p) {
		at := off + int64(n)
		from := at - at%s.sector
		end := off + int64(len(p)) + s.sector - 1
		part := piece[:min(end-end%s.sector-from, int64(len(piece)))]
		if _, bad := s.of.ReadAt(part, from); bad != nil {
			return n, fmt.Errorf("read the device at byte %d: %w", from, bad)
		}
		n += copy(p[n:], part[at-from:])
	}
	return n, err
}
