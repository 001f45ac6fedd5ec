// Package guestfile defines the interface of the guest file system readers: file systems, files and read limits. It
// exists to rewrite a few bytes of a file in place, so places must be exact. A reader returns an error if it cannot
// locate bytes exactly.
package guestfile

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Read limits. Beyond them a reader returns ErrLimit.
const (
	MaxRuns    = 1 << 16 // of one file
	MaxDepth   = 64      // folders in a path, and nested steps of a walk
	MaxEntries = 1 << 16 // names of one folder
)

// FS is a file system of a guest. "/" separates the elements of a path and never begins it; "" is the root. Names
// compare as in the guest: case-insensitively in NTFS and FAT. An FS is not safe for concurrent use.
type FS interface {
	// Open finds a regular file. Its error is fs.ErrNotExist if the file is absent, ErrUnsupported if its bytes cannot
	// be read (compressed, encrypted), ErrFormat if its structures are broken, and ErrLimit if they are too large.
	Open(path string) (*File, error)
	// List returns the names of a folder in stored order. Its error is fs.ErrNotExist if the folder is absent.
	List(path string) ([]Entry, error)
}

// Entry is a name in a folder.
type Entry struct {
	Name string
	Dir  bool
}

// Run is a part of a file that is contiguous in the volume, in bytes.
type Run struct {
	Off int64 // in the file
	Len int64
	At  int64 // in the volume
}

// End returns the offset of the first byte of the file after the run.
func (r Run) End() int64 { return r.Off + r.Len }

// File is a regular file of a guest, as a disk. Its runs lie in the volume, and gaps between runs read as zeros.
type File struct {
	disk.Mapped
	Path string // with stored names

	// Fixed is the reason why bytes are readable, but not rewritable in place: a checksum covers them. It is nil if
	// they are rewritable.
	Fixed error
}

// NewFile returns a file, or an error if runs overlap or leave the volume. Runs must be sorted. Like clusters, they may
// extend past size.
func NewFile(volume ondisk.Source, path string, size int64, runs []Run) (*File, error) {
	var pieces []disk.Piece
	end := int64(0)
	for _, r := range runs {
		if r.Off < end || r.Len <= 0 || r.At < 0 || r.At > volume.Size() || r.Len > volume.Size()-r.At {
			return nil, ondisk.Field(fmt.Sprintf("file %.256q", path), "run", r.At,
				fmt.Sprintf("%d bytes for byte %d of the file", r.Len, r.Off),
				fmt.Sprintf("a place within the %d bytes of the volume", volume.Size()))
		}
		end = r.End()
		if r.Len = min(r.Len, size-r.Off); r.Len <= 0 {
			continue
		}
		if k := len(pieces) - 1; k >= 0 && pieces[k].End() == r.Off && pieces[k].At+pieces[k].Len == r.At {
			pieces[k].Len += r.Len
			continue
		}
		if len(pieces) == MaxRuns {
			return nil, fmt.Errorf("file %.256q: %w of %d runs", path, ondisk.ErrLimit, MaxRuns)
		}
		pieces = append(pieces, disk.Piece{Range: disk.Range{Off: r.Off, Len: r.Len}, Src: volume, At: r.At})
	}
	return &File{Mapped: disk.New(size, units.SectorSize, disk.Pieces(size, pieces, nil)), Path: path}, nil
}

// ErrHole marks bytes of a file without a cluster.
var ErrHole = errors.New("hole")

// Where returns the ranges of bytes [off, off+n) in the volume, in order. A fragmented file has several. Only bytes
// that can be rewritten in place have ranges.
func (f *File) Where(off, n int64) ([]disk.Range, error) {
	if off < 0 || n <= 0 || off > f.Size() || n > f.Size()-off {
		return nil, fmt.Errorf("file %.256q: bytes %d to %d: %w: the file has %d", f.Path, off, off+n-1,
			fs.ErrInvalid, f.Size())
	}
	if f.Fixed != nil {
		return nil, fmt.Errorf("file %.256q: %w", f.Path, f.Fixed)
	}
	var out []disk.Range
	for n > 0 {
		run, err := f.Run(off)
		if err != nil {
			return nil, err
		}
		if run.Src == nil {
			return nil, fmt.Errorf("file %.256q: byte %d lies in a %w: %w", f.Path, off, ErrHole, ondisk.ErrUnsupported)
		}
		part := min(n, run.Len)
		out = append(out, disk.Range{Off: run.Off, Len: part})
		off, n = off+part, n-part
	}
	return out, nil
}

// Limits for the structures of all file systems of a disk together. Finding the boot files costs a few MiB in each. A
// malicious image that reaches the limit has cost about a second.
const (
	budget     = 512 << 20 // bytes read or searched
	budgetRuns = 1 << 17   // runs of the tables held in memory
	budgetPage = 4 << 20   // bytes of the cache

	budgetJournals = 1 << 30 // bytes of journals read: mke2fs makes no longer one
)

// RunCost is the cost of a run of a file, which includes sorting it.
const RunCost = 128

// Budget counts the cost of the file systems of a disk. File systems with the same budget also share a cache.
type Budget struct {
	Work, Runs *ondisk.Budget
	Journals   *ondisk.Budget // separate from Work, since journals of busy servers are long
	cache      *ondisk.PageCache
}

// NewBudget returns the budget of a disk.
func NewBudget() *Budget {
	return &Budget{
		Work: &ondisk.Budget{What: "structures of the file systems", Unit: "bytes in all", Limit: budget},
		Runs: &ondisk.Budget{What: "tables of the file systems", Unit: "runs in all", Limit: budgetRuns},

		Journals: &ondisk.Budget{What: "journals of the file systems", Unit: "bytes in all", Limit: budgetJournals},
		cache:    ondisk.NewPageCache(budgetPage),
	}
}

// Meter returns a volume whose reads count against the budget.
func (b *Budget) Meter(volume disk.Disk) Metered {
	m := &ondisk.Metered{Source: volume, Budget: b.Work}
	return Metered{m, b.cache.Of(m)}
}

// Metered is a volume whose reads count against a budget.
type Metered struct {
	*ondisk.Metered
	Pages *ondisk.Pages
}

// Elements splits a path into its elements. "" is the root, which has no elements.
func Elements(path string) []string {
	if path == "" {
		return nil
	}
	return strings.Split(path, "/")
}
