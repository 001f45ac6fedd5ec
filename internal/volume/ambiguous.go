package volume

import (
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
)

// outermost settles pairs that are no contradiction: one volume shows through another.
func outermost(found []*Volume) []*Volume {
	for i, outer := range found {
		if len(found) == 1 || !outer.showsContent() {
			continue
		}
		var content []string
		for _, inner := range slices.Delete(slices.Clone(found), i, i+1) {
			content = append(content, inner.describe())
			outer.inherit(inner)
		}
		outer.says("content", strings.Join(content, ", "))
		return []*Volume{outer}
	}
	return found
}

// withoutRuins leaves out superblocks that are broken where another one is sound: a new file system seldom covers all that an old one
// left.
func withoutRuins(found []*Volume) []*Volume {
	if !slices.ContainsFunc(found, func(v *Volume) bool { return !v.broken() }) {
		return found
	}
	var left []*Volume
	var ruins []ondisk.Issue
	for _, v := range found {
		if v.broken() && !v.Kind.Traits().NeverStale {
			ruins = append(ruins, v.Issues...)
		} else {
			left = append(left, v)
		}
	}
	for _, r := range ruins {
		left[0].note("leftover", ondisk.Note, "a broken superblock is taken for a leftover: "+r.Text, "")
	}
	return left
}

func (v *Volume) broken() bool {
	return slices.ContainsFunc(v.Issues, func(i ondisk.Issue) bool { return i.Effect == ondisk.BadVolume })
}

// settle says which of several volumes counts, and that there are others: who makes a volume does not always wipe what was there. All are
// heard. What is sound moves as it is whichever is right, and with it the place that a boot sector stores.
func settle(found []*Volume) *Volume {
	if len(found) == 1 {
		return found[0]
	}
	first := found[0]
	most := 0
	for _, v := range found {
		if p := v.Kind.Traits().Precedence; p > most && !v.broken() {
			first, most = v, p
		}
	}
	i := ondisk.Issue{Code: "ambiguous-volume", Effect: ondisk.Warn, Remedy: "wipe the stale signature inside the guest"}
	text := []string{string(first.Kind)}
	for _, v := range found {
		if v.Kind.Sliced() || slices.ContainsFunc(v.Issues, func(i ondisk.Issue) bool { return i.Effect >= ondisk.Unbootable }) {
			i.Effect, i.OnMove = ondisk.Unbootable, true
		}
		if v != first {
			text = append(text, string(v.Kind))
			first.inherit(v)
		}
	}
	if first.Boot != nil && first.Kind.Traits().Precedence > 0 {
		front := *first.Boot
		front.Backup = 0 // it would lie in the data of the container
		first.Boot = &front
	}
	i.Text = "the volume looks like " + strings.Join(text, " and like ")
	first.Issues = append(first.Issues, i)
	return first
}

// showsContent reports whether what the volume holds can be seen at its own start: that of a Linux RAID which keeps its
// superblock at the end, and the unencrypted part of BitLocker To Go, which is a FAT.
func (v *Volume) showsContent() bool {
	return (v.AtEnd && v.DataStart == 0) || v.Kind.Traits().ShowsContent
}

// inherit takes over what is wrong with the disk as a whole, such as a Linux that hibernates into a swap area on RAID or LVM, and a boot
// sector, which a BIOS runs whatever lies behind it: it was made for the partition when it says where that is.
func (v *Volume) inherit(other *Volume) {
	for _, i := range other.Issues {
		if i.DiskWide {
			v.Issues = append(v.Issues, i)
		}
	}
	if v.Boot == nil {
		v.Boot = other.Boot
	}
}

// describe names a volume in a line.
func (v *Volume) describe() string {
	if v.Label == "" {
		return string(v.Kind)
	}
	return string(v.Kind) + ` "` + v.Label + `"`
}

// says adds what the volume says about itself; an empty value is nothing to say.
func (v *Volume) says(name, value string) {
	if value != "" {
		v.Details = append(v.Details, Detail{name, value})
	}
}

// maxParts bounds the parts that are kept of a volume: a VG has rarely more logical volumes.
const maxParts = 256

// beyond reports a volume that says it is larger than what holds it, as the image of a disk that was cut does. source is the
// structure that says so.
func (v *Volume) beyond(size, room int64, source string) {
	if size <= room {
		return
	}
	text := "the " + string(v.Kind) + " has " + bytesOf(size) + " by its " + source + ", but the partition has " + bytesOf(room)
	v.note("volume-size", ondisk.Warn, text, "see in the guest whether data are missing")
	v.note("volume-size", ondisk.Refuse, text, "correct the partition table or the volume in the guest first")
}
