// Package driver says what an image format must provide.
package driver

import (
	"io"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// File is an open file of an image, read-only. Extent tells its holes.
type File interface {
	io.ReaderAt
	Size() int64
	Name() string // base name
	ID() string   // device and inode: two names of one file share it
	Extent(off, max int64) (disk.Extent, error)
}

// Source is the file that the user named, and the only way to the files beside it.
type Source struct {
	File File
	// Open is the gate: a regular file in the same folder, by its plain name, never a link.
	Open func(name string) (File, error)
}

// Format is one image format.
type Format struct {
	Name   string
	Detect func(head, tail []byte) bool // nil for raw, which is what remains
	Open   func(s *Source) (*Image, error)
	// Create starts an image of size bytes in f. It writes nothing that Detect would know before Target.Finish.
	Create func(f WriteFile, size int64, o Options) (Target, error)
	// Subformats that Create takes; the first is the default.
	Subformats []string
}

// Image is an opened image.
type Image struct {
	Disk      disk.Disk
	Subformat string
	Parts     []File   // files beside the one that was named, in disk order
	Details   []Detail // what the container says of itself, for inspect
	Issues    []ondisk.Issue
	// Check walks the allocation tables for damage that a reader meets only when it comes by. Nil when there is nothing to
	// walk.
	Check func() ([]ondisk.Issue, error)
	// Template is what Create of the same format needs to make its like: a VMDK descriptor, …
	Template any
	// Heads and Sectors are the geometry that the container states, 0 when it states none.
	Heads, Sectors int
	// ContentID is what a snapshot child would name as its parent, empty when the format has none.
	ContentID string
}

// Detail is one line of what a container says of itself.
type Detail struct{ Name, Value string }

// WriteFile is a file being written. *os.File is one.
type WriteFile interface {
	io.WriterAt
	Truncate(size int64) error
	Sync() error
}

// Options of Create. The zero value makes the format's default.
type Options struct {
	Subformat string
	Template  any    // of the source when it has the same format
	Name      string // final base name of the image
	// Seed is what identifiers are derived from, so that the same job gives the same bytes.
	Seed []byte
	// Beside creates the second file of the image, for its data, and gives the name under which it will be found.
	Beside func() (WriteFile, string, error)
}

// Target takes the bytes of a new image. WriteAt is safe for concurrent use on disjoint ranges; bytes that are never
// written read as zero.
type Target interface {
	io.WriterAt
	// Unit is the granularity in bytes at which space is allocated. WriteAt takes whole units, or the tail of the disk.
	Unit() int64
	// Reserve places a range before it is written. Calls come in ascending order and one at a time, which makes the layout of
	// the file independent of the speed of workers.
	Reserve(off, n int64) error
	// Finish writes what makes the file an image and syncs it.
	Finish() error
}
