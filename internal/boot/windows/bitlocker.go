package windows

import (
	"slices"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// BitLocker judges the BitLocker volumes whose metadata does not show a system, by the disk around them. All that is
// inside of a volume counts from its start. r has what the finders found.
func BitLocker(g *boot.Guest, r *boot.Result) {
	for _, p := range g.Partitions {
		judged := func(i ondisk.Issue) bool { return i.Code == volume.CodeBitLocker }
		if p.Volume.Kind != volume.BitLocker || slices.ContainsFunc(p.Volume.Issues, judged) {
			continue
		}
		i := ondisk.Issue{Code: volume.CodeBitLocker, Effect: ondisk.Note, OnMove: true, Partition: p.Number}
		switch why := g.BootsBy(); {
		case why != "" && (!r.Windows || r.Boots(p.Number)):
			i.Effect = ondisk.Unbootable
			i.Text, i.Remedy = volume.SystemOfBitLocker("it may hold the system of this disk ("+why+")", false)
		default:
			i.Text = "BitLocker: a volume of data, in which everything counts from its start. Its encrypted boot " +
				"sector keeps the old place, which Windows uses only in a volume that it boots from"
			i.Remedy = "if a Windows starts from it whose boot files lie on another disk, do not use the copy"
		}
		r.Issues = append(r.Issues, i)
	}
}
