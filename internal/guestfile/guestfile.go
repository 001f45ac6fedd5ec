// Package guestfile finds files in the file systems of a guest, and where their bytes lie in the volume. It exists to rewrite a few
// bytes of a file in place, so what it says about places must be exact; what it cannot be exact about it refuses.
package guestfile

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
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
	// Open finds a regular file: fs.ErrNotExist if absent, ErrUnsupported when its bytes cannot be told (compressed,
	// encrypted), ErrFormat when its structures are broken, ErrLimit when they are larger than anybody needs.
	Open(path string) (*File, error)
	// List gives the names of a folder, in the order of the folder; fs.ErrNotExist if absent.
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

// End is the first byte of the file behind the run.
func (r Run) End() int64 { return r.Off + r.Len }

// File is a regular file of a guest, as a disk: its runs lie in the volume, and what none covers reads as zeros.
type File struct {
	disk.Mapped
	Path string // with the names as they are stored

	// fixed is why bytes cannot be rewritten in place although they can be read: they stand under a checksum. Nil: they can.
	fixed error
}

// newFile holds a file to what File promises. Runs must be sorted; they may go on behind size, as clusters do.
func newFile(volume ondisk.Source, path string, size int64, runs []Run) (*File, error) {
	var pieces []disk.Piece
	end := int64(0)
	for _, r := range runs {
		if r.Off < end || r.Len <= 0 || r.At < 0 || r.At > volume.Size() || r.Len > volume.Size()-r.At {
			return nil, &ondisk.FormatError{
				What: fmt.Sprintf("file %.256q", path), Off: r.At, Field: "run",
				Got:  fmt.Sprintf("%d bytes for byte %d of the file", r.Len, r.Off),
				Want: fmt.Sprintf("a place within the %d bytes of the volume", volume.Size()),
			}
		}
		end = r.End()
		if r.Len = min(r.Len, size-r.Off); r.Len <= 0 {
			continue
		}
		if k := len(pieces) - 1; k >= 0 && pieces[k].End() == r.Off && pieces[k].At+pieces[k].Len == r.At {
			pieces[k].Len += r.Len
			continue
		}
		if len(pieces) == maxRuns {
			return nil, fmt.Errorf("file %.256q: %w of %d runs", path, ondisk.ErrLimit, maxRuns)
		}
		pieces = append(pieces, disk.Piece{Range: disk.Range{Off: r.Off, Len: r.Len}, Src: volume, At: r.At})
	}
	return &File{Mapped: disk.New(size, units.SectorSize, disk.Pieces(size, pieces, nil)), Path: path}, nil
}

// errHole marks bytes of a file that no cluster holds.
var errHole = errors.New("hole")

// Where gives the places of bytes [off, off+n) in the volume, in order; more than one when the file is fragmented there. Only bytes that
// can be rewritten in place have places.
func (f *File) Where(off, n int64) ([]disk.Range, error) {
	if off < 0 || n <= 0 || off > f.Size() || n > f.Size()-off {
		return nil, fmt.Errorf("file %.256q: bytes %d to %d: %w: the file has %d", f.Path, off, off+n-1, fs.ErrInvalid, f.Size())
	}
	if f.fixed != nil {
		return nil, fmt.Errorf("file %.256q: %w", f.Path, f.fixed)
	}
	var out []disk.Range
	for n > 0 {
		run, err := f.Run(off)
		if err != nil {
			return nil, err
		}
		if run.Src == nil {
			return nil, fmt.Errorf("file %.256q: byte %d lies in a %w: %w", f.Path, off, errHole, ondisk.ErrUnsupported)
		}
		part := min(n, run.Len)
		out = append(out, disk.Range{Off: run.Off, Len: part})
		off, n = off+part, n-part
	}
	return out, nil
}
