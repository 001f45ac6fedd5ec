package disktest

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// Slowest limits the processor time for one image of a fuzzer, see Spent.
const Slowest = 5 * time.Second

// MemFile is an image file in memory: bytes at some offsets, with holes around them.
type MemFile struct {
	disk.Disk
	name string
}

// NewMemFile returns a file of size bytes that begins with data and has a hole after it.
func NewMemFile(name string, data []byte, size int64) *MemFile {
	return NewMemPieces(name, size, MemPiece{0, data})
}

// MemPiece is bytes at an offset of a MemFile.
type MemPiece struct {
	At   int64
	Data []byte
}

// NewMemPieces returns a file of size bytes with pieces in it. They are sorted, and do not overlap.
func NewMemPieces(name string, size int64, pieces ...MemPiece) *MemFile {
	var all []disk.Piece
	for _, p := range pieces {
		if n := min(int64(len(p.Data)), size-p.At); n > 0 {
			all = append(all, disk.Piece{Range: disk.Range{Off: p.At, Len: n}, Src: bytes.NewReader(p.Data)})
		}
	}
	return &MemFile{disk.New(size, 512, disk.Pieces(size, all, nil)), name}
}

// Name returns the name.
func (f *MemFile) Name() string { return f.name }

// ID returns the name, which is unique in a test.
func (f *MemFile) ID() string { return f.name }

// RequireClass requires an error of a class with an exit code. An image in memory returns no others.
func RequireClass(t *testing.T, err error) {
	t.Helper()
	for _, class := range []error{ondisk.ErrFormat, ondisk.ErrLimit, ondisk.ErrUnsupported, ondisk.ErrReference} {
		if errors.Is(err, class) {
			return
		}
	}
	_, refused := errors.AsType[*ondisk.Refusal](err)
	require.True(t, refused, "%v", err)
}

// ReadSome reads both ends of a disk and ranges in between, and walks over its extents. Errors go to class.
func ReadSome(t *testing.T, d disk.Disk, class func(*testing.T, error)) {
	t.Helper()
	buf := make([]byte, 64<<10)
	for i := range int64(16) {
		if _, err := d.ReadAt(buf, d.Size()/16*i); err != nil && !errors.Is(err, io.EOF) {
			class(t, err)
		}
	}
	off := int64(0)
	for range 1000 {
		if off == d.Size() {
			return
		}
		e, err := d.Extent(off, d.Size()-off)
		if err != nil {
			class(t, err)
			return
		}
		require.Equal(t, off, e.Off)
		require.Positive(t, e.Len)
		require.LessOrEqual(t, e.End(), d.Size())
		off = e.End()
	}
}

// ReadSound reads the first 16 MiB of a disk unless a check of its tables found it broken, and reports whether it did.
// Errors go to class: sound tables lead to readable places.
func ReadSound(t *testing.T, d disk.Disk, issues []ondisk.Issue, class func(*testing.T, error)) bool {
	t.Helper()
	if slices.ContainsFunc(issues, func(i ondisk.Issue) bool { return i.Effect == ondisk.Broken }) {
		return false
	}
	buf := make([]byte, 1<<20)
	for off := int64(0); off < min(d.Size(), 16<<20); off += int64(len(buf)) {
		if err := ondisk.ReadFull(d, buf[:min(int64(len(buf)), d.Size()-off)], off); err != nil {
			class(t, err)
		}
	}
	return true
}

// Codes returns the codes of issues.
func Codes(issues []ondisk.Issue) (out []string) {
	for _, i := range issues {
		out = append(out, i.Code)
	}
	return out
}

// NoError is the class of no errors.
func NoError(t *testing.T, err error) {
	t.Helper()
	require.NoError(t, err)
}
