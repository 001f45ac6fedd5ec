//go:build linux || darwin || freebsd

package sys

import (
	"errors"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ReplacesOpen reports whether a rename can replace an open file.
const ReplacesOpen = true

// DeniesWriting reports whether an open file can keep other programs from writing it.
const DeniesWriting = false

// NamesAreBytes reports whether file names can be invalid UTF-8.
const NamesAreBytes = true

// CheckName accepts all names.
func CheckName(string) error { return nil }

// Folder is an open folder. Names are resolved relative to its handle, so renaming or replacing the folder cannot
// redirect them.
type Folder struct{ fd int }

// aFolder holds the flags to open a folder and nothing else.
const aFolder = unix.O_RDONLY | unix.O_DIRECTORY

// quietly holds the flags to refuse a link, and not to wait for the other end of a FIFO.
const quietly = unix.O_NOFOLLOW | unix.O_NONBLOCK

func openat(dir int, name string, flags int, perm fs.FileMode) (int, error) {
	return retryValue(func() (int, error) { return unix.Openat(dir, name, flags|unix.O_CLOEXEC, uint32(perm.Perm())) })
}

// OpenFolder opens a folder and follows links in its path.
func OpenFolder(path string) (*Folder, error) { return openFolder(unix.AT_FDCWD, path, aFolder) }

func openFolder(dir int, name string, flags int) (*Folder, error) {
	fd, err := openat(dir, name, flags, 0)
	if err != nil {
		return nil, err
	}
	return &Folder{fd}, nil
}

// Enter opens a folder in d, without following a link.
func (d *Folder) Enter(name string) (*Folder, error) {
	return openFolder(d.fd, name, aFolder|unix.O_NOFOLLOW)
}

// Again duplicates the folder handle. Child processes do not inherit it.
func (d *Folder) Again() (*Folder, error) {
	fd, err := retryValue(func() (int, error) { return unix.FcntlInt(uintptr(d.fd), unix.F_DUPFD_CLOEXEC, 0) })
	if err != nil {
		return nil, err
	}
	return &Folder{fd}, nil
}

// List opens the folder for reading its names.
func (d *Folder) List() (*os.File, error) {
	fd, err := openat(d.fd, ".", aFolder, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "."), nil
}

// Close closes the folder.
func (d *Folder) Close() error { return shut(&d.fd) }

// Stat returns the information on a name in the folder, and follows links.
func (d *Folder) Stat(name string) (Info, error) {
	return stat(func(st *unix.Stat_t) error { return unix.Fstatat(d.fd, name, st, 0) })
}

// Lstat returns the information on a name in the folder, without following links.
func (d *Folder) Lstat(name string) (Info, error) {
	return stat(func(st *unix.Stat_t) error { return unix.Fstatat(d.fd, name, st, unix.AT_SYMLINK_NOFOLLOW) })
}

// Open opens a file for reading, without following a link and without blocking.
func (d *Folder) Open(name string) (*File, error) { return d.open(name, unix.O_RDONLY|quietly) }

// OpenHeld is Open: see DeniesWriting.
func (d *Folder) OpenHeld(name string) (*File, error) { return d.Open(name) }

// OpenToWrite opens an existing file for reading and writing, without following a link and without blocking.
func (d *Folder) OpenToWrite(name string) (*File, error) { return d.open(name, unix.O_RDWR|quietly) }

func (d *Folder) open(name string, flags int) (*File, error) {
	fd, err := openat(d.fd, name, flags, 0)
	if err != nil {
		return nil, err
	}
	return &File{fd}, nil
}

// Create creates a new file for reading and writing, and fails if the name exists.
func (d *Folder) Create(name string, perm fs.FileMode) (*os.File, error) {
	fd, err := openat(d.fd, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, perm)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Link gives a file a second name, and fails if that name exists.
func (d *Folder) Link(from, to string) error {
	return retry(func() error { return unix.Linkat(d.fd, from, d.fd, to, 0) })
}

// Rename renames a file, and replaces an existing file.
func (d *Folder) Rename(from, to string) error {
	return retry(func() error { return unix.Renameat(d.fd, from, d.fd, to) })
}

// RenameNew renames a file, and fails if the new name exists.
func (d *Folder) RenameNew(from, to string) error {
	return retry(func() error { return renameNew(d.fd, from, to) })
}

// Remove removes a name of a file.
func (d *Folder) Remove(name string) error {
	return retry(func() error { return unix.Unlinkat(d.fd, name, 0) })
}

// unlinkedFile returns a new file of a folder and removes its name at once. The name contains the process ID, so no
// other process uses it.
func unlinkedFile(folder, name string) (*os.File, error) {
	name += "." + strconv.Itoa(os.Getpid())
	d, err := OpenFolder(folder)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: folder, Err: err}
	}
	defer d.Close()
	f, err := d.Create(name, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "create", Path: name, Err: err}
	}
	if err := d.Remove(name); err != nil {
		return nil, errors.Join(&fs.PathError{Op: "remove", Path: name, Err: err}, f.Close())
	}
	return f, nil
}

// Sync makes the names in the folder durable.
func (d *Folder) Sync() error {
	return retry(func() error { return flush(d.fd) })
}

// MayCreate returns an error if this user cannot create and remove files in the folder.
func (d *Folder) MayCreate() error {
	return retry(func() error { return unix.Faccessat(d.fd, ".", unix.W_OK|unix.X_OK, 0) })
}

// File is an open file. Unlike os.File it has no lock and no poller: a read is one system call.
type File struct{ fd int }

// FromOS returns an open file as a File. The caller still closes f.
func FromOS(f *os.File) *File { return &File{int(f.Fd())} }

// OSFile converts f to an os.File. The caller closes that instead of f.
func (f *File) OSFile(name string) *os.File { return os.NewFile(uintptr(f.fd), name) }

// Close closes the file.
func (f *File) Close() error { return shut(&f.fd) }

// Stat returns the information on the open file.
func (f *File) Stat() (Info, error) {
	return stat(func(st *unix.Stat_t) error { return unix.Fstat(f.fd, st) })
}

// Chmod sets the permissions and the special bits of a mode.
func (f *File) Chmod(mode os.FileMode) error {
	bits := uint32(mode.Perm())
	for bit, name := range special {
		if mode&name != 0 {
			bits |= bit
		}
	}
	return retry(func() error { return unix.Fchmod(f.fd, bits) })
}

// Sparse does nothing: unwritten ranges of a file use no space.
func (*File) Sparse() {}

// Pread reads once at off. A short read is no error, and 0 bytes mean the end of the file.
func (f *File) Pread(p []byte, off int64) (int, error) {
	return retryValue(func() (int, error) { return unix.Pread(f.fd, p, off) })
}

// fcntl makes the locking call command on one byte.
func (f *File) fcntl(command int, kind LockKind, at int64) (unix.Flock_t, error) {
	l := unix.Flock_t{
		Type:  [...]int16{Unlocked: unix.F_UNLCK, Shared: unix.F_RDLCK, Exclusive: unix.F_WRLCK}[kind],
		Start: at, Len: 1,
	}
	err := retry(func() error { return unix.FcntlFlock(uintptr(f.fd), command, &l) })
	return l, err
}

// kinds maps file types to fs.FileMode. Any other type counts as a regular file.
var kinds = map[uint32]fs.FileMode{
	unix.S_IFLNK: fs.ModeSymlink, unix.S_IFIFO: fs.ModeNamedPipe, unix.S_IFSOCK: fs.ModeSocket,
	unix.S_IFDIR: fs.ModeDir, unix.S_IFCHR: fs.ModeDevice | fs.ModeCharDevice, unix.S_IFBLK: fs.ModeDevice,
}

// special maps the mode bits besides the permissions to fs.FileMode.
var special = map[uint32]fs.FileMode{
	unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid,
	unix.S_ISVTX: fs.ModeSticky,
}

// info converts a stat(2) result. The types of its fields differ between systems.
func info(st *unix.Stat_t) Info {
	mode := uint32(st.Mode)
	i := Info{
		ID:   ID{uint64(st.Dev), uint64(st.Ino)},
		Mode: fs.FileMode(mode&0o777) | kinds[mode&unix.S_IFMT],
		Size: st.Size, Allocated: st.Blocks * 512, Links: uint64(st.Nlink),
		Modified: st.Mtim.Nano(), Changed: st.Ctim.Nano(),
	}
	if i.Mode&fs.ModeDevice != 0 {
		i.Node = uint64(st.Rdev)
	}
	for bit, name := range special {
		if mode&bit != 0 {
			i.Mode |= name
		}
	}
	return i
}

// stat returns the result of a stat call.
func stat(call func(st *unix.Stat_t) error) (Info, error) {
	var st unix.Stat_t
	if err := retry(func() error { return call(&st) }); err != nil {
		return Info{}, err
	}
	return info(&st), nil
}

// Stat returns the information on a path, and follows links.
func Stat(path string) (Info, error) {
	return stat(func(st *unix.Stat_t) error { return unix.Stat(path, st) })
}

// Lstat returns the information on a path, without following a link.
func Lstat(path string) (Info, error) {
	return stat(func(st *unix.Stat_t) error { return unix.Lstat(path, st) })
}

// Columns returns the width of a terminal in characters; terminal is false for other files.
func Columns(f *os.File) (n int, terminal bool) {
	size, err := retryValue(func() (*unix.Winsize, error) { return unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ) })
	if err != nil {
		return 0, false
	}
	return int(size.Col), true
}

// NoCore disables core files of this process, because they would contain disk data.
func NoCore() {
	var core unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_CORE, &core) == nil {
		core.Cur = 0
		_ = unix.Setrlimit(unix.RLIMIT_CORE, &core) // lowering is always allowed
	}
}

// Private runs f with a umask that makes new files and sockets private to this user and not executable.
func Private(f func()) {
	const all = 0o177
	defer unix.Umask(unix.Umask(all))
	f()
}

var (
	locked = []error{unix.EAGAIN, unix.EACCES}
	// All programs share files here.
	notShared []error
	full      = []error{unix.ENOSPC, unix.EDQUOT}

	unsupported = []error{unix.EINVAL, unix.EPERM}
	denied      = []error{unix.EACCES}
	tooLong     = []error{unix.ENAMETOOLONG}
)

// retry repeats a call while signals interrupt it. On a network file system, a call that failed with EINTR may have
// taken effect. So a caller that creates, renames or removes names checks them after an error.
func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// retryValue is retry for calls with a result.
func retryValue[T any](call func() (T, error)) (out T, err error) {
	err = retry(func() error {
		out, err = call()
		return err
	})
	return out, err
}

// shut closes a descriptor once: Linux frees the descriptor even on an error. Spec: close(2), "Dealing with error
// returns from close()". It sets the descriptor to -1, because another file may reuse its number.
func shut(fd *int) error {
	n := *fd
	*fd = -1
	if err := unix.Close(n); !errors.Is(err, unix.EINTR) {
		return err
	}
	return nil
}
