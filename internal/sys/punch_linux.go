package sys

import "golang.org/x/sys/unix"

// PunchHole makes a range of a file a hole, which reads as zeros and takes no space. A file system that knows no holes
// has an error that Unsupported knows. Spec: fallocate(2).
func (f *File) PunchHole(off, n int64) error {
	return again(func() error {
		return unix.Fallocate(f.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	})
}
