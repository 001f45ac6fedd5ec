package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Share has a file take over n bytes of another one, whose blocks both then have until one of them is written to. Both
// lie on one file system, and the ranges are whole blocks of it. What cannot be shared is an error, after which the
// range holds its old bytes or those of the other file. Spec: ioctl_ficlonerange(2).
func (f *File) Share(from *File, off, n, at int64) error {
	r := unix.FileCloneRange{
		Src_fd: int64(from.fd), Src_offset: uint64(off), //nolint:gosec // positive, as those below
		Src_length: uint64(n), Dest_offset: uint64(at), //nolint:gosec // see above
	}
	return again(func() error { return unix.IoctlFileCloneRange(f.fd, &r) })
}

// SharesBlocks reports whether n bytes of two files of one file system lie in the same blocks, or are holes in both.
// What the file system does not say is false.
func (f *File) SharesBlocks(with *File, off, at, n int64) bool {
	for n > 0 {
		a, ok := f.block(off, n)
		b, okToo := with.block(at, n)
		if !ok || !okToo || a.place != b.place {
			return false
		}
		part := min(a.length, b.length)
		off, at, n = off+part, at+part, n-part
	}
	return true
}

// block is a stretch of a file and its place on the storage, in bytes; hole: it has none.
type block struct{ length, place int64 }

const hole = -1

// fiemap is the request for one extent with its answer. Spec: Documentation/filesystems/fiemap.rst of Linux,
// include/uapi/linux/fiemap.h.
type fiemap struct {
	Start, Length    uint64
	Flags            uint32
	Mapped, Count, _ uint32
	Extent           struct {
		Logical, Physical, Length uint64
		_                         [2]uint64
		Flags                     uint32
		_                         [3]uint32
	}
}

const (
	fsIocFiemap     = 0xc020660b // _IOWR('f', 11, struct fiemap), alike on all architectures
	extentUnwritten = 0x800      // reads as zeros
	// extentVague: the place is not known, not chosen yet, or not all that tells the bytes: FIEMAP_EXTENT_UNKNOWN,
	// DELALLOC, ENCODED, DATA_ENCRYPTED, NOT_ALIGNED, DATA_INLINE and DATA_TAIL.
	extentVague = 0x002 | 0x004 | 0x008 | 0x080 | 0x100 | 0x200 | 0x400
)

// block returns where the bytes from off on lie, at most n of them; false where that is not known.
func (f *File) block(off, n int64) (b block, ok bool) {
	m := fiemap{Start: uint64(off), Length: uint64(n), Count: 1} //nolint:gosec // positive
	err := f.ioctl(fsIocFiemap, unsafe.Pointer(&m))
	e := m.Extent
	start, length := int64(e.Logical), int64(e.Length) //nolint:gosec // of a file
	switch {
	case err != nil:
		return b, false
	case m.Mapped == 0:
		return block{n, hole}, true
	case start > off:
		return block{min(start-off, n), hole}, true
	case e.Flags&extentVague != 0 || start+length <= off:
		return b, false
	}
	b = block{min(start+length-off, n), int64(e.Physical) + off - start} //nolint:gosec // on a device
	if e.Flags&extentUnwritten != 0 {
		b.place = hole
	}
	return b, true
}
