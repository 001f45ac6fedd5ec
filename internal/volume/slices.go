package volume

import (
	"errors"
	"slices"

	"github.com/trueup/trueup/internal/ondisk"
)

func isNoMatch(err error) bool { return errors.Is(err, ondisk.ErrNoMatch) }

// Sliced tells whether a kind is a table inside of a partition.
func (k Kind) Sliced() bool { return k == Disklabel || k == VTOC }

// inSlices are what the first slice can hold. Where that begins at the start of the partition, so does its content, and both are
// found; anything else beside a label means that one of the two is stale.
var inSlices = []Kind{UFS1, UFS2, ZFS, Swap}

// withoutSlices leaves out what lies in the slices of a label that was found too.
func withoutSlices(found []*Volume) []*Volume {
	i := slices.IndexFunc(found, func(v *Volume) bool { return v.Kind.Sliced() && len(v.Parts) > 0 })
	if i < 0 {
		return found
	}
	label := found[i]
	atStart := label.OnDisk || slices.ContainsFunc(label.Parts, func(p Part) bool { return p.Start == 0 })
	return slices.DeleteFunc(found, func(v *Volume) bool { return atStart && slices.Contains(inSlices, v.Kind) })
}
