package volume

import (
	"errors"
	"slices"

	"github.com/trueup/trueup/internal/ondisk"
)

func isNoMatch(err error) bool { return errors.Is(err, ondisk.ErrNoMatch) }

// tables are the kinds that divide a disk, or a partition, into slices.
var tables = []Kind{Disklabel, VTOC, APM, SGI, RDB, Atari, DASD}

// Sliced reports whether a kind is a table inside of a partition, or one of another machine than a PC over the whole disk.
func (k Kind) Sliced() bool { return slices.Contains(tables, k) }

// inSlices are what the first slice can hold. Where that begins at the start of the partition, so does its content, and both are
// found; anything else beside a label means that one of the two is stale.
var inSlices = []Kind{UFS1, UFS2, ZFS, Swap}

// Foreign reports whether a kind is the table of a machine that is no PC.
func (k Kind) Foreign() bool { return k == APM || k == SGI || k == RDB || k == Atari || k == DASD }

// withoutHybrids leaves out the partition map of a CD that a Macintosh can start from: its partitions are files of the CD.
func withoutHybrids(found []*Volume) []*Volume {
	if !slices.ContainsFunc(found, func(v *Volume) bool { return v.Kind == ISO9660 }) {
		return found
	}
	return slices.DeleteFunc(found, func(v *Volume) bool { return v.Kind == APM })
}

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
