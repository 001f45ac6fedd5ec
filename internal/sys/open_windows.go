package sys

import (
	"errors"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Another program that has a file open says what it shares with others, and is refused what those do not share with it.
// Source: Creating and Opening Files (Microsoft).
const (
	withAll     = windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE | windows.FILE_SHARE_DELETE
	withReaders = windows.FILE_SHARE_READ | windows.FILE_SHARE_DELETE
)

// DeniesWriting reports whether a file that is open can keep other programs from writing it.
const DeniesWriting = true

// opening is how a name in a folder is opened. Spec: NtCreateFile (Microsoft).
type opening struct {
	access uint32
	alone  bool // no other program writes the file until it is closed
	itself bool // a link is opened, not where it leads; otherwise it is an error
	isNew  bool
}

// open opens a plain name in the folder, or the folder itself.
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
	return Of(os.NewFile(uintptr(file), name)), nil
}

const reading, writing = windows.FILE_GENERIC_READ, windows.FILE_GENERIC_READ | windows.FILE_GENERIC_WRITE

// Open opens a file to read, and lets other programs do what they like. A link is followed: a caller that looked at the
// name before sees that it is another file.
func (d *Folder) Open(name string) (*File, error) { return asFile(d.root.Open(name)) }

// OpenHeld is Open that fails, as NotShared reports, if another program has the file open to write it. No program can
// open it to write it until it is closed.
func (d *Folder) OpenHeld(name string) (*File, error) {
	return d.open(name, opening{access: reading, alone: true})
}

// OpenToWrite opens a file that is there already, to read and write it. It fails, as NotShared reports, if another
// program has it open to write it, and no program can do so until it is closed.
func (d *Folder) OpenToWrite(name string) (*File, error) {
	return d.open(name, opening{access: writing, alone: true})
}

// Create makes a file under a name that must be free, to read and write it. No other program can write it until it is
// closed.
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
	return Of(f), nil
}

// Stat returns the information on a name in the folder, and follows links that stay in it.
func (d *Folder) Stat(name string) (Info, error) {
	i, err := asked(d.open(name, opening{}))
	if errors.Is(err, ErrLoop) {
		i, err = asked(d.Open(name))
	}
	return i, err
}

// Lstat returns the information on a name in the folder, and follows no link.
func (d *Folder) Lstat(name string) (Info, error) {
	i, err := asked(d.open(name, opening{itself: true}))
	if m := i.Mode; err == nil && (m.IsRegular() || m.IsDir()) {
		return asked(d.open(name, opening{})) // past what keeps the data of a file elsewhere
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

// Stat follows links. A program that shares a file with no other does not keep it from that.
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
	return asked(Of(os.NewFile(uintptr(file), path)), nil)
}

// Lstat returns the information on a link itself.
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
