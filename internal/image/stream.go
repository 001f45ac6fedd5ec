package image

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Stream is an image that comes through a pipe.
type Stream struct {
	// Image is what Create needs of a source. Its disk has the right size and cannot be read.
	*Image
	// Next gives the stored pieces of the disk, see driver.Stream.
	Next func() (off int64, p []byte, err error)
}

// OpenStream reads the start of an image that comes through a pipe. want is the format that it must have, empty for
// any.
func OpenStream(r io.Reader, want string) (*Stream, error) {
	b := bufio.NewReaderSize(r, headSize)
	head, err := b.Peek(headSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	i := slices.IndexFunc(Formats, func(f driver.Format) bool { return f.Stream != nil && f.Detect(head, nil) })
	switch {
	case i < 0:
		return nil, fmt.Errorf("the image is %w from a pipe, want a streamOptimized VMDK; write it to a file first",
			ondisk.ErrUnsupported)
	case want != "" && !strings.EqualFold(want, Formats[i].Name):
		return nil, ondisk.Field("image", "format", 0, Formats[i].Name, want+", as --format says")
	}
	s, err := Formats[i].Stream(b)
	if err != nil {
		return nil, err
	}
	s.Disk = disk.New(s.Size, 512, func(int64) (disk.Run, error) { return disk.Run{}, errOnce })
	return &Stream{Image: &Image{Image: &s.Image, Path: "-", Format: Formats[i].Name}, Next: s.Next}, nil
}

var errOnce = errors.New("a pipe cannot be read at an offset")

// beyond returns the error of reading the end of a file of which only the first bytes were unpacked, nil of others.
func beyond(f driver.File) error {
	if h, ok := f.(interface{ Beyond() error }); ok {
		return h.Beyond()
	}
	return nil
}

// maxPieces is how many bytes of a disk are kept that is read by the head of its image.
const maxPieces = 32 << 20

// openHead opens an image front to back, as far as its file can be read: its tables lie behind that. Reading what did
// not come gives the error that ended it.
func openHead(f driver.File, format driver.Format) (*driver.Image, error) {
	s, err := format.Stream(io.NewSectionReader(f, 0, f.Size()))
	if err != nil {
		return nil, err
	}
	var pieces []disk.Piece
	kept, end := 0, int64(0)
	for err == nil {
		var off int64
		var p []byte
		off, p, err = s.Next()
		switch {
		case errors.Is(err, io.EOF):
			end = s.Size
		case err == nil && kept+len(p) > maxPieces:
			err = beyond(f)
		case err == nil:
			pieces = append(pieces, disk.Piece{
				Range: disk.Range{Off: off, Len: int64(len(p))}, Src: bytes.NewReader(slices.Clone(p)),
			})
			kept, end = kept+len(p), off+int64(len(p))
		}
	}
	s.Disk = disk.New(s.Size, units.SectorSize, disk.Pieces(s.Size, pieces, func(off int64) (disk.Run, error) {
		if off < end {
			return disk.Run{Len: end - off}, nil
		}
		return disk.Run{}, err
	}))
	return &s.Image, nil
}

// markText begins the first sector of a device to which a copy is being written, or was when its run ended.
const markText = "trueup: unfinished copy\n" +
	"A copy of a disk was being written to this device and did not come to its end.\n" +
	"What stood here before is gone. Run the same trueup command again.\n"

// Mark returns the first sector of a device with an unfinished copy. It has the signature of no table and no volume.
func Mark(sector int64) []byte {
	b := make([]byte, sector)
	copy(b, markText)
	return b
}

// Marked reports whether a disk begins with the mark of an unfinished copy.
func (img *Image) Marked() (bool, error) {
	b := make([]byte, len(markText))
	if img.Disk.Size() < int64(len(b)) {
		return false, nil
	}
	if err := ondisk.ReadFull(img.Disk, b, 0); err != nil {
		return false, err
	}
	return string(b) == markText, nil
}

// noteMark keeps a device with an unfinished copy from being taken for a disk.
func (img *Image) noteMark() error {
	marked, err := img.Marked()
	if !marked {
		return err
	}
	text := "it holds an unfinished copy, which trueup was writing to it when that run ended"
	remedy := "run the command that was writing it once more; what stood on it before is gone"
	img.Issues = append(img.Issues, ondisk.Issue{
		Code: "unfinished", Effect: ondisk.Refuse, Text: text, Remedy: remedy,
		Err: &ondisk.Refusal{Code: "unfinished", Reason: text, Remedy: remedy},
	})
	return nil
}
