package realign

import (
	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/freespace"
)

// Fragments counts the files of the volumes of the disk, in how many pieces they lie, and what reading the worst of
// them costs the storage.
func (s *Source) Fragments(below align.Storage) ([]freespace.FragmentsOf, error) {
	if err := Broken(align.Relevant(s.Damage, nil)); err != nil {
		return nil, nil //nolint:nilerr // said already
	}
	var parts []freespace.Part
	if v := s.Layout.Volume; v != nil {
		parts = freespace.PartsOf(0, disk.Range{Len: s.Layout.Size}, v)
	}
	for _, p := range s.Layout.Partitions {
		if p.Volume != nil && align.HoldsVolume(p) {
			parts = append(parts, freespace.PartsOf(p.Number, p.Range, p.Volume)...)
		}
	}
	return freespace.Count(s.Image.Disk, parts, align.NewCost(s.Image.Disk, below.Block, below.Offset))
}
