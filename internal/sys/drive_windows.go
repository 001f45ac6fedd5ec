package sys

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Calls that Windows answers for a disk. Spec: winioctl.h (Microsoft).
const (
	getLength     = 0x7405c // IOCTL_DISK_GET_LENGTH_INFO
	getGeometry   = 0x700a0 // IOCTL_DISK_GET_DRIVE_GEOMETRY_EX
	getAttributes = 0x700f0 // IOCTL_DISK_GET_DISK_ATTRIBUTES

	removableMedia = 11 // of MEDIA_TYPE
	isOffline      = 1  // DISK_ATTRIBUTE_OFFLINE
)

// OpenDrive opens a disk to read it, and lets other programs do what they like.
func OpenDrive(path string) (*File, Drive, error) {
	name, _ := driveName(path)
	text, err := windows.UTF16PtrFromString(driveNames + name)
	if err != nil {
		return nil, Drive{}, err
	}
	file, err := windows.CreateFile(text, windows.GENERIC_READ, withAll, nil, windows.OPEN_EXISTING, 0, 0)
	switch {
	case Denied(err):
		return nil, Drive{}, fmt.Errorf("%w; only administrators can read disks: run trueup as one", err)
	case err != nil:
		return nil, Drive{}, err
	}
	f := Of(os.NewFile(uintptr(file), name))
	d, err := f.drive()
	if err != nil {
		return nil, Drive{}, errors.Join(err, f.Close())
	}
	d.Name = name
	return f, d, nil
}

// drive asks for what is known of a disk.
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
		_      [256]byte // what else is known, of any length
	}
	if err := f.ask(getGeometry, unsafe.Pointer(&geometry), unsafe.Sizeof(geometry)); err != nil {
		return d, fmt.Errorf("sector size of the disk: %w", err)
	}
	d.Sector, d.Fixed = int64(geometry.Sector), geometry.Media != removableMedia
	var attributes struct { // GET_DISK_ATTRIBUTES
		Version, _ uint32
		Attributes uint64
	}
	// A disk that does not answer counts as one that is in use.
	err = f.ask(getAttributes, unsafe.Pointer(&attributes), unsafe.Sizeof(attributes))
	d.Offline = err == nil && attributes.Attributes&isOffline != 0
	return d, nil
}

// ask makes a call that answers a struct.
func (f *File) ask(call uint32, answer unsafe.Pointer, size uintptr) error {
	var n uint32
	return windows.DeviceIoControl(f.handle(), call, nil, 0, (*byte)(answer), uint32(size), &n, nil)
}
