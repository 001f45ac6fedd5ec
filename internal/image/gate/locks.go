package gate

import (
	"fmt"

	"github.com/trueup/trueup/internal/sys"
)

// Bytes that QEMU locks: base + permission, with base 100 for what a program does and 200 for what it does not allow
// others. Spec: QEMU block/file-posix.c and include/block/block-common.h.
const (
	qemuRead     = 100 + 0 // "consistent read"
	qemuWrite    = 100 + 1
	qemuNoWriter = 200 + 1
)

// Hold keeps QEMU from opening the image for writing until release is called, by the locks that QEMU itself looks at.
// Where the file system knows no such locks nothing is held, and the check that the source is unchanged remains. The
// same holds for extents of which an image has more than can be open at once.
func (o *Opened) Hold() (release func()) {
	for _, f := range o.Handles {
		for _, b := range []int64{qemuRead, qemuNoWriter} {
			f.lock(sys.Shared, b)
		}
	}
	return func() {
		for _, f := range o.Handles {
			for _, b := range []int64{qemuRead, qemuNoWriter} {
				f.lock(sys.Unlocked, b)
			}
		}
	}
}

func (f *File) lock(kind sys.LockKind, at int64) {
	_ = f.with(func(open *sys.File) error { return open.LockByte(kind, at) }) // see Hold
}

// Claimed reports whether a block device has a file system mounted on it, or something else that the kernel keeps for
// itself, for another use than that of this run.
func (f *File) Claimed() bool { return f.device && !f.Ours && f.dir.At.Claimed(f.real) }

// QEMULock returns an error if QEMU has the file open for writing: it holds a lock on the byte of the "write"
// permission, 100 + 1. Spec: QEMU block/file-posix.c, RAW_LOCK_PERM_BASE.
func (f *File) QEMULock() error {
	var locked bool
	err := f.with(func(open *sys.File) (err error) {
		locked, err = open.LockedByte(qemuWrite)
		return err
	})
	if err != nil || !locked {
		return nil //nolint:nilerr // the file system knows no such locks
	}
	return fmt.Errorf("%q is open for writing in QEMU (lock on byte %d)", f.name, qemuWrite)
}

// AtWork reports whether another run of trueup has the file locked as its own.
func (f *File) AtWork() (locked bool) {
	_ = f.with(func(open *sys.File) error { // where nothing can be locked, nothing is
		err := open.Lock(sys.Shared)
		if locked = sys.Locked(err); err == nil {
			err = open.Lock(sys.Unlocked)
		}
		return err
	})
	return locked
}
