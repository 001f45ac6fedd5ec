package volume

import (
	"errors"
	"slices"

	"github.com/trueup/trueup/internal/ondisk"
)

func isNoMatch(err error) bool { return errors.Is(err, ondisk.ErrNoMatch) }

// withoutHidden leaves out what is a part of another volume that was found.
func withoutHidden(found []*Volume) []*Volume {
	var hidden []Kind
	for _, v := range found {
		hidden = append(hidden, v.Kind.Traits().Hides)
	}
	return slices.DeleteFunc(found, func(v *Volume) bool { return slices.Contains(hidden, v.Kind) })
}

// withoutSlices leaves out what lies in the slices of a label that was found too.
func withoutSlices(found []*Volume) []*Volume {
	i := slices.IndexFunc(found, func(v *Volume) bool { return v.Kind.Sliced() && len(v.Parts) > 0 })
	if i < 0 {
		return found
	}
	label := found[i]
	atStart := label.OnDisk || slices.ContainsFunc(label.Parts, func(p Part) bool { return p.Start == 0 })
	return slices.DeleteFunc(found, func(v *Volume) bool { return atStart && v.Kind.Traits().InSlice })
}
