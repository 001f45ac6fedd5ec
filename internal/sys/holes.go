//go:build linux || freebsd

package sys

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Extent returns the number of bytes in one state from off on, at most limit, and whether they are a hole. If the file
// system does not report holes, everything is data, which is slow but correct.
func (f *File) Extent(off, limit int64) (n int64, hole bool) {
	data, err := f.seek(off, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return limit, true // no data after off
	case err != nil:
		return limit, false
	case data > off:
		return min(limit, data-off), true
	}
	if end, err := f.seek(off, unix.SEEK_HOLE); err == nil && end > off {
		return min(limit, end-off), false
	}
	return limit, false
}

func (f *File) seek(off int64, whence int) (int64, error) {
	return retryValue(func() (int64, error) { return unix.Seek(f.fd, off, whence) })
}
