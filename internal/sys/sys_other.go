//go:build !linux

package sys

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// Adopt copies the permissions of another file to f. lost names the metadata that this system does not support here.
func (f *File) Adopt(from *File) (lost []string, err error) {
	st, err := from.Stat()
	if err != nil {
		return nil, err
	}
	return []string{"owner and extended attributes"}, f.Chmod(st.Mode)
}

// Exchange is not supported.
func (*Folder) Exchange(string, string) error { return needsLinux("an exchange of names") }

// Immovable is supported on Linux only.
func (*File) Immovable() bool { return false }

// Self returns the path of this program.
func Self() (string, error) { return os.Executable() }

// Tie does nothing: this system cannot kill a program when its parent dies.
func Tie(*exec.Cmd) (release func()) { return func() {} }

// Apart does nothing.
func Apart(*exec.Cmd) {}

// TerminateGroup kills the program alone.
func TerminateGroup(cmd *exec.Cmd) error { return cmd.Process.Kill() }

// KillGroup kills the program alone.
func KillGroup(cmd *exec.Cmd) error { return cmd.Process.Kill() }

// EndGroup does nothing.
func EndGroup(int) {}

// Unprivileged does nothing.
func Unprivileged(*exec.Cmd, string) error { return nil }

// Work is not supported.
func Work(int, int) (ran time.Duration, known bool) { return 0, false }

// OpenDevice is not supported, nor is any other write to a block device.
func OpenDevice(string) (*os.File, error) { return nil, errors.ErrUnsupported }

// ReadOnly is not supported.
func (*File) ReadOnly() (bool, error) { return false, errors.ErrUnsupported }

// ZeroOut is not supported.
func (*File) ZeroOut(int64, int64) error { return errors.ErrUnsupported }

// Discard is not supported.
func (*File) Discard(int64, int64) error { return errors.ErrUnsupported }

// RereadTable is not supported.
func (*File) RereadTable() error { return errors.ErrUnsupported }

// LoopFile is not supported.
func (*File) LoopFile() (ID, bool) { return ID{}, false }

// NodeName is not supported.
func NodeName(uint64) string { return "" }

// needsLinux returns the error of a call that is implemented only for Linux.
func needsLinux(what string) error {
	return fmt.Errorf("%s needs Linux: %w", what, errors.ErrUnsupported)
}

// Allocate is not supported.
func Allocate(*os.File, int64) error { return errors.ErrUnsupported }

// Direct is not supported.
func Direct(*os.File) (*os.File, error) { return nil, errors.ErrUnsupported }

// Inherited returns no path.
func Inherited(int) string { return "" }

// Uncached is not supported and returns false.
func (*File) Uncached() bool { return false }

// Memory is not supported and returns 0.
func Memory() int64 { return 0 }

// FileSystem is not supported and returns "".
func FileSystem(string) string { return "" }

// Writers is not supported and calls nothing.
func Writers(string, func(w Writer) bool) {}

// Written is not supported. Windows reports writers when a file is opened, see Folder.OpenHeld.
func (*File) Written() (yes, known bool) { return false, false }

// Shared is not supported.
func (*File) Shared() (yes, known bool) { return false, false }

// Claimed returns false. It is called for block devices with a size only, and this system has none.
func (*Folder) Claimed(string) bool { return false }

// InMemory is not supported and returns false.
func (*Folder) InMemory() (bool, error) { return false, nil }

// Forget does nothing.
func (*File) Forget() error { return nil }

// WriteBack does nothing.
func (*File) WriteBack(int64, int64) {}

// Uncache returns false, because this system does not report cached pages.
func (*File) Uncache() bool { return false }

// DeviceSize is not supported.
func (*File) DeviceSize() (int64, error) { return 0, needsLinux("reading a device") }

// SectorSize is not supported.
func (*File) SectorSize() (int, error) { return 0, needsLinux("reading a device") }

// LockByte is not supported. A POSIX lock would be lost when the process closes any descriptor of the file, and a
// Windows lock would block reads of the byte.
func (*File) LockByte(LockKind, int64) error { return needsLinux("a lock of one byte") }

// LockedByte is not supported.
func (*File) LockedByte(int64) (bool, error) { return false, needsLinux("a lock of one byte") }
