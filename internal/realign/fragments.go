package realign

import (
	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/container"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/fragments/volumes"
)

// Fragments counts the files of the volumes of the disk, in how many pieces they lie, and what reading the worst of
// them costs the storage.
func (s *Source) Fragments(below align.Storage) ([]volumes.Volume, error) {
	if err := Broken(align.Relevant(s.Damage, nil)); err != nil {
		return nil, nil //nolint:nilerr // said already
	}
	var parts []volumes.Part
	if v := s.Layout.Volume; v != nil {
		parts = volumes.PartsOf(0, disk.Range{Len: s.Layout.Size}, v)
	}
	for _, p := range s.Layout.Partitions {
		if p.Volume != nil && align.HoldsVolume(p) {
			parts = append(parts, volumes.PartsOf(p.Number, p.Range, p.Volume)...)
		}
	}
	return volumes.Count(s.Image.Disk, parts, container.NewCost(s.Image.Disk, below.Block, below.Offset))
}
