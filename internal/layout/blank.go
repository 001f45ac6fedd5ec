package layout

import (
	"errors"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// Codes of disks on which there is nothing to judge.
const (
	CodeUnknownContent = "unknown-content"
	CodeBlank          = "blank"
)

// Where tables and superblocks lie, in bytes from either end of a disk. The deepest in front is the device header of
// VMFS at 1 MiB; the database of dynamic disks takes the last MiB.
const (
	blankFront = units.MiB + 64*units.KiB
	blankTail  = units.MiB
)

// checkContent judges a disk without a table and without a known volume.
func (l *Layout) checkContent(d disk.Disk) (err error) {
	if l.Volume.Kind != volume.Unknown {
		return nil
	}
	l.Blank, err = isBlank(d, nil)
	if err = ondisk.Legible(err); err != nil {
		return err
	}
	i := unknownContent("there is no partition table, and the disk as a whole holds no volume that is known")
	if l.Blank {
		i = ondisk.Issue{
			Code: CodeBlank, Effect: ondisk.Note,
			Text: "the disk is blank: there are zeros where partition tables and file systems begin",
		}
	} else if name, at, raid := volume.FirmwareRAID(d); name != "" {
		i = memberWithoutTable(name, at)
	} else if !errors.Is(raid, ondisk.ErrLimit) { // of an image of which the end was not unpacked
		err = ondisk.Legible(raid)
	}
	l.Issues = append(l.Issues, i)
	return err
}

// memberWithoutTable returns the issue of a disk of an array whose partition table lies on another disk.
func memberWithoutTable(name string, at int64) ondisk.Issue {
	return ondisk.Issue{
		Code: CodeUnknownContent, Effect: ondisk.Warn,
		Text: fmt.Sprintf("byte %d holds the metadata of a %s, and the disk has no partition table: it is a member of "+
			"an array of a BIOS or controller, and shows no start of the array's partitions", at, name),
		Remedy: "inspect an image of the whole array, or the disks inside the guest; inspect and scan accept the " +
			"member with --allow-unknown",
	}
}

func unknownContent(text string) ondisk.Issue {
	return ondisk.Issue{
		Code: CodeUnknownContent, Effect: ondisk.Warn, Text: text,
		Remedy: "check that the image is complete and no part of another; inspect and scan accept it with " +
			"--allow-unknown",
	}
}

// HidesData records that the container has data that read as zeros: without content to judge, these may be what is
// missing.
func (l *Layout) HidesData() {
	l.Hidden = true
	for i := range l.Issues {
		if l.Blank && l.Issues[i].Code == CodeBlank {
			l.Issues[i] = unknownContent("the disk reads as zeros where partition tables and file systems begin, and " +
				"the image hides data that it has: what they are is not known")
		}
	}
	l.Blank = false
}

// checkUnnamed looks for data of an unknown kind on a disk whose table has no partition that a guest uses: another
// table or a volume can stand behind the signature of an empty MBR.
func (l *Layout) checkUnnamed(d disk.Disk) error {
	used := l.Table.Structures()
	for _, p := range l.Partitions {
		switch {
		case p.Kind == table.Extended:
		case p.Reserved() && p.Volume.Kind == volume.Unknown:
			used = append(used, p.Range)
		default:
			return nil
		}
	}
	blank, err := isBlank(d, used)
	if l.Unnamed = err == nil && !blank; l.Unnamed {
		l.Issues = append(l.Issues, unknownContent("the partition table has no partition for data, and the disk has "+
			"other data than the table where partition tables and file systems begin"))
	}
	return err
}

// isBlank reports whether a disk has only zeros where tables and superblocks lie, beside ranges that are explained.
// Reading ends at the first other byte.
func isBlank(d disk.Disk, explained []disk.Range) (bool, error) {
	explained = disk.Merge(explained)
	front := min(blankFront, d.Size())
	tail := min(blankTail, d.Size()-front)
	for _, r := range []disk.Range{{Len: front}, {Off: d.Size() - tail, Len: tail}} {
		left := r.Len
		for _, rest := range disk.Gaps(r, explained) {
			if first, err := firstData(d, rest, &left); err != nil || first != rest.End() {
				return false, err
			}
		}
	}
	return true, nil
}
