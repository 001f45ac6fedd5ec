package layout

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
	"github.com/trueup/trueup/internal/volume/identify"
)

// ItemKind is the kind of an item.
type ItemKind int

// Kinds of items.
const (
	PartitionItem ItemKind = iota // primary, logical, or of a GPT
	RecordItem                    // an extended boot record: one sector
	BoxEndItem                    // the end of an extended partition: no bytes, but a place
)

// Item has a place of its own on the disk. A move keeps the order of items.
type Item struct {
	disk.Range
	Kind   ItemKind
	Number int // of the partition; for records and ends, of the extended partition
	// Step divides the place of a record, and Most is its highest allowed place, or 0 for any.
	Step, Most int64
}

// Gap is the unused space after an item, up to the next one or to the end of the partition space. It may be empty.
type Gap struct {
	disk.Range
	// Data is the part to keep: from the first byte not known to be zero to the last.
	Data disk.Range
}

// InDiskOrder returns all partitions except extended ones, sorted by their place on the disk.
func (l *Layout) InDiskOrder() []boot.Partition {
	parts := slices.DeleteFunc(slices.Clone(l.Partitions),
		func(p boot.Partition) bool { return p.Kind == table.Extended })
	slices.SortFunc(parts, func(a, b boot.Partition) int { return cmp.Compare(a.Off, b.Off) })
	return parts
}

// Items returns all items, sorted by their place on the disk.
func (l *Layout) Items() []Item {
	out := make([]Item, 0, len(l.Partitions))
	for _, p := range l.Partitions {
		if p.Kind == table.Extended {
			out = append(out, Item{Range: disk.Range{Off: p.End()}, Kind: BoxEndItem, Number: p.Number})
			continue
		}
		out = append(out, Item{Range: p.Range, Kind: PartitionItem, Number: p.Number})
	}
	if l.Table != nil {
		for _, r := range l.Table.Records {
			out = append(out, l.record(r))
		}
	}
	slices.SortStableFunc(out, func(a, b Item) int {
		// An extended partition ends before the next one begins.
		return cmp.Or(cmp.Compare(a.Off, b.Off), cmp.Compare(b.Kind, a.Kind))
	})
	return out
}

// Usable returns the end of the partition space on a disk of size bytes.
func (l *Layout) Usable(size int64) int64 {
	if l.Table == nil {
		return size
	}
	return l.Table.Usable(size)
}

// Limits for the bytes read in gaps. Holes cost nothing and do not count. Space counts as free only if it was read as
// zeros.
const (
	gapLimit  = 64 * units.MiB  // at each end of a gap
	gapsLimit = 256 * units.MiB // of all gaps
)

// ReadGaps measures the gap after each item.
func (l *Layout) ReadGaps(d disk.Disk) error {
	l.Gaps = nil
	items := l.Items()
	left := gapsLimit
	for i, x := range items {
		end := l.Usable(l.Size)
		if i+1 < len(items) {
			end = min(items[i+1].Off, l.Size) // a broken table can name places past the end of the disk
		}
		g := Gap{Range: disk.Range{Off: min(x.End(), l.Size)}}
		g.Len = max(0, end-g.Off)
		var err error
		if g.Data, err = readData(d, g.Range, &left); err != nil {
			return err
		}
		l.Gaps = append(l.Gaps, g)
	}
	return nil
}

// readData finds the sectors of r that are not zero. left limits the bytes to read.
func readData(d disk.Disk, r disk.Range, left *int64) (disk.Range, error) {
	first, err := firstData(d, r, left)
	if err != nil {
		return disk.Range{}, err
	}
	last, err := lastData(d, disk.Range{Off: first, Len: r.End() - first}, left)
	return disk.Range{Off: first, Len: last - first}, err
}

// firstData returns the first place in r that is not known to be zero, or its end.
func firstData(d disk.Disk, r disk.Range, left *int64) (int64, error) {
	limit := min(gapLimit, *left)
	for e, err := range disk.Extents(d, r) {
		if err != nil {
			return 0, err
		}
		if e.Zero {
			continue
		}
		n := min(e.Len, limit)
		zeros, err := countZeros(d, disk.Range{Off: e.Off, Len: n}, false)
		if err != nil {
			return 0, err
		}
		*left -= zeros
		limit -= zeros
		if zeros < e.Len {
			return e.Off + zeros, nil
		}
	}
	return r.End(), nil
}

// maxExtents limits the walk through a gap.
const maxExtents = 65536

// lastData returns the end of the last byte of r that is not known to be zero. It reads stored bytes from the end:
// stored zeros must count like holes, or a copy of the file would get another plan.
func lastData(d disk.Disk, r disk.Range, left *int64) (int64, error) {
	stored, whole, err := storedIn(d, r)
	if !whole {
		return r.End(), err
	}
	limit := min(gapLimit, *left)
	for _, s := range slices.Backward(stored) {
		n := min(s.Len, limit)
		n -= n % d.SectorSize()
		if n == 0 {
			return s.End(), nil
		}
		zeros, err := countZeros(d, disk.Range{Off: s.End() - n, Len: n}, true)
		if err != nil {
			return 0, err
		}
		*left -= zeros
		limit -= zeros
		if zeros < s.Len {
			return s.End() - zeros, nil
		}
	}
	return r.Off, nil
}

// storedIn returns the parts of r that are not holes, and joins adjacent parts. whole is false at the limit.
func storedIn(d disk.Disk, r disk.Range) (stored []disk.Range, whole bool, err error) {
	n := 0
	for e, err := range disk.Extents(d, r) {
		if err != nil || n == maxExtents {
			return nil, false, err
		}
		n++
		if !e.Zero {
			stored = disk.Append(stored, e.Range)
		}
	}
	return stored, true, nil
}

// Sizes of the reads in a gap, in bytes; multiples of all sector sizes. The first read is small, since most gaps are
// small or have data. Each next read is twice as long, since each costs a request to a server.
const (
	gapPiece     = 64 << 10
	longGapPiece = 4 << 20
)

// longer returns the buffer for the read after b, of twice its length within limits, and of at most rest bytes.
func longer(b []byte, rest int64) []byte {
	n := min(max(gapPiece, 2*int64(len(b))), longGapPiece, rest)
	return slices.Grow(b[:0], int(n))[:n]
}

// countZeros counts the zero bytes at the start of r, or at its end, in whole sectors.
func countZeros(d disk.Disk, r disk.Range, atEnd bool) (n int64, err error) {
	var b []byte
	for n < r.Len {
		b = longer(b, r.Len-n)
		at := r.Off + n
		if atEnd {
			at = r.End() - n - int64(len(b))
		}
		if err := ondisk.ReadFull(d, b, at); err != nil {
			return 0, err
		}
		for left := b; len(left) > 0; {
			size := min(int(d.SectorSize()), len(left))
			sector, rest := left[:size], left[size:]
			if atEnd {
				rest, sector = left[:len(left)-size], left[len(left)-size:]
			}
			if !ondisk.IsZero(sector) {
				return n, nil
			}
			n, left = n+int64(size), rest
		}
	}
	return n, nil
}

// Codes for disks without content to judge.
const (
	CodeUnknownContent = "unknown-content"
	CodeBlank          = "blank"
)

// Areas of tables and superblocks, in bytes from either end of a disk. The deepest at the start is the device header of
// VMFS at 1 MiB; the database of dynamic disks occupies the last MiB.
const (
	blankFront = units.MiB + 64*units.KiB
	blankTail  = units.MiB
)

// checkContent reports a disk without a table and without a known volume.
func (l *Layout) checkContent(d disk.Disk) (err error) {
	if l.Volume.Kind != volume.Unknown {
		return nil
	}
	l.Blank, err = isBlank(d, nil)
	if err = ondisk.Legible(err); err != nil {
		return err
	}
	i := unknownContent("there is no partition table, and the disk as a whole holds no known volume")
	if l.Blank {
		i = ondisk.Issue{
			Code: CodeBlank, Effect: ondisk.Note,
			Text: "the disk is blank: there are zeros where partition tables and file systems begin",
		}
	} else if name, at, raid := volume.FirmwareRAID(d); name != "" {
		i = memberWithoutTable(name, at)
	} else if !errors.Is(raid, ondisk.ErrLimit) { // the end of the image was not unpacked
		err = ondisk.Legible(raid)
	}
	l.Issues = append(l.Issues, i)
	return err
}

// memberWithoutTable returns the issue of an array member whose partition table lies on another disk.
func memberWithoutTable(name string, at int64) ondisk.Issue {
	return ondisk.Issue{
		Code: CodeUnknownContent, Effect: ondisk.Warn,
		Text: fmt.Sprintf("byte %d holds the metadata of a %s, and the disk has no partition table: it is a member "+
			"of an array of a BIOS or controller, and does not show where the array's partitions start", at, name),
		Remedy: "inspect an image of the whole array, or the disks inside the guest; inspect and scan accept the " +
			"member with --allow-unknown",
	}
}

func unknownContent(text string) ondisk.Issue {
	return ondisk.Issue{
		Code: CodeUnknownContent, Effect: ondisk.Warn, Text: text,
		Remedy: "check that the image is complete and not part of another; inspect and scan accept it with " +
			"--allow-unknown",
	}
}

// HidesData records that the container has data that read as zeros. On a disk without content, these may be the missing
// data.
func (l *Layout) HidesData() {
	l.Hidden = true
	for i := range l.Issues {
		if l.Blank && l.Issues[i].Code == CodeBlank {
			l.Issues[i] = unknownContent("the disk reads as zeros where partition tables and file systems begin, " +
				"but the image file has hidden data of unknown content")
		}
	}
	l.Blank = false
}

// checkUnnamed looks for unknown data on a disk whose table has no partition for data: another table or a volume can
// follow the signature of an empty MBR.
func (l *Layout) checkUnnamed(d disk.Disk) error {
	used := l.Table.Structures()
	for _, p := range l.Partitions {
		switch {
		case p.Kind == table.Extended:
		case p.Is(table.Reserved) && p.Volume.Kind == volume.Unknown:
			used = append(used, p.Range)
		default:
			return nil
		}
	}
	blank, err := isBlank(d, used)
	if l.Unnamed = err == nil && !blank; l.Unnamed {
		l.Issues = append(l.Issues, unknownContent("the partition table has no partition for data, but the disk "+
			"has other data where partition tables and file systems begin"))
	}
	return err
}

// isBlank reports whether a disk has only zeros in the areas of tables and superblocks, except for explained ranges. It
// stops reading at the first other byte.
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

// Types of extended partitions.
const (
	typeExtended    = 0x05
	typeExtendedLBA = 0x0f
)

// LastCylinder is the last cylinder in the ten bits of CHS.
const LastCylinder = 1023

// cylinder returns the size of a cylinder in bytes, 0 if unknown.
func (l *Layout) cylinder() int64 {
	if l.SectorSize != units.SectorSize || !l.Geometry.Valid() {
		return 0
	}
	return int64(l.Geometry.Heads*l.Geometry.Sectors) * units.SectorSize
}

// lastForDOS returns the number of the last logical drive of an extended partition that DOS or Windows 95 to ME could
// read, or 0. These systems follow the chain by the whole CHS of its links. But they compute the start of a logical
// drive from only the cylinder of its boot record, plus the relative start: the record must begin a cylinder. Spec:
// MS-DOS 4.0, src/BIOS/MSINIT.ASM, FIND_MINI_PARTITION; seen with Windows 95 OSR2 in chains of type 05. Records after
// the last drive can lie anywhere.
func (l *Layout) lastForDOS(box boot.Partition) (last int) {
	chs := box.Type == typeExtended || (box.Type == typeExtendedLBA && l.Boot != nil && l.ReadsCHS())
	if !chs || l.cylinder() == 0 {
		return 0
	}
	for _, p := range l.Partitions {
		fat := identify.Traits(p.Volume.Kind).DOS ||
			p.Volume.Kind == volume.Unknown && slices.Contains([]byte{0x01, 0x04, 0x06, 0x0b, 0x0c, 0x0e}, p.Type)
		if fat && p.Kind == table.Logical && box.Contains(p.Range) {
			last = max(last, p.Number)
		}
	}
	return last
}

// EndOfCHS returns the end of the range addressable by CHS, or of the disk if no geometry is known.
func (l *Layout) EndOfCHS() int64 {
	if c := l.cylinder(); c > 0 {
		return (LastCylinder + 1) * c
	}
	return l.Size
}

// ReadByCHS reports whether DOS and Windows 95 to ME read a partition only by CHS: a FAT without an LBA type. Spec:
// MS-DOS 4.0, src/BIOS/MSDISK.ASM, which has no other way; types 0C and 0E came with Windows 95B for LBA.
func ReadByCHS(p boot.Partition) bool {
	return identify.Traits(p.Volume.Kind).DOS && slices.Contains([]byte{0x01, 0x04, 0x06, 0x0b}, p.Type)
}

// record returns the item of an extended boot record. A record that begins a cylinder keeps doing so if a DOS could
// read it. If that DOS uses only CHS, the record stays within the reach of CHS.
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

// offCylinders reports boot records whose logical drives no DOS can find, before a move or after it.
func (l *Layout) offCylinders() {
	c := l.cylinder()
	for _, box := range l.Partitions {
		if box.Kind != table.Extended {
			continue
		}
		last := l.lastForDOS(box)
		if last == 0 {
			continue // also if no cylinder is known
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
