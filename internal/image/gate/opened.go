package gate

import (
	"errors"
	"io"
	"path"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/sys"
)

// Remote is the one file of an image that a server has. Safe for concurrent use.
type Remote interface {
	io.ReaderAt
	Size() int64
	Name() string
	ID() string
	Extent(off, max int64) (disk.Extent, error)
	Forget()      // what was read before is read again
	Device() bool // its name says nothing, and Unchanged does not see what others write
	Unchanged() error
	Close() error
}

// Opened holds open files of one folder, of folders inside of it, and of further ones that the user allows.
type Opened struct {
	Dir     *Folder
	Base    string // name of the first
	Under   string // where the folder lies in that of a package; empty for its own
	Handles []*File
	Further []*Folder // in which parents and extents of the image lie
	Remote  Remote    // instead of all of them; nil for files
	Packed  *File     // what Remote was unpacked from; nil: it was not
}

// Local lists the files of this machine that the image is read from.
func (o *Opened) Local() []*File {
	if o.Packed != nil {
		return []*File{o.Packed}
	}
	return o.Handles
}

// States lists the files, for an image also those of its parents and the archive around it.
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

// Uses reports whether a path leads to one of the files, and its name.
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

// Forget has bytes of a server read again.
func (o *Opened) Forget() {
	if o.Remote != nil {
		o.Remote.Forget()
	}
}

// Uncache drops all files from memory, and reports whether that is known to have worked.
func (o *Opened) Uncache() bool {
	cold := true
	o.Forget()
	for _, f := range o.Handles {
		cold = f.Uncache() && cold
	}
	return cold
}

// Pass has what is read of the files from now on dropped from memory, see File.Pass.
func (o *Opened) Pass() {
	for _, f := range o.Handles {
		f.Pass()
	}
}

// Unseen reports whether Unchanged does not see that others have written to the image.
func (o *Opened) Unseen() bool { return o.OnDevice() || o.Remote != nil && o.Remote.Device() }

// OnDevice reports whether the first file is a block device.
func (o *Opened) OnDevice() bool { return len(o.Handles) > 0 && o.Handles[0].device }

// Unchanged checks that every file is as it was when it was opened.
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

// CloseFiles closes all files, and leaves the image's own folder open.
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

// State holds what shows that a file is unchanged.
type State struct {
	Name              string
	Size, Allocated   int64 // bytes
	Device, Inode     uint64
	Modified, Changed int64 // ns since 1970; Changed of the inode
}

// stateOf returns the state of a file when it was opened first.
func stateOf(f *File) State {
	return State{
		Name: f.name, Size: f.Size(), Allocated: f.Allocated(), Device: f.Info.Device, Inode: f.Info.Inode,
		Modified: f.Info.Modified, Changed: f.Info.Changed,
	}
}
