package layout

import (
	_ "embed" // refusals
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
	"github.com/trueup/trueup/internal/volume/identify"
)

// refused is the reason why a partition does not move: its content stores its place in a form that cannot be rewritten.
type refused struct {
	Text, Remedy, Source string

	Unbootable bool // --allow-unbootable overrides it
	Wide       bool // no other partition may move either
}

// otherLabel is the key of a disklabel without the type of FreeBSD.
const otherLabel = "disklabel"

// refusals maps the role of a type, which is also the code of the issue, to the reason. All other types move, such as
// FreeBSD, whose loaders subtract the place of the slice (stand/i386/boot2/boot2.c).
var refusals = sync.OnceValue(func() map[table.Role]refused {
	return ondisk.Embedded[map[table.Role]refused](refusalsText)
})

//go:embed refusals.json
var refusalsText []byte

// refusedFor returns the role that keeps a partition from moving, and the type with that role: its own, or its slot's
// in a hybrid MBR. A label that does not match the type counts as a role.
func refusedFor(p boot.Partition) (role table.Role, id string) {
	for _, id = range p.TypeIDs() {
		for _, role := range table.Roles(id) {
			if _, ok := refusals()[role]; ok {
				return role, id
			}
		}
	}
	if p.Volume.Kind == volume.Disklabel && (p.Volume.OnDisk || !p.Is(table.FreeBSD)) {
		return otherLabel, id
	}
	return "", id
}

// checkTypes reports partitions that their type or label keeps from moving, unless the volume has reported it itself.
func (l *Layout) checkTypes() {
	for _, p := range l.Partitions {
		role, id := refusedFor(p)
		r, ok := refusals()[role]
		i := ondisk.Issue{
			Code: string(role), Effect: ondisk.Refuse, OnMove: true, Partition: p.Number, DiskWide: r.Wide,
			Text: fmt.Sprintf("it has type %s, %s", id, r.Text), Remedy: r.Remedy,
		}
		if !ok || slices.ContainsFunc(p.Volume.Issues, func(x ondisk.Issue) bool { return x.Code == i.Code }) {
			continue
		}
		if r.Unbootable {
			i.Effect = ondisk.Unbootable
		}
		if r.Wide {
			i.Partition, i.Text = 0, fmt.Sprintf("partition %d has type %s, %s", p.Number, id, r.Text)
		}
		l.Issues = append(l.Issues, i)
	}
}

// fromDisk converts part starts that count from the start of the disk to the start of the partition. Parts outside the
// partition get a start of -1.
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

// maxNames limits the list in one issue.
const maxNames = 8

// CodeSlices is the code of the issue of slices off 4 KiB of their container.
const CodeSlices = "slice-misaligned"

// misalignedInside returns the slices that are off 4 KiB wherever their container, a partition or the disk, moves.
func misalignedInside(v *volume.Volume, container string) (ondisk.Issue, bool) {
	var names []string
	for _, p := range v.Parts {
		if p.Start >= 0 && p.Start%block != 0 && len(names) < maxNames {
			names = append(names, fmt.Sprintf("%s at byte %d", p.Name, p.Start))
		}
	}
	if len(names) == 0 {
		return ondisk.Issue{}, false
	}
	return ondisk.Issue{Code: CodeSlices, Effect: ondisk.Note, Text: fmt.Sprintf(
		"misaligned inside: %s of the %s, off its 4 KiB boundaries; no move of a partition fixes them all",
		strings.Join(names, ", "), container)}, true
}

// checkSlices reports slices inside partitions that no move of the partition aligns.
func (l *Layout) checkSlices() {
	for _, p := range l.Partitions {
		if i, ok := misalignedInside(p.Volume, "partition"); ok && identify.Sliced(p.Volume.Kind) {
			i.Partition = p.Number
			l.Issues = append(l.Issues, i)
		}
	}
}

// FixedParts returns the slices of a non-PC table over the whole disk: they are judged and never moved.
func (l *Layout) FixedParts() []volume.Part {
	if l.Table != nil || l.Volume == nil || !identify.Sliced(l.Volume.Kind) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(l.Volume.Parts), func(p volume.Part) bool { return p.Start < 0 })
}

// FixedTable returns the name of the disk's table if it is never rewritten, or an empty string.
func (l *Layout) FixedTable() string {
	if l.Table != nil || l.Volume == nil {
		return ""
	}
	return identify.Traits(l.Volume.Kind).Slices
}

// Unlisted reports whether the disk has a fixed table whose partitions are not read.
func (l *Layout) Unlisted() bool {
	return l.FixedTable() != "" && identify.Traits(l.Volume.Kind).Foreign
}

// onlyLabel reports a label without a partition table.
func (l *Layout) onlyLabel() {
	v := l.Volume
	switch {
	case !identify.Sliced(v.Kind):
		return
	case l.Unlisted():
		i := unknownContent(fmt.Sprintf("the disk has a partition table of another architecture than the PC (%s), "+
			"which trueup cannot read: the alignment of its partitions is unknown", l.FixedTable()))
		i.Remedy = "inspect and scan accept it with --allow-unknown; trueup convert copies the disk as it is"
		l.Issues = append(l.Issues, i)
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
		"the disk has a partition table of another architecture than the PC (%s): its slices are shown, but never "+
			"moved",
		identify.Traits(v.Kind).Slices)})
	if i, ok := misalignedInside(v, "disk"); ok {
		l.Issues = append(l.Issues, i)
	}
}

// firmwareRAID reports a disk that is a member of a BIOS or controller array. The partitions belong to the array, and
// other disks hold them too.
func (l *Layout) firmwareRAID(d disk.Disk) error {
	name, at, err := volume.FirmwareRAID(d)
	if name == "" {
		return err
	}
	l.Issues = append(l.Issues, ondisk.Issue{
		Code: "firmware-raid", Effect: ondisk.Refuse, OnMove: true,
		Text: fmt.Sprintf("byte %d holds the metadata of a %s: the array belongs to a BIOS or controller, "+
			"and its other disks would no longer fit", at, name),
		Remedy: fmt.Sprintf("realign the array inside the guest; if it is no longer an array, wipe the leftover "+
			"metadata (wipefs --all --types %s) in a copy of the image", name),
	})
	return nil
}

// Signatures of a DLA sector. Spec: IBM, LVM engine of OS/2, DLA_Table_Sector.
const (
	dlaSignature1 = 0x424d5202
	dlaSignature2 = 0x44464d50
)

// lvmOfOS2 reports the DLA sectors, by which OS/2's LVM identifies partitions. They lie at the end of the track of each
// boot record, and store absolute starts under a checksum.
func (l *Layout) lvmOfOS2(d disk.Disk) error {
	if l.Table.Scheme != table.MBR || !l.Geometry.Valid() {
		return nil
	}
	for _, track := range []int64{int64(l.Geometry.Sectors), 63} {
		at := (track - 1) * units.SectorSize
		if at+units.SectorSize > d.Size() {
			continue
		}
		b, err := ondisk.Bytes(d, at, units.SectorSize)
		if err != nil {
			return err
		}
		if binary.LittleEndian.Uint32(b) != dlaSignature1 || binary.LittleEndian.Uint32(b[4:]) != dlaSignature2 {
			continue
		}
		l.Issues = append(l.Issues, ondisk.Issue{
			Code: "os2-lvm", Effect: ondisk.Refuse, OnMove: true,
			Text: fmt.Sprintf("LBA %d holds a table of OS/2's LVM (OS/2 4.5, eComStation, ArcaOS), which stores "+
				"the absolute start of each partition", track-1),
			Remedy: "copy the files to an aligned disk in the guest",
		})
		return nil
	}
	return nil
}

// Dynamic reports whether a partition belongs to a dynamic disk.
func (l *Layout) Dynamic() bool {
	return slices.ContainsFunc(l.Partitions, func(p boot.Partition) bool { return p.Is(table.LDM) })
}

// dynamicVolume describes a partition of a dynamic disk. The database, which is not read, places the volumes: a part of
// one can lie at the start. Windows Vista and later place the first one at 1 MiB of the disk, in a partition at LBA 63.
// A boot sector at 1 MiB proves that if it counts the sectors before it.
func dynamicVolume(d disk.Disk, p table.Partition) (*volume.Volume, error) {
	v := &volume.Volume{Kind: volume.LDM, Size: p.Len}
	first := units.AlignUp(p.Off, units.MiB)
	if p.Is(table.LDMDatabase) || first == p.Off || first >= min(p.End(), d.Size()) {
		return v, nil
	}
	in, err := identify.Front(disk.Section(d, disk.Range{Off: first, Len: min(p.End(), d.Size()) - first}), first)
	if err == nil && in.Boot != nil && int64(in.Boot.Hidden)*in.Boot.SectorSize == first {
		v.DataStart = first - p.Off
	}
	return v, err
}
