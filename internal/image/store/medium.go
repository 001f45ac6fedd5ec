package store

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"unsafe"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// medium is what a copy is written to. Offsets and lengths are whole sectors of the device.
type medium interface {
	io.ReaderAt // past all caches
	io.WriterAt
	Zero(off, n int64) error // has a range read as zeros
	Sync() error
	Close() error
}

// pageSize is the alignment of memory and of places on the device that suits every device, bytes.
const pageSize = 4 << 10

// blockdev is a block device, which is read and written past the page cache.
type blockdev struct {
	path    string
	file    *os.File
	read    *os.File     // a descriptor of its own for the proof; nil until something is read
	discard bool         // give the space of zeros back
	stop    func() error // ends a long run of zeros
}

// buffers are aligned as direct I/O needs it.
var buffers = sync.Pool{New: func() any {
	b := make([]byte, units.MiB+pageSize)
	b = b[pageSize-uintptr(unsafe.Pointer(&b[0]))%pageSize:]
	return new(b[:units.MiB])
}}

// WriteAt writes past the page cache, so that an error of the device is that of the write.
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

// ReadAt reads past the page cache through a descriptor of its own, whole sectors around what is asked for.
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

// open opens the descriptor for the proof.
func (b *blockdev) open() (err error) {
	if b.read == nil {
		b.read, err = sys.Direct(b.file)
	}
	return b.wrap("read back", 0, err)
}

// zeroStep bounds the bytes of one call, so that a run can be interrupted between them.
const zeroStep = units.GiB

// Zero has a range read as zeros: by the device itself where it can, or by writing them.
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
	f := sys.Of(b.file)
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

// rezero reads back what was discarded, and writes zeros where it reads as anything else: some devices round a discard
// to blocks of theirs, and some do nothing.
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
			if err := sys.Of(b.file).ZeroOut(off, int64(len(buf))); err != nil {
				return err
			}
		}
	}
	return nil
}

// Sync flushes the cache of the device.
func (b *blockdev) Sync() error { return b.wrap("flush", 0, b.file.Sync()) }

// Close closes the descriptor of the proof. The claim is that of Device.
func (b *blockdev) Close() error {
	if b.read == nil {
		return nil
	}
	return b.read.Close()
}

// wrap names the device and the place.
func (b *blockdev) wrap(verb string, off int64, err error) error {
	if err == nil {
		return nil
	}
	return ondisk.In(ondisk.ErrOutput, "%s %s at byte %d: %w", verb, b.path, off, sys.Cause(err))
}

// sameBytes reads a range back and compares it with what was written.
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
			return fmt.Errorf("byte %d reads as 0x%02x, and 0x%02x was written: the storage or memory of this "+
				"machine is at fault, or another machine writes to the device", off+int64(i), got[i], want[i])
		}
	}
	return nil
}
