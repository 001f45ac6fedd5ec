package identify

import (
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/volume"
)

// prober identifies the volume of a whole disk that begins at a byte offset of another.
type prober = func(whole disk.Disk, at int64) (*volume.Volume, error)

// maxNested bounds containers in one another, such as a cache on a mirror.
const maxNested = 4

// withContent identifies a volume and, where it is a container, the volume at the start of its data.
func withContent(whole disk.Disk, at int64, identify prober) (*volume.Volume, error) {
	v, err := identify(whole, at)
	if err != nil {
		return v, err
	}
	outer := v
	for range maxNested {
		inside := disk.Range{Off: v.DataStart, Len: whole.Size() - v.DataStart}
		if v.Content == nil && (!v.Holds || v.DataStart == 0 || inside.Len <= 0) {
			break
		}
		whole, at = disk.Section(whole, inside), at+inside.Off
		if v.Content == nil {
			found, err := identify(whole, at)
			if err != nil {
				return outer, err
			}
			if v.Content = sound(found); v.Content == nil {
				break
			}
			v.Add("content", describe(found))
			v.Inherit(found)
			if v != outer {
				outer.Inherit(found)
			}
		}
		v = v.Content
	}
	return outer, nil
}

// Slices identifies the volumes in the slices of a table inside of a partition.
func Slices(whole disk.Disk, at int64, v *volume.Volume, identify prober) error {
	if !Sliced(v.Kind) {
		return nil
	}
	for i, p := range v.Parts {
		if p.Start < 0 || p.Own || p.Start+p.Size > whole.Size() {
			continue
		}
		found, err := identify(disk.Section(whole, disk.Range{Off: p.Start, Len: p.Size}), at+p.Start)
		if err != nil {
			return err
		}
		if !Sliced(found.Kind) { // one at the start of the partition begins with the table itself
			v.Parts[i].Content = sound(found)
		}
	}
	return nil
}
