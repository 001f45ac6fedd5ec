package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"sync"
	"unsafe"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// edges are the sizes of both ends of a device that can hold tables and superblocks. They are cleared before the first
// byte of data, and written last.
type edges struct{ head, tail int64 }

// Edges of a device, in bytes. They cover known superblocks and tables. The head has the superblocks of btrfs and ZFS
// in the first MiB, and of VMFS after it. The tail has the superblocks of ZFS and md, and the backup of a GPT.
const (
	Head = 4 * units.MiB
	Tail = units.MiB
)

// DeviceOutput is a copy under construction on a device. Until Publish has verified all other bytes, the first sector
// holds a mark, and the edges hold no table or superblock.
type DeviceOutput struct {
	path   string
	base   string
	dir    *gate.Folder
	m      medium
	size   int64
	sector int64      // bytes; the first sector is written last
	disk   disk.Range // of the copy on the device; the rest is zero
	head   []byte
	tail   []byte
	next   int64 // end of the placed data: everything before it was written or zeroed
	begun  bool
	done   bool
	notes  []ondisk.Issue
	reread func() error // makes the kernel reread the partition table
}

// Options of Create.
type Options struct {
	Disk    disk.Range   // of the copy on the device
	Discard bool         // discard ranges of zeros on the storage
	Stop    func() error // returns an error to end long work
}

// Create starts a copy. The device is zero outside of it. Nothing is written before the first call of Reserve or
// Finish.
func (d *Device) Create(o Options) (*DeviceOutput, error) {
	dir, base, err := gate.Follow(d.Node, nil)
	if err != nil {
		return nil, ondisk.In(ondisk.ErrOutput, "folder of DEST %s: %w", d.Path, err)
	}
	m := &blockdev{path: d.Path, file: d.file, discard: o.Discard, stop: o.Stop}
	if err := m.open(); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	out := newOutput(d.Path, m, d.Size, d.Sector, edges{Head, Tail})
	out.dir, out.base, out.disk = dir, base, o.Disk
	out.reread = func() error { return sys.FromOS(d.file).RereadTable() }
	return out, nil
}

func newOutput(path string, m medium, size, sector int64, e edges) *DeviceOutput {
	head := min(e.head, size)
	tail := max(head, units.AlignDown(size-e.tail, pageSize))
	return &DeviceOutput{
		path: path, m: m, size: size, sector: sector, disk: disk.Range{Len: size}, head: make([]byte, head),
		tail: make([]byte, size-tail), reread: func() error { return nil },
	}
}

// tailAt returns the offset of the tail.
func (o *DeviceOutput) tailAt() int64 { return o.size - int64(len(o.tail)) }

// middle returns the part of a range between the edges.
func (o *DeviceOutput) middle(off, end int64) (int64, int64) {
	return max(off, int64(len(o.head))), min(end, o.size-int64(len(o.tail)))
}

// Unit returns the granularity of writes: the largest sector size of any device.
func (o *DeviceOutput) Unit() int64 { return pageSize }

// Reserve zeroes the gap between the range and the previous one.
func (o *DeviceOutput) Reserve(off, n int64) error {
	off += o.disk.Off
	if err := o.begin(); err != nil {
		return err
	}
	if err := o.clear(off); err != nil {
		return err
	}
	o.next = off + n
	return nil
}

// clear zeroes everything up to off that was not placed.
func (o *DeviceOutput) clear(off int64) error {
	if from, to := o.middle(o.next, off); from < to {
		return o.m.Zero(from, to-from)
	}
	return nil
}

// WriteAt writes data between the edges, and holds data of the edges back until Publish.
func (o *DeviceOutput) WriteAt(p []byte, off int64) (int, error) {
	off += o.disk.Off
	end := off + int64(len(p))
	if off < int64(len(o.head)) {
		copy(o.head[off:], p)
	}
	if at := o.tailAt(); end > at {
		copy(o.tail[max(0, off-at):], p[max(0, at-off):])
	}
	if from, to := o.middle(off, end); from < to {
		if _, err := o.m.WriteAt(p[from-off:to-off], from); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// begin removes the old content before the first byte of data: first it writes the mark, then it clears the edges.
func (o *DeviceOutput) begin() error {
	if o.begun {
		return nil
	}
	o.begun = true
	if err := o.write(image.Mark(o.sector), 0); err != nil {
		return err
	}
	for _, edge := range []disk.Range{
		{Off: o.sector, Len: int64(len(o.head)) - o.sector},
		{Off: o.tailAt(), Len: int64(len(o.tail))},
	} {
		if _, err := o.m.WriteAt(make([]byte, edge.Len), edge.Off); err != nil {
			return err
		}
	}
	if err := o.m.Sync(); err != nil {
		return err
	}
	_ = o.reread() // of the old table: it fails without partitions, and a device in use would not have been claimed
	return nil
}

// write writes bytes durably and reads them back.
func (o *DeviceOutput) write(p []byte, off int64) error {
	if _, err := o.m.WriteAt(p, off); err != nil {
		return err
	}
	if err := o.m.Sync(); err != nil {
		return err
	}
	return o.prove(p, off)
}

func (o *DeviceOutput) prove(p []byte, off int64) error {
	return ondisk.OutputError(sameBytes(o.m, p, off), "prove %s", o.path)
}

// Finish makes all data between the edges durable.
func (o *DeviceOutput) Finish() error {
	if err := o.begin(); err != nil {
		return err
	}
	if err := o.clear(o.size); err != nil {
		return err
	}
	o.next = o.size
	return o.m.Sync()
}

// Reopen returns the finished disk. It reads data between the edges from the device, bypassing all caches.
func (o *DeviceOutput) Reopen() (*image.Image, error) {
	whole := disk.New(o.size, o.sector, disk.Whole(o.m, o.size))
	held := []disk.Patch{{New: o.head}, {Off: o.tailAt(), New: o.tail}}
	if len(o.tail) == 0 { // the head covers a small device
		held = held[:1]
	}
	out := &image.Image{
		Image: &driver.Image{Disk: disk.Section(disk.Overlay(whole, held), o.disk), Flat: true},
		Path:  o.path, Format: raw.Format.Name,
		Opened: gate.Opened{Base: o.base},
	}
	var err error
	if o.dir != nil {
		out.Dir, err = o.dir.Again()
	}
	return out, err
}

// Publish writes the verified edges, and the first sector last. Each is durable and read back before the next one.
func (o *DeviceOutput) Publish() error {
	first, rest := o.head[:o.sector], o.head[o.sector:]
	at := o.tailAt()
	if _, err := o.m.WriteAt(o.tail, at); err != nil {
		return err
	}
	if err := o.write(rest, o.sector); err != nil {
		return err
	}
	if err := o.prove(o.tail, at); err != nil {
		return err
	}
	if err := o.write(first, 0); err != nil {
		return errors.Join(err, o.write(image.Mark(o.sector), 0)) // the write of the first sector may be torn
	}
	o.done = true
	if err := o.reread(); err != nil && !sys.Unsupported(err) {
		o.notes = append(o.notes, ondisk.Issue{
			Code: "dest-table-not-read", Effect: ondisk.Note, Remedy: "partprobe " + o.path,
			Text: fmt.Sprintf("the kernel has not read the new table of the device (%v); the copy itself is complete "+
				"and verified", err),
		})
	}
	return nil
}

// Discard writes nothing more to the device. If the copy had begun, it returns an error, because the old content is
// lost.
func (o *DeviceOutput) Discard() error {
	err := o.m.Close()
	if o.dir != nil {
		err = errors.Join(err, o.dir.Close())
		o.dir = nil
	}
	if !o.begun || o.done {
		return err
	}
	return errors.Join(&MarkedError{o.path}, err)
}

// MarkedError is the error of a run that leaves a partial copy on its device.
type MarkedError struct{ Path string }

func (m *MarkedError) Error() string { return m.Remedy() }

func (m *MarkedError) Unwrap() error { return ondisk.ErrOutput }

// Remedy describes the state of the device and the remedy.
func (m *MarkedError) Remedy() string {
	return fmt.Sprintf("DEST %s holds an unfinished copy, marked in its first sector; run the command again", m.Path)
}

// Kind returns the format: a device holds the disk byte for byte.
func (o *DeviceOutput) Kind() (format, subformat string) { return raw.Format.Name, "" }

// Pack returns nil, because units are stored as they are.
func (o *DeviceOutput) Pack() func(unit []byte, off int64) ([]byte, error) { return nil }

// Room returns no bound, because Fits has checked the size.
func (o *DeviceOutput) Room() int64 { return math.MaxInt64 }

// Free returns no bound, like Room.
func (o *DeviceOutput) Free() (int64, error) { return UnknownRoom, nil }

// Files returns the name of the device.
func (o *DeviceOutput) Files() []string { return []string{o.base} }

// Notes returns notes about the device for the user.
func (o *DeviceOutput) Notes() []ondisk.Issue { return o.notes }

// Sums returns nil, because a device has no files.
func (o *DeviceOutput) Sums(context.Context, func(int64), func(int64)) ([]Sum, error) {
	return nil, nil
}

// medium is the target of a copy. Offsets and lengths are multiples of the sector size.
type medium interface {
	io.ReaderAt // bypasses all caches
	io.WriterAt
	Zero(off, n int64) error // makes a range read as zeros
	Sync() error
	Close() error
}

// pageSize is the alignment of memory and of device offsets that suits every device, in bytes.
const pageSize = 4 << 10

// blockdev is a block device with direct I/O.
type blockdev struct {
	path    string
	file    *os.File
	read    *os.File     // separate descriptor for reading back; nil until it is needed
	discard bool         // discard ranges of zeros
	stop    func() error // returns an error to end a long run of zeros
}

// buffers are aligned for direct I/O.
var buffers = sync.Pool{New: func() any {
	b := make([]byte, units.MiB+pageSize)
	b = b[pageSize-uintptr(unsafe.Pointer(&b[0]))%pageSize:]
	return new(b[:units.MiB])
}}

// WriteAt bypasses the page cache, so that a device error is returned by the write itself.
func (b *blockdev) WriteAt(p []byte, off int64) (n int, err error) {
	if uintptr(unsafe.Pointer(unsafe.SliceData(p)))%pageSize == 0 {
		n, err = b.file.WriteAt(p, off)
		return n, b.wrap("write", off, err)
	}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for n < len(p) {
		m := copy(*buf, p[n:])
		if _, err := b.file.WriteAt((*buf)[:m], off+int64(n)); err != nil {
			return n, b.wrap("write", off+int64(n), err)
		}
		n += m
	}
	return n, nil
}

// ReadAt bypasses the page cache on a separate descriptor. It reads whole pages around the range.
func (b *blockdev) ReadAt(p []byte, off int64) (n int, err error) {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for n < len(p) {
		at := units.AlignDown(off+int64(n), pageSize)
		m, err := b.read.ReadAt((*buf)[:min(units.AlignUp(off+int64(len(p)), pageSize)-at, units.MiB)], at)
		got := copy(p[n:], (*buf)[min(int64(m), off+int64(n)-at):m])
		if n += got; got == 0 {
			return n, b.wrap("read back", off+int64(n), cmp.Or(err, io.ErrUnexpectedEOF))
		}
	}
	return n, nil
}

// open opens the descriptor for reading back.
func (b *blockdev) open() (err error) {
	if b.read == nil {
		b.read, err = sys.Direct(b.file)
	}
	return b.wrap("read back", 0, err)
}

// zeroStep bounds the bytes of one call, so that a run can be interrupted between calls.
const zeroStep = units.GiB

// Zero makes a range read as zeros: by a command of the device if it has one, otherwise by writing them.
func (b *blockdev) Zero(off, n int64) error {
	for n > 0 {
		step := min(n, zeroStep)
		if err := cmp.Or(b.stop(), b.wrap("write zeros to", off, b.zero(off, step))); err != nil {
			return err
		}
		off, n = off+step, n-step
	}
	return nil
}

func (b *blockdev) zero(off, n int64) error {
	f := sys.FromOS(b.file)
	if !b.discard {
		return f.ZeroOut(off, n)
	}
	if err := f.Punch(off, n); !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	if err := f.Discard(off, n); err != nil {
		return f.ZeroOut(off, n)
	}
	return b.rezero(off, n)
}

// rezero reads a discarded range back and zeroes any data in it: some devices round a discard to their blocks, and some
// ignore it.
func (b *blockdev) rezero(off, n int64) error {
	if err := b.open(); err != nil {
		return err
	}
	buf := make([]byte, min(n, units.MiB))
	for end := off + n; off < end; off += int64(len(buf)) {
		buf = buf[:min(int64(len(buf)), end-off)]
		if _, err := b.ReadAt(buf, off); err != nil {
			return err
		}
		if !ondisk.IsZero(buf) {
			if err := sys.FromOS(b.file).ZeroOut(off, int64(len(buf))); err != nil {
				return err
			}
		}
	}
	return nil
}

// Sync flushes the cache of the device.
func (b *blockdev) Sync() error { return b.wrap("flush", 0, b.file.Sync()) }

// Close closes the descriptor for reading back. Device keeps the claim.
func (b *blockdev) Close() error {
	if b.read == nil {
		return nil
	}
	return b.read.Close()
}

// wrap adds the device and the offset to an error.
func (b *blockdev) wrap(verb string, off int64, err error) error {
	return ondisk.OutputError(sys.Cause(err), "%s %s at byte %d", verb, b.path, off)
}

// sameBytes reads a range back and compares it with the written data.
func sameBytes(m medium, want []byte, off int64) error {
	got := make([]byte, len(want))
	if len(want) == 0 {
		return nil
	}
	if _, err := m.ReadAt(got, off); err != nil {
		return err
	}
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("byte %d reads as 0x%02x, but 0x%02x was written: the storage or memory of this "+
				"machine is at fault, or another machine writes to the device", off+int64(i), got[i], want[i])
		}
	}
	return nil
}

// Disk is a device that is changed in place, bypassing the page cache. Offsets and lengths are arbitrary: partial
// sectors are read first.
type Disk struct {
	*blockdev

	d    *Device
	path string
}

// Disk returns the device as the storage of a disk. Closing it keeps the claim.
func (d *Device) Disk() (*Disk, error) {
	path, err := filepath.Abs(d.Path)
	b := &blockdev{path: d.Path, file: d.file, stop: func() error { return nil }}
	if err == nil {
		err = b.open()
	}
	return &Disk{b, d, path}, err
}

// Path returns the absolute path of the device as the user wrote it.
func (x *Disk) Path() string { return x.path }

// ID returns the persistent system ID of the device.
func (x *Disk) ID() string { return x.d.ID }

// End returns the size in bytes.
func (x *Disk) End() int64 { return x.d.Size }

// Extent returns the whole range, because a device does not report holes.
func (x *Disk) Extent(off, limit int64) (disk.Extent, error) {
	return disk.Extent{Range: disk.Range{Off: off, Len: limit}}, nil
}

// WriteAt writes p and preserves the other bytes of partial sectors.
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

// Zero makes a range read as zeros.
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

// Truncate returns an error for any size but the current one.
func (x *Disk) Truncate(size int64) error {
	if size != x.d.Size {
		return ondisk.In(ondisk.ErrOutput, "%s has %d bytes, the copy %d: devices keep their size", x.d, x.d.Size, size)
	}
	return nil
}

// Reread makes the kernel reread the partition table. It fails for a device without partitions; a device in use is
// never claimed.
func (x *Disk) Reread() { _ = sys.FromOS(x.d.file).RereadTable() }
