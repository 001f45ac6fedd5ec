package identify

import (
	"slices"

	"github.com/trueup/trueup/internal/volume"
)

// dropHidden drops volumes that are parts of another one that was found.
func dropHidden(found []*volume.Volume) []*volume.Volume {
	var hidden []volume.Kind
	for _, v := range found {
		hidden = append(hidden, Traits(v.Kind).Hides)
	}
	return slices.DeleteFunc(found, func(v *volume.Volume) bool { return slices.Contains(hidden, v.Kind) })
}

// dropSliced drops volumes that lie in the slices of a label that was found.
func dropSliced(found []*volume.Volume) []*volume.Volume {
	i := slices.IndexFunc(found, func(v *volume.Volume) bool { return Sliced(v.Kind) && len(v.Parts) > 0 })
	if i < 0 {
		return found
	}
	label := found[i]
	atStart := label.OnDisk || slices.ContainsFunc(label.Parts, func(p volume.Part) bool { return p.Start == 0 })
	return slices.DeleteFunc(found, func(v *volume.Volume) bool { return atStart && Traits(v.Kind).InSlice })
}
