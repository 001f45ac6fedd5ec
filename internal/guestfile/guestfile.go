// Package guestfile finds files in the file systems of a guest, and where their bytes lie in the volume. It exists to rewrite a few
// bytes of a file in place, so what it says of places must be exact; what it cannot be exact about it refuses.
package guestfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// Limits of what is read. Beyond them a reader says ErrLimit.
const (
	maxRuns    = 1 << 16 // stretches of one file
	maxDepth   = 64      // folders in a path, and steps that a walk may nest
	maxEntries = 1 << 16 // names of one folder
	maxLinks   = 8       // symbolic links on one path
)

// FS is a file system of a guest. A path has its elements parted by "/" and none in front; "" is the root. Names compare as in the
// guest: without regard to case in NTFS and FAT. An FS is not safe for concurrent use.
type FS interface {
	// Open finds a regular file: fs.ErrNotExist when there is none, ErrUnsupported when its bytes cannot be told (compressed,
	// encrypted), ErrFormat when its structures are broken, ErrLimit when they are larger than anybody needs.
	Open(path string) (*File, error)
	// List gives the names of a folder, in the order of the folder; fs.ErrNotExist when there is none.
	List(path string) ([]Entry, error)
}

// Entry is a name in a folder.
type Entry struct {
	Name string
	Dir  bool
}

// Run is a stretch of a file that lies in one piece in the volume. Bytes.
type Run struct {
	Off int64 // in the file
	Len int64
	At  int64 // in the volume
}

// File is a regular file of a guest. What no run covers reads as zeros.
type File struct {
	Path string // with the names as they are stored

	volume ondisk.Source
	size   int64
	runs   []Run // by Off, disjoint, inside of file and volume
	// fixed tells why bytes cannot be rewritten in place although they can be read: they stand under a checksum. Nil: they can.
	fixed error
}

// newFile holds a file to what File promises. Runs must be sorted; they may go on behind size, as clusters do.
func newFile(volume ondisk.Source, path string, size int64, runs []Run) (*File, error) {
	f := &File{Path: path, volume: volume, size: size}
	end := int64(0)
	for _, r := range runs {
		if r.Off < end || r.Len <= 0 || r.At < 0 || r.At > volume.Size() || r.Len > volume.Size()-r.At {
			return nil, &ondisk.FormatError{
				What: fmt.Sprintf("file %.256q", path), Off: r.At, Field: "run", Got: fmt.Sprintf("%d bytes for byte %d of the file", r.Len, r.Off),
				Want: fmt.Sprintf("a place within the %d bytes of the volume", volume.Size()),
			}
		}
		end = r.Off + r.Len
		if r.Len = min(r.Len, size-r.Off); r.Len <= 0 {
			continue
		}
		if k := len(f.runs) - 1; k >= 0 && f.runs[k].Off+f.runs[k].Len == r.Off && f.runs[k].At+f.runs[k].Len == r.At {
			f.runs[k].Len += r.Len
			continue
		}
		if len(f.runs) == maxRuns {
			return nil, fmt.Errorf("file %.256q: %w of %d runs", path, ondisk.ErrLimit, maxRuns)
		}
		f.runs = append(f.runs, r)
	}
	return f, nil
}

// Size is the length of the file in bytes.
func (f *File) Size() int64 { return f.size }

// next is the index of the first run that ends behind off.
func (f *File) next(off int64) int {
	i, _ := slices.BinarySearchFunc(f.runs, off, func(r Run, off int64) int {
		if r.Off+r.Len <= off {
			return -1
		}
		return 1
	})
	return i
}

// ReadAt follows the contract of io.ReaderAt.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("file %.256q at byte %d: %w", f.Path, off, fs.ErrInvalid)
	}
	n := int(min(int64(len(p)), max(f.size-off, 0)))
	done := 0
	for i := f.next(off); done < n; i++ {
		at, part := off+int64(done), p[done:n]
		if i == len(f.runs) {
			clear(part)
			break
		}
		r := f.runs[i]
		if gap := r.Off - at; gap > 0 { // a hole
			hole := part[:min(gap, int64(len(part)))]
			clear(hole)
			done += len(hole)
			at, part = at+int64(len(hole)), part[len(hole):]
		}
		if len(part) == 0 {
			break
		}
		part = part[:min(int64(len(part)), r.Off+r.Len-at)]
		if err := ondisk.ReadFull(f.volume, part, r.At+at-r.Off); err != nil {
			return done, err
		}
		done += len(part)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// errHole marks bytes of a file that no cluster holds.
var errHole = errors.New("hole")

// Where gives the places of bytes [off, off+n) in the volume, in order; more than one when the file is fragmented there. Only bytes that
// can be rewritten in place have places.
func (f *File) Where(off, n int64) ([]disk.Range, error) {
	if off < 0 || n <= 0 || off > f.size || n > f.size-off {
		return nil, fmt.Errorf("file %.256q: bytes %d to %d: %w: the file has %d", f.Path, off, off+n-1, fs.ErrInvalid, f.size)
	}
	if f.fixed != nil {
		return nil, fmt.Errorf("file %.256q: %w", f.Path, f.fixed)
	}
	var out []disk.Range
	for i := f.next(off); n > 0; i++ {
		if i == len(f.runs) || f.runs[i].Off > off {
			return nil, fmt.Errorf("file %.256q: byte %d lies in a %w: %w", f.Path, off, errHole, ondisk.ErrUnsupported)
		}
		r := f.runs[i]
		part := min(n, r.Off+r.Len-off)
		out = append(out, disk.Range{Off: r.At + off - r.Off, Len: part})
		off, n = off+part, n-part
	}
	return out, nil
}
