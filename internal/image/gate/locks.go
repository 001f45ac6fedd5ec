package gate

import (
	"errors"
	"fmt"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// Bytes that QEMU locks: base + permission, with base 100 for what a program does and 200 for what it does not allow
// others. Spec: QEMU block/file-posix.c and include/block/block-common.h.
const (
	QEMURead     = 100 + 0 // "consistent read"
	QEMUWrite    = 100 + 1
	QEMUAlone    = 200 + 0
	QEMUNoWriter = 200 + 1
)

// QEMUBytes lists the lock bytes of an exclusive writer.
var QEMUBytes = []int64{QEMURead, QEMUWrite, QEMUAlone, QEMUNoWriter}

// Hold keeps QEMU from opening the image for writing until release is called, by the locks that QEMU itself looks at,
// and on Windows any program. Where the file system knows no such locks nothing is held, and the check that the source
// is unchanged remains. The same holds for extents of which an image has more than can be open at once.
func (o *Opened) Hold() (release func(), err error) {
	if err := o.hold(true); err != nil {
		return nil, err
	}
	for _, f := range o.Handles {
		for _, b := range []int64{QEMURead, QEMUNoWriter} {
			f.lock(sys.Shared, b)
		}
	}
	return func() {
		for _, f := range o.Handles {
			for _, b := range []int64{QEMURead, QEMUNoWriter} {
				f.lock(sys.Unlocked, b)
			}
		}
		_ = o.hold(false) // what is closed is opened again when it is read
	}, nil
}

// Alone returns an error if another program has a file of the image open to write it, or for itself. It keeps others
// from opening them for a moment. A system that does not show that returns none.
func (o *Opened) Alone() error { return errors.Join(o.hold(true), o.hold(false)) }

// hold has all files opened again, so that others cannot write them, or can.
func (o *Opened) hold(yes bool) error {
	if !sys.DeniesWriting {
		return nil
	}
	for i, f := range o.Handles {
		if err := f.hold(yes); err != nil {
			for _, f := range o.Handles[:i+1] {
				err = errors.Join(err, f.hold(false))
			}
			return err
		}
	}
	return nil
}

func (f *File) hold(yes bool) error {
	f.mu.Lock()
	f.holds = yes && !f.device
	f.mu.Unlock()
	err := f.shut()
	if err == nil && yes {
		err = f.with(func(*sys.File) error { return nil })
	}
	return err
}

// inUse returns the error of a file that another program does not share; nil if err says something else.
func (f *File) inUse(err error) error {
	if !sys.NotShared(err) {
		return nil
	}
	return fmt.Errorf("file %.256q is %w: another program has it open, and shares it with none that wants to read or "+
		"change it; shut the virtual machine down, or end what has it open", f.name, ondisk.ErrBusy)
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
		locked, err = open.LockedByte(QEMUWrite)
		return err
	})
	if err != nil || !locked {
		return nil //nolint:nilerr // the file system knows no such locks
	}
	return fmt.Errorf("%q is open for writing in QEMU (lock on byte %d)", f.name, QEMUWrite)
}

// Written reports whether any program, or the kernel, is known to have the file open for writing.
func (f *File) Written() (yes bool) {
	if f.device {
		return false // see Claimed
	}
	_ = f.with(func(open *sys.File) error { // who reads it will say the error
		yes, _ = open.Written()
		return nil
	})
	return yes
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
