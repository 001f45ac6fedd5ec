package sys

import (
	"errors"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Scratch returns a new file in a folder, to read and write it. The file has no name: the kernel frees it with the last
// process that has it open, however that ends. Where a file system makes no such files it has a name for a moment.
func Scratch(folder, name string) (*os.File, error) {
	fd, err := openat(unix.AT_FDCWD, folder, unix.O_RDWR|unix.O_TMPFILE, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), folder), nil
	}
	if !Unsupported(err) && !errors.Is(err, unix.EISDIR) { // EISDIR: Linux before 3.11
		return nil, &fs.PathError{Op: "open", Path: folder, Err: err}
	}
	return brief(folder, name)
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
