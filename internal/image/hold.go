package image

import (
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/sys"
)

// Bytes that QEMU locks: base + permission, with base 100 for what a program does and 200 for what it does not allow others.
// Spec: QEMU block/file-posix.c and include/block/block-common.h.
const (
	qemuRead     = 100 + 0 // "consistent read"
	qemuWrite    = 100 + 1
	qemuNoWriter = 200 + 1
)

// Hold keeps QEMU from opening the image for writing until release is called, by the locks that QEMU itself looks at. Where
// the file system knows no such locks nothing is held, and the check that the source is unchanged remains. The same holds for
// extents of which an image has more than can be open at once.
func (img *Image) Hold() (release func()) {
	for _, f := range img.files {
		for _, b := range []int64{qemuRead, qemuNoWriter} {
			f.lock(unix.F_RDLCK, b)
		}
	}
	return func() {
		for _, f := range img.files {
			for _, b := range []int64{qemuRead, qemuNoWriter} {
				f.lock(unix.F_UNLCK, b)
			}
		}
	}
}

func (f *file) lock(kind int16, at int64) {
	l := unix.Flock_t{Type: kind, Start: at, Len: 1}
	_ = f.with(func(fd int) error { return sys.Lock(fd, unix.F_OFD_SETLK, &l) }) // see Hold
}
