package realign

import (
	"context"
	"slices"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/image/unpack"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
)

// Survey reads of an image only what shows where its partitions start, some dozens of KiB. Layout is nil with an error.
func Survey(img *image.Image) (*Source, error) {
	s := &Source{Image: img, Damage: slices.Clone(img.Issues)}
	err := s.open()
	if err != nil {
		return s, err
	}
	if s.Layout, err = layout.Survey(img.Disk, s.geometry()); err != nil {
		return s, err
	}
	s.countSectors()
	return s, s.lookForHidden()
}

// lookForHidden finds data that read as zeros, on a disk where nothing else would be judged: only a VHD can hide some.
func (s *Source) lookForHidden() error {
	if s.Image.Format != "vhd" || s.Image.Check == nil || align.ContentOf(s.Layout) == "" {
		return nil
	}
	found, err := s.Image.Check()
	s.Damage = append(s.Damage, found...)
	s.hidesData()
	return err
}

// Complete reads what Survey left out. With all, it looks at the map of the image too, as inspect does.
func (s *Source) Complete(ctx context.Context, all bool) error {
	err := s.read()
	if err == nil && all {
		err = s.checkMap(ctx)
	}
	return err
}

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
