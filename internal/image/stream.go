package image

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
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
