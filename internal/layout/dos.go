package layout

import (
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
	"github.com/trueup/trueup/internal/volume/identify"
)

// Types of extended partitions.
const (
	typeExtended    = 0x05
	typeExtendedLBA = 0x0f
)

// LastCylinder is the last cylinder that the ten bits of CHS can name.
const LastCylinder = 1023

// cylinder returns the size of a cylinder in bytes, 0 if unknown.
func (l *Layout) cylinder() int64 {
	if l.SectorSize != units.SectorSize || !l.Geometry.Valid() {
		return 0
	}
	return int64(l.Geometry.Heads*l.Geometry.Sectors) * units.SectorSize
}

// lastForDOS returns the number of the last logical drive of an extended partition that DOS or Windows 95 to ME could
// read, 0 without one. They follow the chain by the whole CHS of its links, but take the base of a logical drive from
// the cylinder of its boot record alone, and add the relative start to that: the record must begin a cylinder. Spec:
// MS-DOS 4.0, src/BIOS/MSINIT.ASM, FIND_MINI_PARTITION; seen with Windows 95 OSR2 in chains of type 05. Records behind
// the last drive can lie anywhere.
func (l *Layout) lastForDOS(box boot.Partition) (last int) {
	chs := box.Type == typeExtended || (box.Type == typeExtendedLBA && l.Boot != nil && l.ReadsCHS())
	if !chs || l.cylinder() == 0 {
		return 0
	}
	for _, p := range l.Partitions {
		fat := identify.Traits(p.Volume.Kind).DOS || (p.Volume.Kind == volume.Unknown && isTypeOfFAT(p.Type))
		if fat && p.Kind == table.Logical && box.Contains(p.Range) {
			last = max(last, p.Number)
		}
	}
	return last
}

// EndOfCHS returns the byte behind all that CHS can name, that of the disk where no geometry is known.
func (l *Layout) EndOfCHS() int64 {
	if c := l.cylinder(); c > 0 {
		return (LastCylinder + 1) * c
	}
	return l.Size
}

// ReadByCHS reports whether DOS and Windows 95 to ME read a partition by CHS alone: a FAT whose type does not say LBA.
// Spec: MS-DOS 4.0, src/BIOS/MSDISK.ASM, which knows no other way; types 0C and 0E came with Windows 95B for LBA.
func ReadByCHS(p boot.Partition) bool {
	return identify.Traits(p.Volume.Kind).DOS && slices.Contains([]byte{0x01, 0x04, 0x06, 0x0b}, p.Type)
}

func isTypeOfFAT(t byte) bool { return slices.Contains([]byte{0x01, 0x04, 0x06, 0x0b, 0x0c, 0x0e}, t) }

// record returns the item of an extended boot record. One that begins a cylinder keeps doing so if a DOS could read it;
// if that DOS uses CHS only, it stays within what CHS can name.
func (l *Layout) record(r table.Record) Item {
	x := Item{Kind: RecordItem, Number: r.Box}
	x.Off, x.Len = r.Off, l.Table.SectorSize
	box, _ := l.Partition(r.Box)
	c := l.cylinder()
	if c == 0 || r.Off%c != 0 {
		return x
	}
	if last := l.lastForDOS(box); last == 0 || r.Logical > last {
		return x
	}
	x.Step = c
	if most := LastCylinder * c; box.Type == typeExtended && r.Off <= most {
		x.Most = most
	}
	return x
}

// offCylinders reports boot records by which no DOS finds its drive, before a move or after it.
func (l *Layout) offCylinders() {
	c := l.cylinder()
	for _, box := range l.Partitions {
		if box.Kind != table.Extended {
			continue
		}
		last := l.lastForDOS(box)
		if last == 0 {
			continue // also where no cylinder is known
		}
		off := slices.IndexFunc(l.Table.Records,
			func(r table.Record) bool { return r.Box == box.Number && r.Logical <= last && r.Off%c != 0 })
		if off < 0 {
			continue
		}
		l.Issues = append(l.Issues, ondisk.Issue{
			Code: "dos-chain", Effect: ondisk.Note, OnMove: true,
			Text: fmt.Sprintf("partition %d: the boot record at LBA %d does not begin a cylinder of %d sectors, "+
				"so DOS and Windows 95 to ME cannot read its drive, before the move or after it",
				box.Number, l.Table.Records[off].Off/units.SectorSize, c/units.SectorSize),
		})
	}
}
