package realign

import (
	"context"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/image/unpack"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
)

// ByHead returns the note on a disk of which only the head was read.
func ByHead() ondisk.Issue {
	return ondisk.Issue{
		Code: "head", Effect: ondisk.Note,
		Text: "it is packed, and was judged by the first bytes that it unpacks to: volumes, how it boots, and " +
			"whether a copy can be made, are not known",
	}
}

// Head opens a packed image, and reads of it where its partitions start, as far as the first bytes show that. Nothing
// of it is unpacked but these, into memory. It has a layout only; no plan can be made of it. The caller closes the
// image.
func Head(ctx context.Context, path string, o image.Options) (*Source, error) {
	img, err := unpack.Open(ctx, path, o, unpack.Way{Head: true})
	if err != nil {
		return nil, err
	}
	s := &Source{Image: img}
	if s.Layout, err = layout.Head(img.Disk, s.geometry(), unpack.ErrBeyond); err != nil {
		img.Close()
		return nil, err
	}
	if !s.Guessed() {
		s.Layout.Size = img.Disk.Size()
	}
	if img.Unpacked.Size >= unpack.Unsaid {
		img.Unpacked.Size = 0
	}
	return s, nil
}

// Guessed reports whether format and size of a disk are not known: it seems to be raw, and the end of its file, which
// may have the footer of a VHD, was not unpacked.
func (s *Source) Guessed() bool { return s.Image.Format == raw.Format.Name && s.Image.Unpacked.Partly }
