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

// showsContent tells whether what the volume holds can be seen at its own start: that of a Linux RAID which keeps its
// superblock at the end, and the unencrypted part of BitLocker To Go, which is a FAT.
func (v *Volume) showsContent() bool {
	return (v.Kind == MDRaid && v.AtEnd && v.DataStart == 0) || v.Kind == BitLocker
}

// inherit takes over what is wrong with the disk as a whole: a Linux that hibernates into a swap area on RAID or LVM.
func (v *Volume) inherit(inner *Volume) {
	for _, i := range inner.Issues {
		if i.DiskWide {
			v.Issues = append(v.Issues, i)
		}
	}
}

// describe names a volume in a line.
func (v *Volume) describe() string {
	if v.Label == "" {
		return string(v.Kind)
	}
	return string(v.Kind) + ` "` + v.Label + `"`
}

// says adds what the volume says of itself; an empty value is nothing to say.
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
