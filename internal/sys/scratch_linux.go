package sys

import (
	"errors"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Scratch returns a new file in a folder, to read and write it. The file has no name: the kernel frees it with the last
// process that has it open, however that ends. Where a file system makes no such files it has name for a moment.
func Scratch(folder, name string) (*os.File, error) {
	f, err := unnamed(unix.AT_FDCWD, folder, folder, 0o600)
	if err == nil {
		return f, nil
	}
	if !errors.Is(err, errors.ErrUnsupported) {
		return nil, &fs.PathError{Op: "open", Path: folder, Err: err}
	}
	d, err := OpenFolder(folder)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: folder, Err: err}
	}
	defer d.Close()
	if f, err = d.Create(name, 0o600); err != nil {
		return nil, &fs.PathError{Op: "create", Path: name, Err: err}
	}
	if err := d.Remove(name); err != nil {
		return nil, errors.Join(&fs.PathError{Op: "remove", Path: name, Err: err}, f.Close())
	}
	return f, nil
}

// CreateUnnamed makes a file in the folder that is to get a name, to read and write it. Name gives it that; without it
// the kernel frees the file with the last process that has it open. The error is ErrUnsupported where a file system
// makes no such files.
func (d *Folder) CreateUnnamed(name string, perm fs.FileMode) (*os.File, error) {
	return unnamed(d.fd, ".", name, perm)
}

func unnamed(dir int, folder, name string, perm fs.FileMode) (*os.File, error) {
	fd, err := openat(dir, folder, unix.O_RDWR|unix.O_TMPFILE, perm)
	switch {
	case err == nil:
		return os.NewFile(uintptr(fd), name), nil
	case Unsupported(err) || errors.Is(err, unix.EISDIR): // EISDIR: Linux before 3.11
		return nil, errors.ErrUnsupported
	}
	return nil, err
}

// Name gives a file of CreateUnnamed its name, which must be free. The error is ErrUnsupported where the file system
// cannot, or there is no /proc.
func (d *Folder) Name(f *os.File) error {
	err := again(func() error {
		return unix.Linkat(d.fd, Inherited(int(f.Fd())), d.fd, f.Name(), unix.AT_SYMLINK_FOLLOW)
	})
	if Unsupported(err) || errors.Is(err, fs.ErrNotExist) {
		return errors.ErrUnsupported
	}
	return err
}

// Allocate reserves the first n bytes of a file. A file system that reserves nothing is no error.
func Allocate(f *os.File, n int64) error {
	err := again(func() error { return unix.Fallocate(int(f.Fd()), 0, 0, n) })
	if err == nil || Unsupported(err) {
		return nil
	}
	return &fs.PathError{Op: "fallocate", Path: f.Name(), Err: err}
}

// Direct opens an open file once more, to read it past the page cache.
func Direct(f *os.File) (*os.File, error) {
	path := Inherited(int(f.Fd()))
	fd, err := openat(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Inherited returns the path by which a process opens a file again that it has open already, also one without a name.
// Spec: proc(5), /proc/[pid]/fd.
func Inherited(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
