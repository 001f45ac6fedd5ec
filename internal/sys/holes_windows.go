package sys

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/windows"
)

// span is a range of a file as calls about holes have it: FILE_ALLOCATED_RANGE_BUFFER with a length, and
// FILE_ZERO_DATA_INFORMATION with an end. Source: winioctl.h (Microsoft).
type span struct{ From, N int64 }

// control makes a call about holes, and returns the ranges that it fills in, at most one.
func (f *File) control(call uint32, about span) (out []span, err error) {
	var first span
	var n uint32
	const size = uint32(unsafe.Sizeof(span{}))
	err = windows.DeviceIoControl(f.handle(), call, (*byte)(unsafe.Pointer(&about)), size,
		(*byte)(unsafe.Pointer(&first)), size, &n, nil)
	if errors.Is(err, windows.ERROR_MORE_DATA) {
		err = nil // further ranges
	}
	if n == size {
		out = append(out, first)
	}
	return out, err
}

// Extent returns how many of limit bytes from off on have one state, and whether they are a hole. Where the file system
// does not know its holes everything is data, which is slow and right.
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

// showsHoles reports whether what is not allocated of a file reads as zeros. The data of files that are deduplicated,
// or that another program keeps, lie elsewhere: these are reparse points.
// Source: File Attribute Constants, FSCTL_QUERY_ALLOCATED_RANGES, Reparse Point Tags (Microsoft).
func showsHoles(attributes uint32) bool {
	const both = windows.FILE_ATTRIBUTE_SPARSE_FILE | windows.FILE_ATTRIBUTE_REPARSE_POINT
	return attributes&both == windows.FILE_ATTRIBUTE_SPARSE_FILE
}

// stateAt returns the state at off from the first range of data behind it, if there is one.
func stateAt(off, limit int64, data []span) (n int64, hole bool) {
	switch {
	case len(data) == 0 || data[0].From >= off+limit:
		return limit, true
	case data[0].From > off:
		return data[0].From - off, true
	}
	return max(1, min(limit, data[0].From+data[0].N-off)), false
}

// Sparse lets what is not written of a new file take no space. Where the file system cannot do so, it does.
func (f *File) Sparse() {
	var n uint32
	_ = windows.DeviceIoControl(f.handle(), windows.FSCTL_SET_SPARSE, nil, 0, nil, 0, &n, nil) // see above
}

// Punch has a range of a file read as zeros. In a file that is sparse it takes no space then. A file system that cannot
// do so has an error that Unsupported knows.
func (f *File) Punch(off, n int64) error {
	_, err := f.control(windows.FSCTL_SET_ZERO_DATA, span{off, off + n})
	return err
}
