package sys

import (
	"errors"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

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
