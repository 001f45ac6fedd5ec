package sys

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
	// The second is returned for reads of a locked range.
	notShared = []error{windows.ERROR_SHARING_VIOLATION, windows.ERROR_LOCK_VIOLATION}
	full      = []error{windows.ERROR_DISK_FULL, windows.ERROR_HANDLE_DISK_FULL, windows.ERROR_DISK_QUOTA_EXCEEDED}
	// The first is returned by file systems, such as FAT for links.
	unsupported = []error{windows.ERROR_INVALID_FUNCTION, windows.ERROR_INVALID_PARAMETER}
	denied      = []error{windows.ERROR_ACCESS_DENIED}
	tooLong     = []error{windows.ERROR_FILENAME_EXCED_RANGE}
)

// plain returns the system error alone, as on other systems.
func plain(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return err
}

// ReplacesOpen reports whether a rename can replace an open file. On Windows only NTFS can.
const ReplacesOpen = false

// Private runs f. On Windows new files inherit the permissions of their folder.
func Private(f func()) { f() }

// NamesAreBytes reports whether file names can be invalid UTF-8.
const NamesAreBytes = false

// CheckName refuses invalid file names, and names that other programs cannot open.
func CheckName(name string) error {
	switch {
	case name == "." || name == "..":
	case strings.HasSuffix(name, ".") || strings.HasSuffix(name, " "):
		return errors.New("ends with a dot or a space, which other Windows programs drop")
	case !filepath.IsLocal(name):
		return errors.New("is a Windows device, drive or stream, not a file")
	}
	return nil
}

// Folder is an open folder. Names are resolved relative to its handle, so renaming or replacing the folder cannot
// redirect them.
type Folder struct {
	root *os.Root
	self *os.File
}

// OpenFolder opens a folder and follows links in its path.
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

// Enter opens a folder in d, without following a link.
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
		return nil, errors.Join(syscall.ENOTDIR, sub.Close()) // a link replaced it
	}
	return asFolder(sub, nil)
}

// Again reopens the folder.
func (d *Folder) Again() (*Folder, error) { return asFolder(d.root.OpenRoot(".")) }

// List opens the folder for reading its names.
func (d *Folder) List() (*os.File, error) {
	f, err := d.root.Open(".")
	return f, plain(err)
}

// Close closes the folder.
func (d *Folder) Close() error { return errors.Join(d.self.Close(), d.root.Close()) }

// Scratch returns a new file in a folder, for reading and writing. The system removes it when it is closed or the
// process ends. Its name begins with name. Spec: FILE_FLAG_DELETE_ON_CLOSE (Microsoft).
func Scratch(folder, name string) (*os.File, error) {
	path := filepath.Join(folder, name+"."+rand.Text())
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|windows.FILE_FLAG_DELETE_ON_CLOSE, 0o600)
}

// Link gives a file a second name, and fails if that name exists.
func (d *Folder) Link(from, to string) error { return plain(d.root.Link(from, to)) }

// Rename renames a file, and replaces an existing file.
func (d *Folder) Rename(from, to string) error { return plain(d.root.Rename(from, to)) }

// RenameNew renames a file, and fails if the new name exists.
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

// ofNT converts an NT status to a Windows error.
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

// Free returns the free space for this user in the folder, in bytes. known is false if the file system does not report
// it.
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

// MayCreate returns nil, because permissions are not checked here.
func (*Folder) MayCreate() error { return nil }

// OpenDirect opens a folder by a path without links. Only the last name is protected against a link that replaced it
// meanwhile.
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

// FromOS returns an open file as a File. The caller still closes f.
func FromOS(f *os.File) *File { return &File{f} }

// OSFile converts f to an os.File. The caller closes that instead of f.
func (f *File) OSFile(string) *os.File { return f.os }

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

// Chmod sets the permissions. Windows supports only read-only or writable.
func (f *File) Chmod(mode os.FileMode) error { return plain(f.os.Chmod(mode)) }

// Pread reads once at off. A short read is no error, and 0 bytes mean the end of the file.
func (f *File) Pread(p []byte, off int64) (int, error) {
	n, err := f.os.ReadAt(p, off)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, plain(err)
}

// Lock sets or releases the lock of a file among runs of this program. It belongs to the open file.
func (f *File) Lock(kind LockKind) error { return f.lock(kind, windows.LOCKFILE_FAIL_IMMEDIATELY) }

// LockWaiting is Lock, but waits for other holders.
func (f *File) LockWaiting(kind LockKind) error { return f.lock(kind, 0) }

// Unlock releases the lock of the open file.
func (f *File) Unlock() error { return f.Lock(Unlocked) }

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

// Columns returns the width of a console in characters; terminal is false for other files.
func Columns(f *os.File) (n int, terminal bool) {
	var screen windows.ConsoleScreenBufferInfo
	if err := windows.GetConsoleScreenBufferInfo(windows.Handle(f.Fd()), &screen); err != nil {
		return 0, false
	}
	return int(screen.Window.Right-screen.Window.Left) + 1, true
}

// NoCore does nothing: Windows writes no core files.
func NoCore() {}

// span is a range of a file for calls about holes: FILE_ALLOCATED_RANGE_BUFFER with a length, or
// FILE_ZERO_DATA_INFORMATION with an end. Source: winioctl.h (Microsoft).
type span struct{ From, N int64 }

// control makes a call about holes, and returns at most one range of the result.
func (f *File) control(call uint32, about span) (out []span, err error) {
	var first span
	var n uint32
	const size = uint32(unsafe.Sizeof(span{}))
	err = windows.DeviceIoControl(f.handle(), call, (*byte)(unsafe.Pointer(&about)), size,
		(*byte)(unsafe.Pointer(&first)), size, &n, nil)
	if errors.Is(err, windows.ERROR_MORE_DATA) {
		err = nil // there are more ranges
	}
	if n == size {
		out = append(out, first)
	}
	return out, err
}

// Extent returns the number of bytes in one state from off on, at most limit, and whether they are a hole. If the file
// system does not report holes, everything is data, which is slow but correct.
func (f *File) Extent(off, limit int64) (n int64, hole bool) {
	var about windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(f.handle(), &about); err != nil || !showsHoles(about.FileAttributes) {
		return limit, false
	}
	data, err := f.control(windows.FSCTL_QUERY_ALLOCATED_RANGES, span{off, limit})
	if err != nil {
		return limit, false
	}
	return stateAt(off, limit, data)
}

// showsHoles reports whether unallocated ranges of a file read as zeros. Deduplicated files, and files that another
// program stores, keep their data elsewhere: they are reparse points.
// Source: File Attribute Constants, FSCTL_QUERY_ALLOCATED_RANGES, Reparse Point Tags (Microsoft).
func showsHoles(attributes uint32) bool {
	const both = windows.FILE_ATTRIBUTE_SPARSE_FILE | windows.FILE_ATTRIBUTE_REPARSE_POINT
	return attributes&both == windows.FILE_ATTRIBUTE_SPARSE_FILE
}

// stateAt returns the state at off. data holds the first allocated range from off on, if any.
func stateAt(off, limit int64, data []span) (n int64, hole bool) {
	switch {
	case len(data) == 0 || data[0].From >= off+limit:
		return limit, true
	case data[0].From > off:
		return data[0].From - off, true
	}
	return max(1, min(limit, data[0].From+data[0].N-off)), false
}

// Sparse makes a new file sparse, so that unwritten ranges use no space. It ignores a file system without support.
func (f *File) Sparse() {
	var n uint32
	_ = windows.DeviceIoControl(f.handle(), windows.FSCTL_SET_SPARSE, nil, 0, nil, 0, &n, nil) // see above
}

// Punch makes a range of a file read as zeros. In a sparse file the range uses no space. If unsupported, it returns an
// error for Unsupported.
func (f *File) Punch(off, n int64) error {
	_, err := f.control(windows.FSCTL_SET_ZERO_DATA, span{off, off + n})
	return err
}

// IOCTLs of a disk. Spec: winioctl.h (Microsoft).
const (
	getLength     = 0x7405c // IOCTL_DISK_GET_LENGTH_INFO
	getGeometry   = 0x700a0 // IOCTL_DISK_GET_DRIVE_GEOMETRY_EX
	getAttributes = 0x700f0 // IOCTL_DISK_GET_DISK_ATTRIBUTES

	removableMedia = 11 // of MEDIA_TYPE
	isOffline      = 1  // DISK_ATTRIBUTE_OFFLINE
)

// OpenDrive opens a disk for reading without restricting other programs.
func OpenDrive(path string) (*File, Drive, error) {
	name, _ := driveName(path)
	text, err := windows.UTF16PtrFromString(driveNames + name)
	if err != nil {
		return nil, Drive{}, err
	}
	file, err := windows.CreateFile(text, windows.GENERIC_READ, withAll, nil, windows.OPEN_EXISTING, 0, 0)
	switch {
	case Denied(err):
		return nil, Drive{}, fmt.Errorf("%w; run trueup as an administrator to read disks", err)
	case err != nil:
		return nil, Drive{}, err
	}
	f := FromOS(os.NewFile(uintptr(file), name))
	d, err := f.drive()
	if err != nil {
		return nil, Drive{}, errors.Join(err, f.Close())
	}
	d.Name = name
	return f, d, nil
}

// drive queries the properties of a disk.
func (f *File) drive() (d Drive, err error) {
	if err := f.ask(getLength, unsafe.Pointer(&d.Size), unsafe.Sizeof(d.Size)); err != nil {
		return d, fmt.Errorf("size of the disk: %w", err)
	}
	var geometry struct { // DISK_GEOMETRY_EX
		_      int64 // cylinders
		Media  uint32
		_, _   uint32 // heads and sectors
		Sector uint32
		_      int64     // size
		_      [256]byte // further information of any length
	}
	if err := f.ask(getGeometry, unsafe.Pointer(&geometry), unsafe.Sizeof(geometry)); err != nil {
		return d, fmt.Errorf("sector size of the disk: %w", err)
	}
	d.Sector, d.Fixed = int64(geometry.Sector), geometry.Media != removableMedia
	var attributes struct { // GET_DISK_ATTRIBUTES
		Version, _ uint32
		Attributes uint64
	}
	// A disk that does not answer counts as in use.
	err = f.ask(getAttributes, unsafe.Pointer(&attributes), unsafe.Sizeof(attributes))
	d.Offline = err == nil && attributes.Attributes&isOffline != 0
	return d, nil
}

// ask makes an ioctl with a struct as its result.
func (f *File) ask(call uint32, answer unsafe.Pointer, size uintptr) error {
	var n uint32
	return windows.DeviceIoControl(f.handle(), call, nil, 0, (*byte)(answer), uint32(size), &n, nil)
}

// Restrict restricts this process for good and returns the layers in force. It limits the memory in bytes and forbids
// starting programs. Unless writes is true, the process gets low integrity, so that Windows denies changes of files and
// of other processes. err reports a missing layer.
func Restrict(memory int64, writes bool) (layers []string, err error) {
	err = intoJob(memory)
	if err == nil {
		layers = append(layers, "job-object")
	}
	if writes {
		return layers, err
	}
	low := lowerIntegrity()
	switch {
	case low == nil:
		layers = append(layers, "low-integrity")
	case err == nil:
		err = low
	default:
		err = fmt.Errorf("%w; %w", err, low)
	}
	return layers, err
}

// intoJob puts this process into its own job object. The handle stays open until the process ends.
// Spec: JOBOBJECT_EXTENDED_LIMIT_INFORMATION (Microsoft).
func intoJob(memory int64) error {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return fmt.Errorf("job object: %w", err)
	}
	var limits windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	limits.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_ACTIVE_PROCESS |
		windows.JOB_OBJECT_LIMIT_PROCESS_MEMORY | windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE |
		windows.JOB_OBJECT_LIMIT_DIE_ON_UNHANDLED_EXCEPTION
	limits.BasicLimitInformation.ActiveProcessLimit = 1
	limits.ProcessMemoryLimit = uintptr(memory)
	const size = uint32(unsafe.Sizeof(limits))
	_, err = windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&limits)), size)
	if err == nil {
		err = windows.AssignProcessToJobObject(job, windows.CurrentProcess())
	}
	var inForce windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	if err == nil {
		err = windows.QueryInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
			uintptr(unsafe.Pointer(&inForce)), size, nil)
	}
	if err == nil && inForce.ProcessMemoryLimit != limits.ProcessMemoryLimit {
		err = errors.New("it has no limits")
	}
	if err != nil {
		return fmt.Errorf("job object: %w", err)
	}
	return nil
}

// lowerIntegrity lowers the integrity of this process. Spec: Mandatory Integrity Control (Microsoft).
func lowerIntegrity() error {
	err := lower()
	if err != nil {
		return fmt.Errorf("low integrity: %w", err)
	}
	return nil
}

func lower() error {
	var token windows.Token
	const access = windows.TOKEN_ADJUST_DEFAULT | windows.TOKEN_QUERY
	if err := windows.OpenProcessToken(windows.CurrentProcess(), access, &token); err != nil {
		return err
	}
	defer token.Close()
	sid, err := windows.CreateWellKnownSid(windows.WinLowLabelSid)
	if err != nil {
		return err
	}
	label := windows.Tokenmandatorylabel{
		Label: windows.SIDAndAttributes{Sid: sid, Attributes: windows.SE_GROUP_INTEGRITY},
	}
	err = windows.SetTokenInformation(token, windows.TokenIntegrityLevel, (*byte)(unsafe.Pointer(&label)), label.Size())
	if err != nil {
		return err
	}
	got := make([]byte, 256)
	var n uint32
	err = windows.GetTokenInformation(token, windows.TokenIntegrityLevel, &got[0], uint32(len(got)), &n)
	if err == nil && !(*windows.Tokenmandatorylabel)(unsafe.Pointer(&got[0])).Label.Sid.Equals(sid) {
		err = errors.New("the integrity of the process did not change")
	}
	return err
}

// Windows share modes work both ways: each opener must permit the other's access. Source: Creating and Opening Files
// (Microsoft).
const (
	withAll     = windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE | windows.FILE_SHARE_DELETE
	withReaders = windows.FILE_SHARE_READ | windows.FILE_SHARE_DELETE
)

// DeniesWriting reports whether an open file can keep other programs from writing it.
const DeniesWriting = true

// opening holds the options for opening a name in a folder. Spec: NtCreateFile (Microsoft).
type opening struct {
	access uint32
	alone  bool // keep other programs from writing until it is closed
	itself bool // open a link itself; without itself a link is an error
	isNew  bool
}

// open opens a base name in the folder, or the folder itself.
func (d *Folder) open(name string, o opening) (*File, error) {
	if name == "." {
		name = ""
	}
	text, err := windows.NewNTUnicodeString(name)
	if err != nil {
		return nil, plain(err)
	}
	object := &windows.OBJECT_ATTRIBUTES{
		RootDirectory: windows.Handle(d.self.Fd()), ObjectName: text, Attributes: windows.OBJ_CASE_INSENSITIVE,
	}
	var share, how, options uint32 = withAll, windows.FILE_OPEN, windows.FILE_SYNCHRONOUS_IO_NONALERT
	switch {
	case o.itself:
		options |= windows.FILE_OPEN_REPARSE_POINT
	default:
		object.Attributes |= windows.OBJ_DONT_REPARSE
	}
	if o.alone {
		share = withReaders
	}
	if o.isNew {
		how = windows.FILE_CREATE
	}
	object.Length = uint32(unsafe.Sizeof(*object))
	var file windows.Handle
	var done windows.IO_STATUS_BLOCK
	err = windows.NtCreateFile(&file, o.access|windows.FILE_READ_ATTRIBUTES|windows.SYNCHRONIZE, object, &done, nil,
		windows.FILE_ATTRIBUTE_NORMAL, share, how, options, 0, 0)
	switch {
	case errors.Is(err, windows.STATUS_REPARSE_POINT_ENCOUNTERED):
		return nil, ErrLoop
	case err != nil:
		return nil, ofNT(err)
	}
	return FromOS(os.NewFile(uintptr(file), name)), nil
}

const reading, writing = windows.FILE_GENERIC_READ, windows.FILE_GENERIC_READ | windows.FILE_GENERIC_WRITE

// Open opens a file for reading without restricting other programs. It follows a link. A caller that stat'ed the name
// before can detect the other file.
func (d *Folder) Open(name string) (*File, error) { return asFile(d.root.Open(name)) }

// OpenHeld is Open, but keeps other programs from writing the file until it is closed. If another program has the file
// open for writing, it fails with an error for NotShared.
func (d *Folder) OpenHeld(name string) (*File, error) {
	return d.open(name, opening{access: reading, alone: true})
}

// OpenToWrite opens an existing file for reading and writing, and keeps other programs from writing it until it is
// closed. If another program has the file open for writing, it fails with an error for NotShared.
func (d *Folder) OpenToWrite(name string) (*File, error) {
	return d.open(name, opening{access: writing, alone: true})
}

// Create creates a new file for reading and writing, and fails if the name exists. No other program can write the file
// until it is closed.
func (d *Folder) Create(name string, _ fs.FileMode) (*os.File, error) {
	f, err := d.open(name, opening{access: writing, alone: true, itself: true, isNew: true})
	if err != nil {
		return nil, err
	}
	return f.os, nil
}

func asFile(f *os.File, err error) (*File, error) {
	if err != nil {
		return nil, plain(err)
	}
	return FromOS(f), nil
}

// Stat returns the information on a name in the folder. It follows links that stay in the folder.
func (d *Folder) Stat(name string) (Info, error) {
	i, err := asked(d.open(name, opening{}))
	if errors.Is(err, ErrLoop) {
		i, err = asked(d.Open(name))
	}
	return i, err
}

// Lstat returns the information on a name in the folder, without following links.
func (d *Folder) Lstat(name string) (Info, error) {
	i, err := asked(d.open(name, opening{itself: true}))
	if m := i.Mode; err == nil && (m.IsRegular() || m.IsDir()) {
		return asked(d.open(name, opening{})) // open the data behind a reparse point, such as deduplication
	}
	return i, err
}

// asked returns the information on an open file, and closes it.
func asked(f *File, err error) (Info, error) {
	if err != nil {
		return Info{}, err
	}
	i, err := f.Stat()
	return i, errors.Join(err, f.Close())
}

// Stat returns the information on a path. It follows links, and succeeds even if another program denies all sharing.
func Stat(path string) (Info, error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return Info{}, plain(err)
	}
	file, err := windows.CreateFile(name, windows.FILE_READ_ATTRIBUTES, withAll, nil, windows.OPEN_EXISTING,
		windows.FILE_FLAG_BACKUP_SEMANTICS, 0)
	if err != nil {
		return Info{}, plain(err)
	}
	return asked(FromOS(os.NewFile(uintptr(file), path)), nil)
}

// Lstat returns the information on a path, without following a link.
func Lstat(path string) (Info, error) {
	st, err := os.Lstat(path)
	if err != nil {
		return Info{}, plain(err)
	}
	if m := st.Mode(); !m.IsRegular() && !m.IsDir() {
		return Info{Mode: m, Size: st.Size(), Links: 1, Modified: st.ModTime().UnixNano()}, nil
	}
	return Stat(path)
}
