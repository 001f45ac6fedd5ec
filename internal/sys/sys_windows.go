package sys

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

var (
	locked = []error{windows.ERROR_LOCK_VIOLATION}
	// The second is that of a stretch that is locked, when it is read.
	notShared = []error{windows.ERROR_SHARING_VIOLATION, windows.ERROR_LOCK_VIOLATION}
	full      = []error{windows.ERROR_DISK_FULL, windows.ERROR_HANDLE_DISK_FULL, windows.ERROR_DISK_QUOTA_EXCEEDED}
	// The first is that of file systems, such as FAT for links.
	unsupported = []error{windows.ERROR_INVALID_FUNCTION, windows.ERROR_INVALID_PARAMETER}
	denied      = []error{windows.ERROR_ACCESS_DENIED}
	tooLong     = []error{windows.ERROR_FILENAME_EXCED_RANGE}
)

// plain returns the error of the system alone, as other systems return it.
func plain(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return err
}

// ReplacesOpen reports whether a file can get the name of one that is open. Only NTFS does that here.
const ReplacesOpen = false

// Private runs a function. New files have the rights of their folder here.
func Private(f func()) { f() }

// NamesAreBytes reports whether the name of a file can be other bytes than UTF-8.
const NamesAreBytes = false

// CheckName refuses what is no name of a file, and names that other programs could not open.
func CheckName(name string) error {
	switch {
	case name == "." || name == "..":
	case strings.HasSuffix(name, ".") || strings.HasSuffix(name, " "):
		return errors.New("ends with a dot or a space, which other programs for Windows leave out")
	case !filepath.IsLocal(name):
		return errors.New("is a device, a drive or a stream of Windows, and no file")
	}
	return nil
}

// Folder is an open folder. Names in it are looked up through its handle, so a folder that is renamed or replaced
// meanwhile cannot lead elsewhere.
type Folder struct {
	root *os.Root
	self *os.File
}

// OpenFolder follows the links of a path.
func OpenFolder(path string) (*Folder, error) { return asFolder(os.OpenRoot(path)) }

func asFolder(root *os.Root, err error) (*Folder, error) {
	if err != nil {
		return nil, plain(err)
	}
	self, err := root.Open(".")
	if err != nil {
		return nil, errors.Join(plain(err), root.Close())
	}
	return &Folder{root, self}, nil
}

// Enter opens a folder in d, and follows no link.
func (d *Folder) Enter(name string) (*Folder, error) {
	named, err := d.root.Lstat(name)
	if err != nil {
		return nil, plain(err)
	}
	if !named.IsDir() {
		return nil, syscall.ENOTDIR
	}
	sub, err := d.root.OpenRoot(name)
	if err != nil {
		return nil, plain(err)
	}
	if open, err := sub.Stat("."); err != nil || !os.SameFile(named, open) {
		return nil, errors.Join(syscall.ENOTDIR, sub.Close()) // a link took its place
	}
	return asFolder(sub, nil)
}

// Again opens the folder once more.
func (d *Folder) Again() (*Folder, error) { return asFolder(d.root.OpenRoot(".")) }

// List opens the folder to read the names in it.
func (d *Folder) List() (*os.File, error) {
	f, err := d.root.Open(".")
	return f, plain(err)
}

// Close closes the folder.
func (d *Folder) Close() error { return errors.Join(d.self.Close(), d.root.Close()) }

// Scratch returns a new file in a folder, to read and write it. The system removes it when it is closed, however this
// process ends. Until then it has a name that begins so. Spec: FILE_FLAG_DELETE_ON_CLOSE (Microsoft).
func Scratch(folder, name string) (*os.File, error) {
	path := filepath.Join(folder, name+"."+rand.Text())
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|windows.FILE_FLAG_DELETE_ON_CLOSE, 0o600)
}

// Link gives a file a second name, which must be free.
func (d *Folder) Link(from, to string) error { return plain(d.root.Link(from, to)) }

// Rename gives a file another name, and replaces what has it.
func (d *Folder) Rename(from, to string) error { return plain(d.root.Rename(from, to)) }

// RenameNew gives a file another name, which must be free.
func (d *Folder) RenameNew(from, to string) error {
	name, err := windows.UTF16FromString(to)
	if err != nil {
		return plain(err)
	}
	var info struct { // FILE_RENAME_INFORMATION
		Replace bool
		Root    windows.Handle
		Length  uint32 // bytes
		Name    [windows.MAX_PATH]uint16
	}
	if copy(info.Name[:], name) < len(name) {
		return windows.ERROR_FILENAME_EXCED_RANGE
	}
	info.Length = uint32(len(name)-1) * 2 //nolint:gosec // it fits
	info.Root = windows.Handle(d.self.Fd())
	file, err := d.open(from, opening{access: windows.DELETE, itself: true})
	if err != nil {
		return err
	}
	var done windows.IO_STATUS_BLOCK
	err = windows.NtSetInformationFile(file.handle(), &done, (*byte)(unsafe.Pointer(&info)),
		uint32(unsafe.Sizeof(info)), windows.FileRenameInformation)
	return errors.Join(ofNT(err), file.Close())
}

// ofNT returns the error of Windows for one of its kernel.
func ofNT(err error) error {
	if status, ok := errors.AsType[windows.NTStatus](err); ok {
		return status.Errno()
	}
	return err
}

// Remove removes a name of a file.
func (d *Folder) Remove(name string) error { return plain(d.root.Remove(name)) }

// Sync makes the names in the folder durable.
func (*Folder) Sync() error {
	return fmt.Errorf("Windows does not flush folders: %w", errors.ErrUnsupported) //nolint:staticcheck // a name
}

// Claimed reports whether the kernel keeps a block device for itself. It is asked for devices that have a size only:
// none here.
func (*Folder) Claimed(string) bool { return false }

// Free returns the space in bytes that this user can still take in the folder; known is false where the file system
// does not say it.
func (d *Folder) Free() (n int64, known bool, err error) {
	path, err := windows.UTF16PtrFromString(d.root.Name())
	if err != nil {
		return 0, false, err
	}
	var free uint64
	if err = windows.GetDiskFreeSpaceEx(path, &free, nil, nil); Unsupported(err) {
		return 0, false, nil
	}
	return int64(min(free, math.MaxInt64)), true, err //nolint:gosec // it fits
}

// MayCreate returns why this user cannot make and remove files in the folder. That is not asked here.
func (*Folder) MayCreate() error { return nil }

// InMemory reports whether the files of the folder lie in memory; it is not known on this system.
func (*Folder) InMemory() (bool, error) { return false, nil }

// OpenDirect opens a folder by a path without links. Only the last name is guarded against a link that took its place
// since.
func OpenDirect(path string) (*os.File, error) {
	named, err := os.Lstat(path)
	if err != nil {
		return nil, plain(err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, plain(err)
	}
	if open, err := f.Stat(); err != nil || !named.IsDir() || !os.SameFile(named, open) {
		return nil, errors.Join(syscall.ENOTDIR, f.Close())
	}
	return f, nil
}

// File is an open file.
type File struct{ os *os.File }

// Forget would have the system read a file from the storage again.
func (*File) Forget() error { return nil }

// Of returns an open file as a File. Its owner closes it.
func Of(f *os.File) *File { return &File{f} }

// Handed turns f into an os.File, which is to be closed instead of f.
func (f *File) Handed(string) *os.File { return f.os }

// Close closes the file.
func (f *File) Close() error { return plain(f.os.Close()) }

func (f *File) handle() windows.Handle { return windows.Handle(f.os.Fd()) }

// Stat returns the information on the open file.
func (f *File) Stat() (Info, error) {
	st, err := f.os.Stat()
	if err != nil {
		return Info{}, plain(err)
	}
	var id windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(f.handle(), &id); err != nil {
		return Info{}, err
	}
	var times struct { // FILE_BASIC_INFO
		Creation, Access, Write, Change windows.Filetime
		Attributes                      uint32
		_                               uint32
	}
	var sizes struct { // FILE_STANDARD_INFO
		Allocation, End          int64
		Links                    uint32
		DeletePending, Directory bool
		_                        [2]byte
	}
	err = errors.Join(
		windows.GetFileInformationByHandleEx(f.handle(), windows.FileBasicInfo, (*byte)(unsafe.Pointer(&times)),
			uint32(unsafe.Sizeof(times))),
		windows.GetFileInformationByHandleEx(f.handle(), windows.FileStandardInfo, (*byte)(unsafe.Pointer(&sizes)),
			uint32(unsafe.Sizeof(sizes))),
	)
	return Info{
		ID:   ID{uint64(id.VolumeSerialNumber), uint64(id.FileIndexHigh)<<32 | uint64(id.FileIndexLow)},
		Mode: st.Mode(), Size: st.Size(), Allocated: sizes.Allocation, Links: uint64(sizes.Links),
		Modified: times.Write.Nanoseconds(), Changed: times.Change.Nanoseconds(),
	}, err
}

// Chmod sets the permissions: whether the file can be written.
func (f *File) Chmod(mode os.FileMode) error { return plain(f.os.Chmod(mode)) }

// Pread reads once, from off on: fewer bytes than p has room for are no error, and none is the end of the file.
func (f *File) Pread(p []byte, off int64) (int, error) {
	n, err := f.os.ReadAt(p, off)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, plain(err)
}

// WriteBack would have the storage begin to write a range.
func (*File) WriteBack(int64, int64) {}

// Uncache returns false: this system does not report which pages are in memory.
func (*File) Uncache() bool { return false }

// DeviceSize returns the size of a block device in bytes.
func (*File) DeviceSize() (int64, error) { return 0, needsLinux("reading a device") }

// SectorSize returns the sector size of a block device in bytes.
func (*File) SectorSize() (int, error) { return 0, needsLinux("reading a device") }

// Lock sets the lock by which runs of this program know each other's files. It belongs to the open file.
func (f *File) Lock(kind LockKind) error { return f.lock(kind, windows.LOCKFILE_FAIL_IMMEDIATELY) }

// LockWaiting is Lock that waits for others.
func (f *File) LockWaiting(kind LockKind) error { return f.lock(kind, 0) }

func (f *File) lock(kind LockKind, flags uint32) error {
	at := &windows.Overlapped{OffsetHigh: lockByte >> 32}
	switch kind {
	case Unlocked:
		return windows.UnlockFileEx(f.handle(), 0, 1, 0, at)
	case Exclusive:
		flags |= windows.LOCKFILE_EXCLUSIVE_LOCK
	}
	return windows.LockFileEx(f.handle(), flags, 0, 1, 0, at)
}

// LockByte sets a lock of one byte, which other programs give a meaning. Here it would keep them from reading it.
func (*File) LockByte(LockKind, int64) error { return needsLinux("a lock of one byte") }

// LockedByte reports whether another has a lock of a byte.
func (*File) LockedByte(int64) (bool, error) { return false, needsLinux("a lock of one byte") }

// NoCore keeps this process from leaving a core file: this system writes none.
func NoCore() {}
