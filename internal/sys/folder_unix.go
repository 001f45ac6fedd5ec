//go:build linux || darwin || freebsd

package sys

import (
	"errors"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ReplacesOpen reports whether a file can get the name of one that is open.
const ReplacesOpen = true

// DeniesWriting reports whether a file that is open can keep other programs from writing it.
const DeniesWriting = false

// NamesAreBytes reports whether the name of a file can be other bytes than UTF-8.
const NamesAreBytes = true

// CheckName accepts all names.
func CheckName(string) error { return nil }

// Folder is an open folder. Names in it are looked up through its handle, so a folder that is renamed or replaced
// meanwhile cannot lead elsewhere.
type Folder struct{ fd int }

// aFolder opens a folder, or fails.
const aFolder = unix.O_RDONLY | unix.O_DIRECTORY

// quietly opens neither a link nor waits for the other side of a FIFO.
const quietly = unix.O_NOFOLLOW | unix.O_NONBLOCK

func openat(dir int, name string, flags int, perm fs.FileMode) (int, error) {
	return value(func() (int, error) { return unix.Openat(dir, name, flags|unix.O_CLOEXEC, uint32(perm.Perm())) })
}

// OpenFolder follows the links of a path.
func OpenFolder(path string) (*Folder, error) { return openFolder(unix.AT_FDCWD, path, aFolder) }

func openFolder(dir int, name string, flags int) (*Folder, error) {
	fd, err := openat(dir, name, flags, 0)
	if err != nil {
		return nil, err
	}
	return &Folder{fd}, nil
}

// Enter opens a folder in d, and follows no link.
func (d *Folder) Enter(name string) (*Folder, error) {
	return openFolder(d.fd, name, aFolder|unix.O_NOFOLLOW)
}

// Again opens the folder once more. Programs started from here do not get it.
func (d *Folder) Again() (*Folder, error) {
	fd, err := value(func() (int, error) { return unix.FcntlInt(uintptr(d.fd), unix.F_DUPFD_CLOEXEC, 0) })
	if err != nil {
		return nil, err
	}
	return &Folder{fd}, nil
}

// List opens the folder to read the names in it.
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

// Lstat returns the information on a name in the folder, and follows no link.
func (d *Folder) Lstat(name string) (Info, error) {
	return stat(func(st *unix.Stat_t) error { return unix.Fstatat(d.fd, name, st, unix.AT_SYMLINK_NOFOLLOW) })
}

// Open opens a file to read, without following a link and without waiting.
func (d *Folder) Open(name string) (*File, error) { return d.open(name, unix.O_RDONLY|quietly) }

// OpenHeld is Open: see DeniesWriting.
func (d *Folder) OpenHeld(name string) (*File, error) { return d.Open(name) }

// OpenToWrite is Open for a file that is there already and that is read and written.
func (d *Folder) OpenToWrite(name string) (*File, error) { return d.open(name, unix.O_RDWR|quietly) }

func (d *Folder) open(name string, flags int) (*File, error) {
	fd, err := openat(d.fd, name, flags, 0)
	if err != nil {
		return nil, err
	}
	return &File{fd}, nil
}

// Create makes a file under a name that must be free, to read and write it.
func (d *Folder) Create(name string, perm fs.FileMode) (*os.File, error) {
	fd, err := openat(d.fd, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, perm)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Link gives a file a second name, which must be free.
func (d *Folder) Link(from, to string) error {
	return again(func() error { return unix.Linkat(d.fd, from, d.fd, to, 0) })
}

// Rename gives a file another name, and replaces what has it.
func (d *Folder) Rename(from, to string) error {
	return again(func() error { return unix.Renameat(d.fd, from, d.fd, to) })
}

// RenameNew gives a file another name, which must be free.
func (d *Folder) RenameNew(from, to string) error {
	return again(func() error { return renameNew(d.fd, from, to) })
}

// Remove removes a name of a file.
func (d *Folder) Remove(name string) error {
	return again(func() error { return unix.Unlinkat(d.fd, name, 0) })
}

// brief returns a new file of a folder, which has a name for a moment only: that of no other process.
func brief(folder, name string) (*os.File, error) {
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
	return again(func() error { return flush(d.fd) })
}

// MayCreate returns why this user cannot make and remove files in the folder.
func (d *Folder) MayCreate() error {
	return again(func() error { return unix.Faccessat(d.fd, ".", unix.W_OK|unix.X_OK, 0) })
}
