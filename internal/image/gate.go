package image

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// folder is an open directory: the only place where the files of an image may lie. Names are looked up through its
// handle, so a folder that is renamed or replaced meanwhile cannot lead elsewhere.
type folder struct {
	at      *sys.Folder
	alias   map[string]string // names that stand under another name until they are published
	handles *handles
	meter   *Meter  // of all that is read; nil: nothing is counted
	recent  *recent // nil unless reads are counted
}

func openFolder(path string) (*folder, error) {
	at, err := sys.OpenFolder(path)
	if err != nil {
		return nil, err
	}
	return newFolder(at), nil
}

func newFolder(at *sys.Folder) *folder { return &folder{at: at, handles: &handles{}} }

// count has a meter count what is read through the folder.
func (d *folder) count(m *Meter) {
	if d.meter = m; m != nil {
		d.recent = newRecent()
	}
}

func (d *folder) Close() error { return d.at.Close() }

// checkName refuses, before any look-up, what is not the plain name of a file in the folder.
func checkName(name string) error {
	var bad string
	switch {
	case name == "":
		bad = "is empty"
	case len(name) > 255:
		bad = fmt.Sprintf("has %d bytes, at most 255 are allowed", len(name))
	case name == "." || name == "..":
		bad = "is a folder"
	case strings.ContainsAny(name, `/\`):
		bad = "leaves the image's folder"
	case strings.Contains(name, ":"):
		bad = "has a colon: a drive, a URL or a stream"
	case strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 || r == 0x7f || r == '"' }) || !utf8.ValidString(name):
		bad = "has characters that no file name of an image has"
	default:
		return nil
	}
	return fmt.Errorf("file name %.256q %s: %w, want a plain name in the same folder; trueup opens nothing else that an image names: "+
		"put its files together, or flatten it with qemu-img convert", name, bad, ondisk.ErrReference)
}

// open is the gate for names that stand in an image.
func (d *folder) open(name string) (*file, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	return d.openAny(name, ondisk.ErrReference)
}

// openAny opens a regular file that is no link. It looks before it opens, since opening a device can have effects. kind is the
// class of the error for anything else.
func (d *folder) openAny(name string, kind error) (*file, error) {
	f := &file{name: name, real: name, dir: d}
	if a, ok := d.alias[name]; ok {
		f.real = a
	}
	var err error
	if f.stat, err = d.at.Lstat(f.real); err != nil {
		return nil, fmt.Errorf("file %.256q: %w", name, err)
	}
	if err := wantRegular(name, f.stat.Mode, kind); err != nil {
		return nil, err
	}
	if err := f.reopen(); err != nil {
		return nil, errors.Join(err, f.Close()) // it would keep its place among the open files
	}
	return f, nil
}

// openNamed opens the file that the user named, which may be a block device.
func (d *folder) openNamed(name string) (*file, error) {
	f := &file{name: name, real: name, dir: d, device: true}
	var err error
	if f.stat, err = d.at.Lstat(name); err != nil || f.stat.Mode.Type() != fs.ModeDevice {
		return d.openAny(name, ondisk.ErrUnsupported)
	}
	if err := f.reopen(); err != nil {
		return nil, err
	}
	if f.stat.Size, err = f.open.DeviceSize(); err != nil {
		return nil, errors.Join(fmt.Errorf("size of device %.256q: %w", name, err), f.Close())
	}
	if f.stat.Size == 0 {
		return nil, errors.Join(ondisk.In(ondisk.ErrFormat, "there is no medium in the device: it has 0 bytes"), f.Close())
	}
	if f.sector, err = f.open.SectorSize(); err != nil {
		return nil, errors.Join(fmt.Errorf("sector size of device %.256q: %w", name, err), f.Close())
	}
	return f, nil
}

func wantRegular(name string, mode fs.FileMode, class error) error {
	kinds := map[fs.FileMode]string{
		fs.ModeSymlink: "a symbolic link", fs.ModeNamedPipe: "a FIFO", fs.ModeSocket: "a socket", fs.ModeDir: "a folder",
		fs.ModeDevice | fs.ModeCharDevice: "a character device", fs.ModeDevice: "a block device", fs.ModeIrregular: "a special file",
	}
	if kind, ok := kinds[mode.Type()]; ok {
		return fmt.Errorf("file %.256q is %s: %w, want a regular file", name, kind, class)
	}
	return nil
}

// file is an open regular file, or a block device.
type file struct {
	name, real string
	dir        *folder
	stat       sys.Info // when it was opened first
	device     bool
	sector     int // of a device, bytes
	level      int // 0 for a file of the image itself, 1 for one of its parent, …

	mu    sync.RWMutex // held for reading while open is in use
	open  *sys.File    // nil while the file gives room to others
	used  atomic.Int64
	short atomic.Int64 // 1 + the byte at which the file ended before its size; 0: it did not
}

func (f *file) Name() string { return f.name }
func (f *file) Size() int64  { return f.stat.Size }

func (f *file) Close() error {
	f.dir.handles.forget(f)
	return f.shut()
}

// shut closes the descriptor.
func (f *file) shut() error {
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
func (f *file) with(use func(open *sys.File) error) error {
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

// reopen opens the file without blocking, since a FIFO would wait for a writer, and makes sure that it is the one that was
// looked at.
func (f *file) reopen() error {
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
	open, err := f.dir.at.Open(f.real)
	if err != nil {
		return fmt.Errorf("open file %.256q: %w", f.name, err)
	}
	st, err := open.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("file %.256q: %w", f.name, err), open.Close())
	}
	if !st.Same(f.stat) || st.Mode.Type() != f.stat.Mode.Type() {
		return errors.Join(fmt.Errorf("file %.256q %w: another file has its name", f.name, ErrChanged), open.Close())
	}
	f.open = open
	return nil
}

// ID is device and inode.
func (f *file) ID() string { return fmt.Sprintf("%d:%d", f.stat.Device, f.stat.Inode) }

// Allocated is how many bytes the file takes on its file system.
func (f *file) Allocated() int64 {
	if f.device {
		return f.stat.Size
	}
	return f.stat.Allocated
}

// ReadAt follows the contract of io.ReaderAt. A file that ended too early once is not read again: who bears a read that fails, as
// those who look for a signature do, must not go on with what is there the next time.
func (f *file) ReadAt(p []byte, off int64) (int, error) {
	if err := f.ended(); err != nil {
		return 0, err
	}
	if err := f.dir.meter.ask(len(p)); err != nil {
		return 0, err
	}
	if f.dir.recent.read(f, p, off) {
		return len(p), nil
	}
	return f.readAt(p, off)
}

// readAt reads from the file itself.
func (f *file) readAt(p []byte, off int64) (int, error) {
	f.dir.meter.count(len(p))
	done := 0
	err := f.with(func(open *sys.File) error {
		for done < len(p) {
			n, err := open.Pread(p[done:], off+int64(done))
			switch {
			case err != nil:
				return fmt.Errorf("read %s at byte %d: %w", f.name, off+int64(done), err)
			case n == 0 && off+int64(done) < f.stat.Size:
				f.short.Store(1 + off + int64(done))
				return f.ended()
			case n == 0:
				return io.EOF
			default:
				done += n
			}
		}
		return nil
	})
	return done, err
}

// ended is the error of a file that ended before its size.
func (f *file) ended() error {
	at := f.short.Load()
	if at == 0 {
		return nil
	}
	return fmt.Errorf("file %.256q %w: it ends at byte %d, and had %d bytes", f.name, ErrChanged, at-1, f.stat.Size)
}

// Extent asks the file system for holes. Where it cannot tell, everything is data, which is slow and right.
func (f *file) Extent(off, limit int64) (disk.Extent, error) {
	e := disk.Extent{Range: disk.Range{Off: off, Len: limit}}
	err := f.with(func(open *sys.File) error {
		e.Len, e.Zero = open.Extent(off, limit)
		return nil
	})
	return e, err
}

// ErrChanged is returned for a source that was written, truncated or replaced while it was read.
var ErrChanged = errors.New("changed while it was read")

// unchanged compares the file with what it was when it was opened, by its handle and by its name.
func (f *file) unchanged() error {
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
	named, err := f.dir.at.Lstat(f.real)
	if err != nil {
		return fmt.Errorf("file %.256q %w: %w", f.name, ErrChanged, err)
	}
	old := f.stat
	if !named.Same(old) {
		return fmt.Errorf("file %.256q %w: another file has its name", f.name, ErrChanged)
	}
	if f.device {
		return nil // nothing tells of writes to it
	}
	if now.Size != old.Size || now.Modified != old.Modified || now.Changed != old.Changed {
		return fmt.Errorf("file %.256q %w: size, times or links differ; stop what writes to it and run again", f.name, ErrChanged)
	}
	return nil
}
