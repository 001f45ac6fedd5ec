package gate

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// File is an open regular file or block device.
type File struct {
	name, real string
	dir        *Folder
	Info       sys.Info // at the first open
	Ours       bool     // a device that this run has claimed
	device     bool
	shows      sys.ID // backing file of a loop device
	Sector     int    // sector size of a device, in bytes
	Level      int    // 0 for a file of the image itself, 1 for a file of its parent, …

	mu    sync.RWMutex // held for reading while open is in use
	open  *sys.File    // nil while the descriptor is closed in favour of other files
	holds bool         // keep other programs from writing while the file is open
	used  atomic.Int64
	short atomic.Int64 // 1 + the offset at which a read hit a premature end of file; or 0

	passing atomic.Bool
	passed  atomic.Int64 // bytes read since the kernel last dropped them, see Pass
}

// Name returns the name in the folder, or the name given to OpenAs.
func (f *File) Name() string { return f.name }

// Is reports whether st describes this file, or the backing file of this loop device.
func (f *File) Is(st sys.Info) bool {
	return f.Info.Same(st) || f.shows != sys.ID{} && f.shows == st.ID
}

// Size returns the size in bytes at the first open.
func (f *File) Size() int64 { return f.Info.Size }

// Close closes the file for good.
func (f *File) Close() error {
	f.dir.handles.forget(f)
	return f.shut()
}

// shut closes the descriptor.
func (f *File) shut() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open == nil {
		return nil
	}
	err := f.open.Close()
	f.open = nil
	return err
}

// with calls use with the open file, and reopens it first if necessary.
func (f *File) with(use func(open *sys.File) error) error {
	for {
		f.mu.RLock()
		if f.open != nil {
			f.used.Store(f.dir.handles.clock.Add(1))
			err := use(f.open)
			f.mu.RUnlock()
			return err
		}
		f.mu.RUnlock()
		if err := f.reopen(); err != nil {
			return err
		}
	}
}

// reopen opens the file without blocking, because a FIFO would wait for a writer. It verifies that the file is still
// the one that was examined first.
func (f *File) reopen() error {
	h := f.dir.handles
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.room(f); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open != nil {
		return nil
	}
	as := f.dir.At.Open
	if f.holds {
		as = f.dir.At.OpenHeld
	}
	open, err := as(f.real)
	if err != nil {
		return cmp.Or(f.inUse(err), fmt.Errorf("open file %.256q: %w", f.name, err))
	}
	st, err := open.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("file %.256q: %w", f.name, err), open.Close())
	}
	if !st.Same(f.Info) || st.Mode.Type() != f.Info.Mode.Type() {
		return errors.Join(fmt.Errorf("file %.256q %w: another file has its name", f.name, ondisk.ErrChanged),
			open.Close())
	}
	f.open = open
	return nil
}

// Uncache drops the file from the kernel's page cache, and reports whether that is known to have worked.
func (f *File) Uncache() (cold bool) {
	err := f.with(func(open *sys.File) error {
		cold = open.Uncache()
		return nil
	})
	return cold && err == nil
}

// ID returns the device and inode numbers.
func (f *File) ID() string { return fmt.Sprintf("%d:%d", f.Info.Device, f.Info.Inode) }

// Allocated returns the number of bytes allocated to the file on its file system.
func (f *File) Allocated() int64 {
	if f.device {
		return f.Info.Size
	}
	return f.Info.Allocated
}

// ReadAt follows the contract of io.ReaderAt. Once a read hits a premature end of file, all later reads fail: a caller
// that ignores the failed read must not continue with bytes that appear later.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	if err := f.ended(); err != nil {
		return 0, err
	}
	if err := f.dir.meter.ask(len(p)); err != nil {
		return 0, err
	}
	if f.dir.pages.read(f, p, off) {
		return len(p), nil
	}
	return f.readAt(p, off)
}

// readAt reads from the file itself, without pageCache.
func (f *File) readAt(p []byte, off int64) (int, error) {
	f.dir.meter.count(len(p))
	done := 0
	err := f.with(func(open *sys.File) error {
		for done < len(p) {
			n, err := open.Pread(p[done:], off+int64(done))
			switch {
			case err != nil:
				return cmp.Or(f.inUse(err), fmt.Errorf("read %s at byte %d: %w", f.name, off+int64(done), err))
			case n == 0 && off+int64(done) < f.Info.Size:
				f.short.Store(1 + off + int64(done))
				return f.ended()
			case n == 0:
				return io.EOF
			default:
				done += n
			}
		}
		if f.passing.Load() && f.passed.Add(int64(done)) >= passedAtOnce {
			f.passed.Store(0)
			_ = open.Forget() // on error the pages stay in memory
		}
		return nil
	})
	return done, err
}

// passedAtOnce is the approximate number of bytes kept in memory from a file in passing.
const passedAtOnce = 32 << 20

// Pass makes the kernel drop bytes from memory after each read of the file from now on. A file that is in memory
// already stays there, because other programs may need it.
func (f *File) Pass() {
	_ = f.with(func(open *sys.File) error { // the next read returns the error
		f.passing.Store(open.Uncached())
		return nil
	})
}

// ended returns an error if a read hit a premature end of file.
func (f *File) ended() error {
	at := f.short.Load()
	if at == 0 {
		return nil
	}
	return fmt.Errorf("file %.256q %w: it ends at byte %d, and had %d bytes", f.name, ondisk.ErrChanged, at-1,
		f.Info.Size)
}

// Extent returns the hole or data at off as reported by the file system. Without support for holes, everything counts
// as data, which is slow but correct.
func (f *File) Extent(off, limit int64) (disk.Extent, error) {
	e := disk.Extent{Range: disk.Range{Off: off, Len: limit}}
	err := f.with(func(open *sys.File) error {
		e.Len, e.Zero = open.Extent(off, limit)
		return nil
	})
	return e, err
}

// Unchanged returns an error if the file, by its handle or by its name, differs from its state at the first open.
func (f *File) Unchanged() error {
	if err := f.ended(); err != nil {
		return err
	}
	var now sys.Info
	err := f.with(func(open *sys.File) (err error) {
		now, err = open.Stat()
		return err
	})
	if err != nil {
		return fmt.Errorf("file %.256q: %w", f.name, err)
	}
	named, err := f.dir.At.Lstat(f.real)
	if err != nil {
		return fmt.Errorf("file %.256q %w: %w", f.name, ondisk.ErrChanged, err)
	}
	old := f.Info
	if !named.Same(old) {
		return fmt.Errorf("file %.256q %w: another file has its name", f.name, ondisk.ErrChanged)
	}
	switch {
	case f.Claimed(): // a device claimed at the first open was refused
		return fmt.Errorf("device %.256q %w: it was mounted, or became a part of another device, while it was "+
			"read; unmount or detach it, and run again", f.name, ondisk.ErrChanged)
	case f.device:
		return nil // the metadata of a device do not show writes
	}
	if now.Size != old.Size || now.Modified != old.Modified || now.Changed != old.Changed {
		return fmt.Errorf("file %.256q %w: size, times or links differ; stop all programs that write to it, and "+
			"run again", f.name,
			ondisk.ErrChanged)
	}
	return nil
}

// maxHandles bounds the number of open files of an image: a disk of 8 TiB in extents of 2 GB has 4096 files.
const maxHandles = 48

// handles holds the open files, and closes the least recently used one when another file needs its place.
type handles struct {
	clock atomic.Int64

	mu   sync.Mutex
	open []*File
}

// room makes room for f. The caller holds the lock.
func (h *handles) room(f *File) error {
	if slices.Contains(h.open, f) {
		return nil
	}
	var err error
	if len(h.open) >= maxHandles {
		// The first file is the one named by the user: locks on it must last.
		oldest := 1
		for i := range h.open {
			if i > 0 && h.open[i].used.Load() < h.open[oldest].used.Load() {
				oldest = i
			}
		}
		err = h.open[oldest].shut()
		h.open = slices.Delete(h.open, oldest, oldest+1)
	}
	f.used.Store(h.clock.Add(1))
	h.open = append(h.open, f)
	return err
}

func (h *handles) forget(f *File) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i := slices.Index(h.open, f); i >= 0 {
		h.open = slices.Delete(h.open, i, i+1)
	}
}

// Rest closes the files of an image until they are read again, if the system does not let another file replace an open
// one.
func (d *Folder) Rest() error {
	if sys.ReplacesOpen {
		return nil
	}
	return d.CloseFiles()
}

// CloseFiles closes the files of an image until they are read again.
func (d *Folder) CloseFiles() error {
	h := d.handles
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for _, f := range h.open {
		errs = append(errs, f.shut())
	}
	h.open = nil
	return errors.Join(errs...)
}

// Bytes that QEMU locks: base + permission. Base 100 is for permissions that a program uses, base 200 for permissions
// that it denies to others. Spec: QEMU block/file-posix.c and include/block/block-common.h.
const (
	QEMURead     = 100 + 0 // "consistent read"
	QEMUWrite    = 100 + 1
	QEMUAlone    = 200 + 0
	QEMUNoWriter = 200 + 1
)

// QEMUBytes lists the lock bytes of an exclusive writer.
var QEMUBytes = []int64{QEMURead, QEMUWrite, QEMUAlone, QEMUNoWriter}

// Hold prevents QEMU, and on Windows any program, from opening the image for writing until release is called. It uses
// the lock bytes that QEMU itself checks. On file systems without such locks, and for extents of an image with more
// than maxHandles files, nothing is locked; the check that the source is unchanged remains.
func (o *Opened) Hold() (release func(), err error) {
	if err := o.hold(true); err != nil {
		return nil, err
	}
	for _, f := range o.Handles {
		for _, b := range []int64{QEMURead, QEMUNoWriter} {
			f.lock(sys.Shared, b)
		}
	}
	return func() {
		for _, f := range o.Handles {
			for _, b := range []int64{QEMURead, QEMUNoWriter} {
				f.lock(sys.Unlocked, b)
			}
		}
		_ = o.hold(false) // closed files are reopened by the next read
	}, nil
}

// Alone returns an error if another program has a file of the image open for writing or exclusively. It denies writing
// to other programs for a moment. On systems without such share modes it returns nil.
func (o *Opened) Alone() error { return errors.Join(o.hold(true), o.hold(false)) }

// hold reopens all files so that other programs cannot write them, or can again.
func (o *Opened) hold(yes bool) error {
	if !sys.DeniesWriting {
		return nil
	}
	for i, f := range o.Handles {
		if err := f.hold(yes); err != nil {
			for _, f := range o.Handles[:i+1] {
				err = errors.Join(err, f.hold(false))
			}
			return err
		}
	}
	return nil
}

func (f *File) hold(yes bool) error {
	f.mu.Lock()
	f.holds = yes && !f.device
	f.mu.Unlock()
	err := f.shut()
	if err == nil && yes {
		err = f.with(func(*sys.File) error { return nil })
	}
	return err
}

// inUse returns the error of a file that another program has open without sharing it, or nil if err has another cause.
func (f *File) inUse(err error) error {
	if !sys.NotShared(err) {
		return nil
	}
	return fmt.Errorf("file %.256q is %w: another program has it open exclusively; shut the virtual machine down, "+
		"or end that program", f.name, ondisk.ErrBusy)
}

func (f *File) lock(kind sys.LockKind, at int64) {
	_ = f.with(func(open *sys.File) error { return open.LockByte(kind, at) }) // see Hold
}

// Claimed reports whether the kernel claims a block device for another use than this run, such as a mounted file
// system.
func (f *File) Claimed() bool { return f.device && !f.Ours && f.dir.At.Claimed(f.real) }

// QEMULock returns an error if QEMU has the file open for writing: it holds a lock on the byte of the "write"
// permission, 100 + 1. Spec: QEMU block/file-posix.c, RAW_LOCK_PERM_BASE.
func (f *File) QEMULock() error {
	var locked bool
	err := f.with(func(open *sys.File) (err error) {
		locked, err = open.LockedByte(QEMUWrite)
		return err
	})
	if err != nil || !locked {
		return nil //nolint:nilerr // the file system has no such locks
	}
	return fmt.Errorf("%q is open for writing in QEMU (lock on byte %d)", f.name, QEMUWrite)
}

// Written reports whether any program or the kernel is known to have the file open for writing.
func (f *File) Written() (yes bool) {
	if f.device {
		return false // see Claimed
	}
	_ = f.with(func(open *sys.File) error { // the next read returns the error
		yes, _ = open.Written()
		return nil
	})
	return yes
}

// AtWork reports whether another run of trueup has the file locked as its own.
func (f *File) AtWork() (locked bool) {
	_ = f.with(func(open *sys.File) error { // without lock support, no run holds a lock
		locked = open.AtWork()
		return nil
	})
	return locked
}

const (
	// pageBytes is the unit of counted reads, in bytes: the smallest read of a file system.
	pageBytes = 4 << 10
	// maxRun is the largest read through the page cache, in bytes. Larger reads are file data, or tables that are read
	// once.
	maxRun = 32 << 10
	// maxPages bounds the number of cached pages: 1 MiB of them.
	maxPages = 256
)

// pageCache holds recently read pages of an image's files. An inspection rereads the same few sectors: for the format,
// the table, the volumes and the boot chain. Safe for concurrent use.
type pageCache struct {
	mu    sync.Mutex
	pages map[pageKey][]byte
}

// pageKey identifies a page by inode, because an image and the package around it open one file twice.
type pageKey struct {
	file   sys.ID
	number int64
}

// read fills p from off of f. ok is false if the file itself must be read: for a large read, a read beyond the file, or
// a failed one.
func (c *pageCache) read(f *File, p []byte, off int64) (ok bool) {
	end := off + int64(len(p))
	if c == nil || len(p) == 0 || len(p) > maxRun || off < 0 || end > f.Info.Size {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	first, last := off/pageBytes, (end-1)/pageBytes
	if !c.fill(f, first, last) {
		return false
	}
	for n := first; n <= last; n++ {
		from := max(0, off-n*pageBytes)
		copy(p[n*pageBytes+from-off:], c.pages[f.page(n)][from:])
	}
	return true
}

// fill reads the missing pages in a range, adjacent ones in one read.
func (c *pageCache) fill(f *File, first, last int64) bool {
	if len(c.pages)+int(last-first) >= maxPages {
		clear(c.pages)
	}
	for n := first; n <= last; n++ {
		if c.pages[f.page(n)] != nil {
			continue
		}
		until := n + 1
		for until <= last && c.pages[f.page(until)] == nil {
			until++
		}
		b := make([]byte, min(until*pageBytes, f.Info.Size)-n*pageBytes)
		if _, err := f.readAt(b, n*pageBytes); err != nil {
			return false // the damaged sector can be one that the caller does not need
		}
		for ; n < until; n++ {
			c.pages[f.page(n)], b = b[:min(pageBytes, len(b))], b[min(pageBytes, len(b)):]
		}
	}
	return true
}

// page returns the key of page n of the file.
func (f *File) page(n int64) pageKey { return pageKey{f.Info.ID, n} }

// Meter counts and limits the bytes read from the files of one image. Metered files are read in whole pages, each once
// while it is cached. The zero value only counts. Safe for concurrent use.
type Meter struct {
	asked ondisk.Budget
	read  atomic.Int64
}

// NewMeter returns a meter that ends reading when more than limit bytes were requested.
func NewMeter(limit int64) *Meter {
	return &Meter{asked: ondisk.Budget{What: "reading", Unit: "bytes for one image", Limit: limit}}
}

// Read returns the number of bytes read from files. It excludes reads served by pageCache.
func (m *Meter) Read() int64 {
	if m == nil {
		return 0
	}
	return m.read.Load()
}

// ask spends n bytes of the limit.
func (m *Meter) ask(n int) error {
	if m == nil {
		return nil
	}
	return m.asked.Spend(int64(n))
}

// count adds a read of n bytes that is about to happen.
func (m *Meter) count(n int) {
	if m != nil {
		m.read.Add(int64(n))
	}
}
