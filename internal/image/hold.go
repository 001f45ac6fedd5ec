package image

import (
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
			f.lock(sys.Shared, b)
		}
	}
	return func() {
		for _, f := range img.files {
			for _, b := range []int64{qemuRead, qemuNoWriter} {
				f.lock(sys.Unlocked, b)
			}
		}
	}
}

func (f *file) lock(kind sys.LockKind, at int64) {
	_ = f.with(func(open *sys.File) error { return open.LockByte(kind, at) }) // see Hold
}
