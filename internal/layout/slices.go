package layout

import (
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
	"github.com/trueup/trueup/internal/volume/identify"
)

// fromDisk converts the starts of parts that count from the start of the disk into starts from that of the partition.
// Those outside of the partition have no place in it.
func fromDisk(v *volume.Volume, p disk.Range) {
	if !v.OnDisk {
		return
	}
	for i := range v.Parts {
		part := &v.Parts[i]
		if part.Start < p.Off || part.Start+part.Size > p.End() {
			part.Start = -1
			continue
		}
		part.Start -= p.Off
	}
}

// block is the smallest unit of storage to align to (align.Block).
const block = 4 * units.KiB

// maxNames bounds what one issue lists.
const maxNames = 8

// CodeSlices is the code of the issue of slices off 4 KiB of their container.
const CodeSlices = "slice-misaligned"

// misalignedInside returns the slices that are off 4 KiB wherever their container, a partition or the disk, moves.
func misalignedInside(v *volume.Volume, container string) (ondisk.Issue, bool) {
	var names []string
	for _, p := range v.Parts {
		if p.Start >= 0 && !p.Own && p.Start%block != 0 && len(names) < maxNames {
			names = append(names, fmt.Sprintf("%s at byte %d", p.Name, p.Start))
		}
	}
	if len(names) == 0 {
		return ondisk.Issue{}, false
	}
	return ondisk.Issue{Code: CodeSlices, Effect: ondisk.Note, Text: fmt.Sprintf(
		"misaligned inside: %s of the %s, off a 4 KiB boundary of it, which no move of a partition mends for all",
		strings.Join(names, ", "), container)}, true
}

// checkSlices reports slices inside of partitions that no move of the partition aligns.
func (l *Layout) checkSlices() {
	for _, p := range l.Partitions {
		if i, ok := misalignedInside(p.Volume, "partition"); ok && identify.Sliced(p.Volume.Kind) {
			i.Partition = p.Number
			l.Issues = append(l.Issues, i)
		}
	}
}

// FixedParts returns the slices of a table over the whole disk that is not one of a PC: they are judged and never
// moved.
func (l *Layout) FixedParts() (out []volume.Part) {
	if l.Table != nil || l.Volume == nil || !identify.Sliced(l.Volume.Kind) {
		return nil
	}
	for _, p := range l.Volume.Parts {
		if p.Start >= 0 && !p.Own {
			out = append(out, p)
		}
	}
	return out
}

// FixedTable names such a table, "" if absent.
func (l *Layout) FixedTable() string {
	if l.Table != nil || l.Volume == nil {
		return ""
	}
	return identify.Traits(l.Volume.Kind).Slices
}

// onlyLabel reports a label without a partition table.
func (l *Layout) onlyLabel() {
	v := l.Volume
	if !identify.Sliced(v.Kind) {
		return
	}
	if len(v.Outside) > 0 {
		l.Issues = slices.DeleteFunc(l.Issues, func(i ondisk.Issue) bool { return i.Code == "slice-outside" })
	}
	for _, err := range v.Outside[:min(len(v.Outside), maxNames)] {
		l.Issues = append(l.Issues, ondisk.Issue{
			Code: "slice-outside", Effect: ondisk.Broken, Text: err.Error(), Err: err,
			Remedy: "the image was cut short or its table is damaged: restore it from a good copy, or correct the " +
				"table in the guest",
		})
	}
	l.Issues = append(l.Issues, ondisk.Issue{Code: "label-only", Effect: ondisk.Note, Text: fmt.Sprintf(
		"the partition table of the disk is not one of a PC (%s): its slices are shown, and none of them is moved",
		identify.Traits(v.Kind).Slices)})
	if i, ok := misalignedInside(v, "disk"); ok {
		l.Issues = append(l.Issues, i)
	}
}
