//go:build !linux

package sys

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// Adopt gives f the permissions of another file. lost is what this system has no implementation for.
func (f *File) Adopt(from *File) (lost []string, err error) {
	st, err := from.Stat()
	if err != nil {
		return nil, err
	}
	return []string{"owner and extended attributes"}, f.Chmod(st.Mode)
}

// Exchange gives two files each other's name, at once.
func (*Folder) Exchange(string, string) error { return needsLinux("an exchange of names") }

// Immovable is for Linux.
func (*File) Immovable() bool { return false }

// Self returns the file of this program.
func Self() (string, error) { return os.Executable() }

// Tie does nothing: this system cannot end a program with the one that started it.
func Tie(*exec.Cmd) (release func()) { return func() {} }

// Apart does nothing.
func Apart(*exec.Cmd) {}

// TerminateGroup ends the program alone.
func TerminateGroup(cmd *exec.Cmd) error { return cmd.Process.Kill() }

// KillGroup ends the program alone.
func KillGroup(cmd *exec.Cmd) error { return cmd.Process.Kill() }

// EndGroup does nothing.
func EndGroup(int) {}

// Unprivileged changes nothing.
func Unprivileged(*exec.Cmd, string) error { return nil }

// Work is not known.
func Work(int, int) (ran time.Duration, known bool) { return 0, false }

// OpenDevice is not supported, nor is anything else that a block device is written with.
func OpenDevice(string) (*os.File, error) { return nil, errors.ErrUnsupported }

// ReadOnly is not supported.
func (*File) ReadOnly() (bool, error) { return false, errors.ErrUnsupported }

// ZeroOut is not supported.
func (*File) ZeroOut(int64, int64) error { return errors.ErrUnsupported }

// Discard is not supported.
func (*File) Discard(int64, int64) error { return errors.ErrUnsupported }

// RereadTable is not supported.
func (*File) RereadTable() error { return errors.ErrUnsupported }

// LoopFile knows of no file.
func (*File) LoopFile() (ID, bool) { return ID{}, false }

// NodeName returns no name.
func NodeName(uint64) string { return "" }

// needsLinux returns the error of a call that this system has no implementation of.
func needsLinux(what string) error {
	return fmt.Errorf("%s needs Linux: %w", what, errors.ErrUnsupported)
}

// Allocate is not supported.
func Allocate(*os.File, int64) error { return errors.ErrUnsupported }

// Direct is not supported.
func Direct(*os.File) (*os.File, error) { return nil, errors.ErrUnsupported }

// Inherited returns no path.
func Inherited(int) string { return "" }

// Uncached returns false: it is not known.
func (*File) Uncached() bool { return false }

// Memory returns 0: it is not known.
func Memory() int64 { return 0 }

// FileSystem returns "": it is not known.
func FileSystem(string) string { return "" }

// Writers passes nothing: it is not known.
func Writers(string, func(w Writer) bool) {}

// Written returns false: it is not known. Windows shows it when the file is opened, see Folder.OpenHeld.
func (*File) Written() (yes, known bool) { return false, false }

// Shared returns nothing: it is not known.
func (*File) Shared() (yes, known bool) { return false, false }

// Claimed reports whether the kernel keeps a block device for itself. It is asked for devices that have a size only:
// none here.
func (*Folder) Claimed(string) bool { return false }

// InMemory returns false: it is not known.
func (*Folder) InMemory() (bool, error) { return false, nil }

// Forget would have the system read a file from the storage again.
func (*File) Forget() error { return nil }

// WriteBack would have the storage begin to write a range.
func (*File) WriteBack(int64, int64) {}

// Uncache returns false: this system does not report which pages are in memory.
func (*File) Uncache() bool { return false }

// DeviceSize is not supported.
func (*File) DeviceSize() (int64, error) { return 0, needsLinux("reading a device") }

// SectorSize is not supported.
func (*File) SectorSize() (int, error) { return 0, needsLinux("reading a device") }

// LockByte is not supported: a lock of the process would be lost with the first descriptor of the file that is closed,
// and one of Windows would keep others from reading the byte.
func (*File) LockByte(LockKind, int64) error { return needsLinux("a lock of one byte") }

// LockedByte is not supported.
func (*File) LockedByte(int64) (bool, error) { return false, needsLinux("a lock of one byte") }
