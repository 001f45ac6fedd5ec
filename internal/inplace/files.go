package inplace

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"sync"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// Part is a range of the disk stored in a file.
type Part struct {
	disk.Range
	Name  string
	At    int64 // offset in the file
	Inode uint64
}

// maxParts bounds the number of files of a disk, because all of them are open.
const maxParts = 256

// partsOf returns the parts of an image's disk. The last part must end tail bytes before the end of its file.
func partsOf(img *image.Image, tail int64) (parts []Part, err error) {
	for off := int64(0); off < img.Disk.Size(); {
		run, _, err := disk.Leaf(img.Disk, off)
		if err != nil {
			return nil, err
		}
		f, ok := run.Src.(*gate.File)
		switch {
		case !ok:
			return nil, unsuitable("bytes %d to %d of the disk are in no file", off, off+run.Len)
		case !img.Dir.Holds(f):
			return nil, &ondisk.Refusal{
				Code: "unsupported", Reason: fmt.Sprintf("%q is not in the folder of the disk", f.Name()),
				Remedy: "write a copy: trueup align SOURCE DEST",
			}
		case f.Info.Links > 1:
			return nil, unsuitable("%q has %d hard links, and the move would change all of them", f.Name(),
				f.Info.Links)
		case slices.ContainsFunc(parts, func(p Part) bool { return p.Inode == f.Info.Inode }):
			return nil, unsuitable("%q holds two stretches of the disk", f.Name())
		case len(parts) == maxParts:
			return nil, unsuitable("the disk consists of more than %d stretches of files", maxParts)
		}
		parts = append(parts, Part{disk.Range{Off: off, Len: run.Len}, f.Name(), run.Off, f.Info.Inode})
		off += run.Len
		if off == img.Disk.Size() && run.Off+run.Len+tail != f.Size() {
			return nil, unsuitable("%q has %d bytes after the end of the disk", f.Name(),
				f.Size()-run.Off-run.Len-tail)
		}
	}
	return parts, nil
}

// unsuitable refuses a disk that can be realigned by a copy.
func unsuitable(format string, args ...any) error {
	return &ondisk.Refusal{
		Code: "unsupported", Reason: fmt.Sprintf(format, args...),
		Remedy: "use trueup replace, which puts an aligned copy in its place",
	}
}

// files are the open files of a disk.
type files struct {
	parts []Part
	open  []*os.File
	holes []bool // for each file: it has holes, so zeros become holes as well
	mu    sync.Mutex
	data  []disk.Range // for each file: the last range found without holes, guarded by mu
	other string       // name of a file that replaced the one of the move, or empty
	end   int64        // end of the storage: of the last part and its tail

	used error // error of a file that another program has open, or nil
}

// openFiles opens the files of a disk for writing, and locks them. The name base comes from the user and may be any
// name. Files behind loop devices are refused as in use. Files that d has open are closed until they are read again.
func openFiles(d *gate.Folder, base string, parts []Part, looped map[sys.ID]string) (*files, error) {
	if err := d.CloseFiles(); err != nil {
		return nil, err
	}
	fs := &files{parts: parts}
	for _, p := range parts {
		if err := fs.add(d, base, p); err != nil {
			return nil, errors.Join(err, fs.Close())
		}
	}
	last := parts[len(parts)-1]
	st, err := sys.FromOS(fs.open[len(parts)-1]).Stat()
	if err != nil {
		return nil, errors.Join(err, fs.Close())
	}
	fs.end = last.Off + st.Size - last.At
	if err := cmp.Or(fs.apart(looped), fs.used); err != nil {
		return nil, errors.Join(err, fs.Close())
	}
	return fs, nil
}

// apart returns an error if a loop device shows a file of the disk: the move would overwrite file systems mounted from
// it.
func (fs *files) apart(looped map[sys.ID]string) error {
	for i, f := range fs.open {
		st, err := sys.FromOS(f).Stat()
		if err != nil {
			return err
		}
		if loop := looped[st.ID]; loop != "" {
			return Shown(fs.parts[i].Name, loop)
		}
	}
	return nil
}

// Shown returns the refusal of a file behind a loop device.
func Shown(name, loop string) error {
	return &ondisk.Refusal{
		Code: "busy", Reason: fmt.Sprintf("%q is in use by the loop device %s", name, loop),
		Remedy: "unmount its file systems and detach it: losetup -d " + loop,
	}
}

func (fs *files) add(d *gate.Folder, base string, p Part) error {
	if err := gate.CheckName(p.Name); err != nil && p.Name != base {
		return err
	}
	used := inUse(d, p.Name)
	f, err := d.At.OpenToWrite(p.Name)
	switch {
	case sys.NotShared(err):
		return fmt.Errorf("%q: %w by another program, or another run of trueup; shut down the virtual machine, or "+
			"end that program", p.Name, ondisk.ErrBusy)
	case errors.Is(err, os.ErrPermission):
		return ondisk.In(ondisk.ErrOutput, "open %q to write it: %w; make it writable (chmod, chattr -i -a)", p.Name,
			err)
	case err != nil:
		return ondisk.In(ondisk.ErrOutput, "open %q to write it: %w", p.Name, err)
	}
	fs.open = append(fs.open, f.OSFile(p.Name))
	st, err := f.Stat()
	switch {
	case err != nil:
		return err
	case !st.Mode.IsRegular():
		return anotherFile(p.Name)
	case p.At+p.Len > st.Size:
		return ondisk.In(ondisk.ErrChanged, "%.256q has %d bytes, must have at least %d", p.Name, st.Size, p.At+p.Len)
	case st.Inode != p.Inode:
		fs.other = p.Name
	}
	fs.holes = append(fs.holes, st.Allocated < st.Size-st.Size%units.MiB)
	fs.data = append(fs.data, disk.Range{})
	fs.used = cmp.Or(fs.used, used)
	return lock(f, p.Name)
}

// inUse returns the error of a file that another program has open. Even a reader would see bytes of other places. The
// caller must not have opened the file for writing yet.
func inUse(d *gate.Folder, name string) error {
	f, err := d.At.Open(name)
	if err != nil {
		return nil // opening it for writing returns the error
	}
	defer f.Close()
	if yes, _ := f.Shared(); !yes {
		return nil
	}
	has := "has it open for reading, and would read moved bytes"
	if yes, _ := f.Written(); yes {
		has = "has it open for writing"
	}
	return fmt.Errorf("%q: %w: another program, or the kernel, %s; shut down the virtual machine, or end that "+
		"program (as root, fuser or losetup -j can name it)", name, ondisk.ErrBusy, has)
}

// anotherFile returns the error of a name that now leads to another file.
func anotherFile(name string) error {
	return ondisk.In(ondisk.ErrChanged, "%.256q is not the file of the move, but another one of this name", name)
}

// lock locks a file against other runs and QEMU. It locks nothing if the file system has no locks.
func lock(f *sys.File, name string) error {
	err := f.Lock(sys.Exclusive)
	if sys.Locked(err) {
		return fmt.Errorf("%q: %w by another run of trueup", name, ondisk.ErrBusy)
	}
	for _, b := range gate.QEMUBytes {
		if err := f.LockByte(sys.Shared, b); err != nil {
			return nil //nolint:nilerr // see above
		}
	}
	for _, b := range gate.QEMUBytes {
		if locked, err := f.LockedByte(b); err == nil && locked {
			return fmt.Errorf("%q: %w by QEMU (lock on byte %d); shut down the virtual machine", name, ondisk.ErrBusy,
				b)
		}
	}
	return nil
}

// End returns the end of the last part and its tail.
func (fs *files) End() int64 { return fs.end }

// Close closes the files.
func (fs *files) Close() error {
	var errs []error
	for _, f := range fs.open {
		errs = append(errs, sys.Release(f))
	}
	fs.open = nil
	return errors.Join(errs...)
}

// each calls use for the parts of a range. The last part extends to the end of its file.
func (fs *files) each(off, n int64, use func(i int, at, from, n int64) error) error {
	for from := int64(0); n > 0; {
		i := min(disk.Behind(fs.parts, off), len(fs.parts)-1)
		p := fs.parts[i]
		part := n
		if i < len(fs.parts)-1 {
			part = min(n, p.End()-off)
		}
		if err := use(i, p.At+off-p.Off, from, part); err != nil {
			return err
		}
		off, from, n = off+part, from+part, n-part
	}
	return nil
}

// ReadAt reads from the disk.
func (fs *files) ReadAt(b []byte, off int64) (done int, err error) {
	err = fs.each(off, int64(len(b)), func(i int, at, from, n int64) error {
		got, err := fs.open[i].ReadAt(b[from:from+n], at)
		done += got
		if errors.Is(err, io.EOF) && int64(got) == n {
			err = nil
		}
		return err
	})
	return done, err
}

// WriteAt writes to the disk.
func (fs *files) WriteAt(b []byte, off int64) (done int, err error) {
	err = fs.each(off, int64(len(b)), func(i int, at, from, n int64) error {
		got, err := fs.open[i].WriteAt(b[from:from+n], at)
		if done += got; err == nil {
			sys.FromOS(fs.open[i]).WriteBack(at, n)
		}
		return fs.wrap("write", i, err)
	})
	return done, err
}

// wrap adds the name of the file to an error.
func (fs *files) wrap(verb string, i int, err error) error {
	return ondisk.OutputError(gate.PlainError(err), "%s %s", verb, fs.parts[i].Name)
}

// Extent returns the hole or data at off as reported by the file system.
func (fs *files) Extent(off, limit int64) (e disk.Extent, err error) {
	e.Range = disk.Range{Off: off}
	err = fs.each(off, limit, func(i int, at, from, n int64) error {
		if from > e.Len {
			return nil
		}
		got, hole := fs.extent(i, at, n)
		if e.Len == 0 || hole == e.Zero {
			e.Len, e.Zero = e.Len+got, hole
		}
		return nil
	})
	return e, err
}

// extent returns the hole or data of a file from at on, at most n bytes. It keeps long data, with up to 16 MiB before
// them: to find their end, a file system walks over all of them, for each stretch.
func (fs *files) extent(i int, at, n int64) (int64, bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f, data := sys.FromOS(fs.open[i]), &fs.data[i]
	if at < data.Off || at >= data.End() {
		got, hole := f.Extent(at, math.MaxInt64-at)
		if hole || got < n {
			return min(got, n), hole
		}
		*data = disk.Range{Off: at, Len: got}
		from := units.AlignDown(at, maxChunk)
		if before, hole := f.Extent(from, at-from); !hole && before == at-from {
			*data = disk.Range{Off: from, Len: before + got}
		}
	}
	return min(n, data.End()-at), false
}

// forget drops the kept data of a file, which gets holes.
func (fs *files) forget(i int) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.data[i] = disk.Range{}
}

// Zero makes a range read as zero, as a hole if the file already has holes.
func (fs *files) Zero(off, n int64) error {
	return fs.each(off, n, func(i int, at, _, n int64) error {
		if fs.holes[i] {
			fs.forget(i)
			if err := sys.FromOS(fs.open[i]).Punch(at, n); !sys.Unsupported(err) {
				return fs.wrap("make a hole in", i, err)
			}
		}
		zeros := make([]byte, min(n, units.MiB))
		for done := int64(0); done < n; done += int64(len(zeros)) {
			if _, err := fs.open[i].WriteAt(zeros[:min(int64(len(zeros)), n-done)], at+done); err != nil {
				return fs.wrap("write", i, err)
			}
		}
		return nil
	})
}

// Truncate sets the end of the last file.
func (fs *files) Truncate(end int64) error {
	i := len(fs.parts) - 1
	p := fs.parts[i]
	fs.forget(i)
	if err := fs.open[i].Truncate(p.At + end - p.Off); err != nil {
		return fs.wrap("set size of", i, err)
	}
	fs.end = end
	return nil
}

// Sync flushes the files. A failed flush is not repeated, because the kernel drops pages that it could not write.
func (fs *files) Sync() error {
	for i, f := range fs.open {
		if err := f.Sync(); err != nil {
			return fs.wrap("sync", i, err)
		}
	}
	return nil
}
