package unpack

import (
	"errors"
	"fmt"
	"io"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// glance is how much of each file of a zip archive is unpacked to find out which of them are images, in bytes.
const glance = 64 * units.KiB

// head returns a file of an archive for a look at its first bytes.
func (b *box) head(f *file) (*open, error) {
	if f.zip == nil {
		return b.opened(part{b.base, f.at}, f.name), nil
	}
	h := &head{size: f.zip.Size}
	r, err := f.zip.Open(b.file)
	if err == nil {
		h.known, err = io.ReadAll(io.LimitReader(r, glance))
	}
	if err != nil && (!isFileError(err) || errors.Is(err, ondisk.ErrLimit)) {
		return nil, err // a limit for one holds for all
	}
	return b.opened(h, f.name), nil
}

// HeadSize is how much is unpacked of an image that is judged by its head, in bytes.
const HeadSize = 32 * units.MiB

// ErrBeyond is the error of reading what lies behind a head.
var ErrBeyond = fmt.Errorf("it lies behind the first %s, and no more is unpacked: %w", units.Format(HeadSize),
	ondisk.ErrLimit)

// Unsaid is the size of a file that does not say how much it unpacks to.
const Unsaid = 1 << 60

// firstPiece is the memory that a small image takes, in bytes. With HeadSize for each, a worker whose collector gets no
// processor on a busy machine comes to its limit of memory.
const firstPiece = units.MiB

// unpackHead unpacks the first bytes. stated is how many there should be of all, -1 for unknown.
func unpackHead(r io.Reader, stated int64) (content, error) {
	h := &head{known: make([]byte, firstPiece), strict: true}
	n, err := io.ReadFull(r, h.known)
	if err == nil {
		h.known = append(make([]byte, 0, HeadSize), h.known...)[:HeadSize]
		var more int
		more, err = io.ReadFull(r, h.known[n:])
		n += more
	}
	h.known = h.known[:n]
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		h.size = int64(n)
	case err != nil:
		return nil, err
	case stated < int64(n):
		h.size = Unsaid
	default:
		h.size = stated
	}
	return h, nil
}

// head is a file of which only the first bytes were unpacked. Without strict, the others read as zeros: what a file is
// shows at its start, or it is what its name says.
type head struct {
	known  []byte
	size   int64
	strict bool
}

// ReadAt follows the contract of io.ReaderAt.
func (h *head) ReadAt(p []byte, off int64) (int, error) {
	end := off + int64(len(p))
	if h.strict && end > int64(len(h.known)) && off < h.size {
		return 0, ErrBeyond
	}
	n := min(int64(len(p)), max(0, h.size-off))
	clear(p)
	if off < int64(len(h.known)) {
		copy(p[:n], h.known[off:])
	}
	if n < int64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

// Size returns the size of the whole file.
func (h *head) Size() int64 { return h.size }

// Extent knows no holes.
func (h *head) Extent(off, limit int64) (disk.Extent, error) {
	return disk.Extent{Range: disk.Range{Off: off, Len: limit}}, nil
}

// isFileError reports whether an error is one of what a file holds, which opening it will say.
func isFileError(err error) bool {
	return errors.Is(err, ondisk.ErrFormat) || errors.Is(err, ondisk.ErrUnsupported) || errors.Is(err, ondisk.ErrLimit)
}
