package gate

import (
	"errors"
	"fmt"
	"io"
	"path"
	"sync"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// Remote is an image of a single file on a server. Safe for concurrent use.
type Remote interface {
	io.ReaderAt
	Size() int64
	Name() string
	ID() string
	Extent(off, max int64) (disk.Extent, error)
	Forget()      // drops bytes read before, so that they are read again
	Device() bool // its name has no meaning, and Unchanged does not detect writes of others
	Unchanged() error
	Close() error
}

// Opened holds the open files of an image: in one folder, in folders below it, and in further folders that the user
// allows.
type Opened struct {
	Dir     *Folder
	Base    string // name of the first file
	Under   string // path of the folder in the folder of the package; empty if they are the same
	Handles []*File
	Further []*Folder // folders of parents and extents
	Remote  Remote    // replaces all files; nil for local files
	Packed  *File     // compressed file behind Remote, or nil
}

// Local lists the files of this machine from which the image is read.
func (o *Opened) Local() []*File {
	if o.Packed != nil {
		return []*File{o.Packed}
	}
	return o.Handles
}

// States lists the files, including the parents of the image and the archive around it.
func (o *Opened) States() []State {
	var out []State
	for _, f := range o.Handles {
		s := stateOf(f)
		s.Name = path.Join(o.Under, s.Name)
		out = append(out, s)
	}
	if r := o.Remote; r != nil {
		out = append(out, State{Name: r.Name(), Size: r.Size(), Allocated: r.Size()})
	}
	return out
}

// Uses reports whether a path leads to one of the files, and returns its name.
func (o *Opened) Uses(path string) (name string, ok bool) {
	st, err := sys.Stat(path)
	if err != nil {
		return "", false
	}
	for _, f := range o.Local() {
		if f.Is(st) {
			return f.name, true
		}
	}
	return "", false
}

// Looped returns the first file that backs a loop device, and the device, or empty strings.
func (o *Opened) Looped(loops map[sys.ID]string) (name, loop string) {
	for _, f := range o.Handles {
		if loop := loops[f.Info.ID]; loop != "" {
			return f.name, loop
		}
	}
	return "", ""
}

// Forget drops the bytes read from a server, so that they are read again.
func (o *Opened) Forget() {
	if o.Remote != nil {
		o.Remote.Forget()
	}
}

// Uncache drops all files from the kernel's page cache, and reports whether that is known to have worked.
func (o *Opened) Uncache() bool {
	cold := true
	o.Forget()
	for _, f := range o.Handles {
		cold = f.Uncache() && cold
	}
	return cold
}

// Pass makes the kernel drop from memory all bytes that are read after this call, see File.Pass.
func (o *Opened) Pass() {
	for _, f := range o.Handles {
		f.Pass()
	}
}

// Unseen reports whether Unchanged cannot detect that others have written to the image.
func (o *Opened) Unseen() bool { return o.OnDevice() || o.Remote != nil && o.Remote.Device() }

// OnDevice reports whether the first file is a block device.
func (o *Opened) OnDevice() bool { return len(o.Handles) > 0 && o.Handles[0].device }

// Unchanged verifies that no file has changed since it was opened.
func (o *Opened) Unchanged() error {
	for _, f := range o.Handles {
		if err := f.Unchanged(); err != nil {
			return err
		}
	}
	if o.Remote != nil {
		return o.Remote.Unchanged()
	}
	return nil
}

// Close closes all files.
func (o *Opened) Close() error {
	if o.Remote != nil {
		return o.Remote.Close()
	}
	return errors.Join(o.CloseFiles(), o.Dir.Close())
}

// CloseFiles closes all files and further folders, but not the image's own folder.
func (o *Opened) CloseFiles() error {
	var errs []error
	for _, f := range o.Handles {
		errs = append(errs, f.Close())
	}
	for _, d := range o.Further {
		errs = append(errs, d.Close())
	}
	o.Further = nil
	return errors.Join(errs...)
}

// State holds the metadata that shows whether a file has changed.
type State struct {
	Name              string
	Size, Allocated   int64 // bytes
	Device, Inode     uint64
	Modified, Changed int64 // ns since 1970; Changed is the change time of the inode
}

// stateOf returns the state of a file at its first open.
func stateOf(f *File) State {
	return State{
		Name: f.name, Size: f.Size(), Allocated: f.Allocated(), Device: f.Info.Device, Inode: f.Info.Inode,
		Modified: f.Info.Modified, Changed: f.Info.Changed,
	}
}

// Drive is a disk of this machine outside of any folder, such as PhysicalDrive0 of Windows. Safe for concurrent use.
type Drive struct {
	sectors
	open *sys.File
	info sys.Drive
}

// OpenDrive opens a disk by its Windows name.
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

// ID distinguishes the disk from other disks.
func (d *Drive) ID() string { return d.info.Name }

// Used reports whether Windows uses the disk, and whether its medium is fixed. Only a fixed disk can be taken offline.
func (d *Drive) Used() (used, fixed bool) { return !d.info.Offline, d.info.Fixed }

// Extent returns everything as data.
func (d *Drive) Extent(off, limit int64) (disk.Extent, error) {
	return disk.Extent{Range: disk.Range{Off: off, Len: min(limit, d.size-off)}}, nil
}

// Forget does nothing, because nothing is cached.
func (*Drive) Forget() {}

// Device returns true.
func (*Drive) Device() bool { return true }

// Unchanged returns nil, because a disk does not show writes of others.
func (*Drive) Unchanged() error { return nil }

// Close closes the disk.
func (d *Drive) Close() error { return d.open.Close() }

// preader reads a file and returns an error at its end.
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

// sectors converts reads to reads of whole sectors, none longer than a piece.
type sectors struct {
	of           io.ReaderAt
	size, sector int64 // bytes
}

// maxSector is the largest supported sector size in bytes.
const maxSector = 64 << 10

// pieces are as long as the longest read. Allocations of that size begin at a page, as disk controllers require.
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
