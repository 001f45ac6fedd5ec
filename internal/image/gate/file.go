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

// File is an open regular file, or a block device.
type File struct {
	name, real string
	dir        *Folder
	Info       sys.Info // when it was opened first
	Ours       bool     // a device that this run has claimed
	device     bool
	shows      sys.ID // the file behind a loop device
	Sector     int    // of a device, bytes
	Level      int    // 0 for a file of the image itself, 1 for one of its parent, …

	mu    sync.RWMutex // held for reading while open is in use
	open  *sys.File    // nil while the file gives room to others
	holds bool         // no other program writes the file while it is open
	used  atomic.Int64
	short atomic.Int64 // 1 + the byte at which the file ended before its size; 0: it did not

	passing atomic.Bool
	passed  atomic.Int64 // bytes read since the kernel was told, see Pass
}

// Name returns the name in the folder, or the one that OpenAs got.
func (f *File) Name() string { return f.name }

// Is reports whether a file is this one, or the one that shows through this loop device.
func (f *File) Is(st sys.Info) bool {
	return f.Info.Same(st) || f.shows != sys.ID{} && f.shows == st.ID
}

// Size returns the size in bytes when the file was opened first.
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

// with calls use with the open file.
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

// reopen opens the file without blocking, since a FIFO would wait for a writer, and makes sure that it is the one that
// was looked at.
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

// Uncache drops the file from memory, and reports whether that is known to have worked.
func (f *File) Uncache() (cold bool) {
	err := f.with(func(open *sys.File) error {
		cold = open.Uncache()
		return nil
	})
	return cold && err == nil
}

// ID returns device and inode.
func (f *File) ID() string { return fmt.Sprintf("%d:%d", f.Info.Device, f.Info.Inode) }

// Allocated returns how many bytes the file takes on its file system.
func (f *File) Allocated() int64 {
	if f.device {
		return f.Info.Size
	}
	return f.Info.Allocated
}

// ReadAt follows the contract of io.ReaderAt. A file that ended too early once is not read again: a
// caller that survives a failed read must not go on with what is there the next time.
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

// readAt reads from the file itself.
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
			_ = open.Forget() // it stays in memory
		}
		return nil
	})
	return done, err
}

// passedAtOnce is how many bytes of a file stay in memory that is passed, about.
const passedAtOnce = 32 << 20

// Pass has the kernel drop from memory what is read of the file from now on. One that is in memory already stays there:
// others may need it.
func (f *File) Pass() {
	_ = f.with(func(open *sys.File) error { // who reads it will say the error
		f.passing.Store(open.Uncached())
		return nil
	})
}

// ended returns the error of a file that ended before its size.
func (f *File) ended() error {
	at := f.short.Load()
	if at == 0 {
		return nil
	}
	return fmt.Errorf("file %.256q %w: it ends at byte %d, and had %d bytes", f.name, ondisk.ErrChanged, at-1,
		f.Info.Size)
}

// Extent asks the file system for holes. If it knows none, all is data, which is slow and right.
func (f *File) Extent(off, limit int64) (disk.Extent, error) {
	e := disk.Extent{Range: disk.Range{Off: off, Len: limit}}
	err := f.with(func(open *sys.File) error {
		e.Len, e.Zero = open.Extent(off, limit)
		return nil
	})
	return e, err
}

// Unchanged compares the file with what it was when it was opened, by its handle and by its name.
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
	case f.Claimed(): // the image was refused if it was claimed before
		return fmt.Errorf("device %.256q %w: it was mounted, or became a part of another device, while it was read; "+
			"end that and run again", f.name, ondisk.ErrChanged)
	case f.device:
		return nil // it does not show that it was written
	}
	if now.Size != old.Size || now.Modified != old.Modified || now.Changed != old.Changed {
		return fmt.Errorf("file %.256q %w: size, times or links differ; stop what writes to it and run again", f.name,
			ondisk.ErrChanged)
	}
	return nil
}

// maxHandles is how many files of an image are open at once: a disk of 8 TiB in extents of 2 GB has 4096.
const maxHandles = 48

// handles closes the file that was not used for longest when another needs its place.
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
		// The first is the one that the user named: locks on it must last.
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

// Rest closes the files of an image until they are read again, on a system that gives the name of an open file to no
// other.
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
