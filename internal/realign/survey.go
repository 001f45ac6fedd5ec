package realign

import (
	"context"
	"slices"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/layout"
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
