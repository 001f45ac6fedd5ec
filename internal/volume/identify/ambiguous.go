package identify

import (
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// unwrap resolves pairs that are no contradiction: a container, and the volume that shows through it.
func unwrap(found []*volume.Volume) []*volume.Volume {
	for i, outer := range found {
		if len(found) == 1 || !showsContent(outer) {
			continue
		}
		var content []string
		inside := slices.Delete(slices.Clone(found), i, i+1)
		for _, inner := range inside {
			content = append(content, describe(inner))
			outer.Share(inner)
		}
		outer.Add("content", strings.Join(content, ", "))
		if outer.Holds {
			outer.Content = sound(foremost(inside))
		}
		return []*volume.Volume{outer}
	}
	return found
}

// dropStale drops broken superblocks where another one is sound. A new file system seldom covers all of an old one.
func dropStale(found []*volume.Volume) []*volume.Volume {
	if !slices.ContainsFunc(found, func(v *volume.Volume) bool { return !broken(v) }) {
		return found
	}
	var left []*volume.Volume
	var stale []ondisk.Issue
	for _, v := range found {
		if broken(v) && !Traits(v.Kind).NeverStale {
			stale = append(stale, v.Issues...)
		} else {
			left = append(left, v)
		}
	}
	for _, r := range stale {
		left[0].Note("leftover", ondisk.Note, "a broken superblock is taken for a leftover: "+r.Text, "")
	}
	return left
}

func broken(v *volume.Volume) bool {
	return slices.ContainsFunc(v.Issues, func(i ondisk.Issue) bool { return i.Effect == ondisk.BadVolume })
}

// foremost returns the sound volume with the highest precedence; the first one where none has any.
func foremost(found []*volume.Volume) *volume.Volume {
	first, most := found[0], 0
	for _, v := range found {
		if p := Traits(v.Kind).Precedence; p > most && !broken(v) {
			first, most = v, p
		}
	}
	return first
}

// sound returns v as the content of a container; nil where its kind is not known, or it is broken.
func sound(v *volume.Volume) *volume.Volume {
	if v.Kind == volume.Unknown || broken(v) {
		return nil
	}
	return v
}

// choose chooses the volume that counts, and reports the others as an issue: making a volume does not always wipe the
// old one. Whichever is right, a sound volume moves with the place that its boot sector stores.
func choose(found []*volume.Volume) *volume.Volume {
	if len(found) == 1 {
		return found[0]
	}
	first := foremost(found)
	i := ondisk.Issue{
		Code: "ambiguous-volume", Effect: ondisk.Warn,
		Remedy: "wipe the stale signature inside the guest",
	}
	text := []string{string(first.Kind)}
	for _, v := range found {
		if Sliced(v.Kind) || slices.ContainsFunc(v.Issues,
			func(i ondisk.Issue) bool { return i.Effect >= ondisk.Unbootable }) {
			i.Effect, i.OnMove = ondisk.Unbootable, true
		}
		if v != first {
			text = append(text, string(v.Kind))
			first.Share(v)
		}
	}
	if first.Boot != nil && Traits(first.Kind).Precedence > 0 {
		front := *first.Boot
		front.Backup = 0 // it would lie in the data of the container
		first.Boot = &front
	}
	i.Text = "the volume looks like " + strings.Join(text, " and like ")
	first.Issues = append(first.Issues, i)
	return first
}

// showsContent reports whether the content of a volume is visible at its own start. This is so for a Linux RAID with
// its superblock at the end, and for BitLocker To Go, which begins with a FAT.
func showsContent(v *volume.Volume) bool {
	return (v.AtEnd && v.DataStart == 0) || Traits(v.Kind).ShowsContent
}

// describe names a volume by kind and label.
func describe(v *volume.Volume) string {
	if v.Label == "" {
		return string(v.Kind)
	}
	return string(v.Kind) + ` "` + v.Label + `"`
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
