package layout

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/fs/fat"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
	"github.com/trueup/trueup/internal/volume/identify"
)

// Sectors holds the sector sizes of a disk, in bytes.
type Sectors struct {
	Shown   int64 // presented size: of the container, of the device, or set by the user
	Counted int64 // unit of the table; equal to Shown without evidence for another size
	By      Evidence
}

// Evidence is the kind of evidence for the sector size of a table.
type Evidence int

// Kinds of evidence, weakest first.
const (
	NoEvidence  Evidence = iota // for another size than the presented one
	DataAlone                   // more unknown data at the places of the other size than at the disk's own
	BootRecords                 // boot records, volumes, or copies of boot sectors and superblocks
	GPTHeader                   // a GPT, whose header position states its sector size
)

// Size returns the sector size of the disk, as far as it is certain.
func (s Sectors) Size() int64 {
	if s.By >= BootRecords {
		return s.Counted
	}
	return s.Shown
}

// usualSectors reports whether partitions can move in sectors of a size, which images and devices have.
func usualSectors(n int64) bool { return n == 512 || n == 4096 }

// readTable reads the table of a disk, and returns the disk with the sector size of a GPT.
func (l *Layout) readTable(d disk.Disk) (*table.Table, disk.Disk, error) {
	t, err := table.Read(d)
	if err != nil || t.Scheme != table.GPT || t.SectorSize == d.SectorSize() {
		return t, d, err
	}
	l.Sectors.Counted, l.Sectors.By = t.SectorSize, GPTHeader
	if d.Size()%t.SectorSize != 0 {
		return t, d, nil
	}
	l.SectorSize = t.SectorSize
	d = disk.InSectors(d, t.SectorSize)
	t, err = table.Read(d) // its MBR counts the same sectors
	return t, d, err
}

// checkSectors refuses a move if the table counts sectors of another size than the disk presents. A GPT states its own
// size, and its partitions move in that unit.
func (l *Layout) checkSectors() {
	n, gpt := l.Sectors.Counted, l.Sectors.By == GPTHeader
	if n == l.Sectors.Shown || (gpt && usualSectors(n) && l.Size%n == 0) {
		return
	}
	found := fmt.Sprintf("the boot records and file systems are where the partition table puts them in sectors of "+
		"%d bytes", n)
	if gpt {
		found = fmt.Sprintf("the GPT counts sectors of %d bytes", n)
	}
	i := ondisk.Issue{Code: "sector-size", Effect: ondisk.Refuse, OnMove: true}
	switch {
	case l.Size%n != 0:
		i.Text = fmt.Sprintf("the GPT counts sectors of %d bytes, but the size of the disk, %d bytes, is not a "+
			"multiple of that", n, l.Size)
		i.Remedy = fmt.Sprintf("copy the whole image from its source again, or cut off the bytes behind the disk "+
			"(truncate -s %d)", units.AlignDown(l.Size, n))
	case !usualSectors(n):
		i.Text = fmt.Sprintf("the partition table counts sectors of %d bytes, but trueup moves partitions only in "+
			"sectors of 512 and 4096 bytes", n)
		i.Remedy = fmt.Sprintf("move the partitions in the guest; trueup convert --to raw copies the disk as it "+
			"is, for a machine that presents sectors of %d bytes", n)
	default:
		i.Text = fmt.Sprintf("the partitions would move in sectors of %d bytes, but the file systems are "+
			"positioned in sectors of %d bytes and would stay behind", l.Sectors.Shown, n)
		i.Remedy = fmt.Sprintf("if the image is raw, add --sector-size %d; an image of another format lacks the "+
			"sector size, so convert it with --to raw first", n)
	}
	note := ondisk.Issue{
		Code: "sector-size", Effect: ondisk.Note, Remedy: i.Remedy,
		Text: fmt.Sprintf("%s, but the disk is presented with sectors of %d bytes: configure the machine to "+
			"present sectors of %d bytes", found, l.Sectors.Shown, n),
	}
	if l.Sectors.By == DataAlone {
		i.Code = sectorsUnsure
		i.Remedy += fmt.Sprintf(". If the machine does present sectors of %d bytes: --sector-size "+
			"%[1]d", l.Sectors.Shown)
	}
	l.Issues = append(l.Issues, note, i)
}

// offSector warns of a container whose data start inside a sector. Source: Linux, drivers/md/dm-table.c:
// device_area_is_invalid; drivers/md/md.c: super_1_load.
func (l *Layout) offSector(partition int, v *volume.Volume) {
	size := l.Sectors.Size()
	if identify.Traits(v.Kind).Precedence == 0 || v.DataStart%size == 0 {
		return
	}
	l.Issues = append(l.Issues, ondisk.Issue{
		Code: CodeVolumeSectors, Effect: ondisk.Warn, Partition: partition,
		Text: fmt.Sprintf("the data of the %s start at its byte %d, and the disk has sectors of %d bytes: Linux does "+
			"not open it", v.Kind, v.DataStart, size),
		Remedy: "create it again on a disk with such sectors, and copy the files",
	})
}

// CodeVolumeSectors is the code of the warning about a volume with another sector size than the disk.
const CodeVolumeSectors = "volume-sector-size"

// strangeVolumes warns of volumes with another sector size than the disk, which few systems mount. Spec: exFAT
// specification, 3.1.14, BytesPerSectorShift. Linux rejects sectors smaller than the disk's: fs/fat/inode.c:
// fat_fill_super, fs/exfat/super.c: exfat_calibrate_blocksize, fs/xfs/xfs_buf.c: xfs_setsize_buftarg.
func (l *Layout) strangeVolumes(d disk.Disk, probe prober) error {
	m, all := meter(d, 0), l.Partitions
	if l.Volume != nil {
		all = []boot.Partition{{Partition: table.Partition{Range: disk.Range{Len: l.Size}}, Volume: l.Volume}}
	}
	for _, p := range all {
		r := p.Range
		for v := p.Volume; v != nil; v = v.Content {
			l.offSector(p.Number, v)
			if err := l.strangeInLVM(m, r, probe, p.Number, v); err != nil {
				return err
			}
			r.Off, r.Len = r.Off+v.DataStart, r.Len-v.DataStart
		}
		l.strange(p.Number, p.Volume.Innermost(), "")
	}
	return nil
}

// strangeInLVM warns of the volumes in the contiguous logical volumes of a physical volume, which covers a range of the
// disk. On sectors of 512 bytes each volume has large enough blocks.
func (l *Layout) strangeInLVM(m *metered, r disk.Range, probe prober, partition int, pv *volume.Volume) error {
	if pv.Kind != volume.LVM2 || l.Sectors.Size() == units.SectorSize {
		return nil
	}
	for _, lv := range pv.Parts {
		if _, full := m.exhausted(partition); full {
			break
		}
		if lv.Start < 0 || lv.Start+lv.Size > r.Len || r.End() > m.Size() {
			continue
		}
		in := disk.Range{Off: r.Off + lv.Start, Len: lv.Size}
		v, err := probe(disk.Section(m, in), in.Off)
		if err != nil {
			return fmt.Errorf("logical volume %s: %w", lv.Name, err)
		}
		m.count(v)
		l.strange(partition, v.Innermost(), " in the logical volume "+lv.Name)
	}
	return nil
}

// strange warns of a volume inside a partition, or inside the whole disk if partition is 0. A volume elsewhere than at
// the start has its place in the text.
func (l *Layout) strange(partition int, v *volume.Volume, place string) {
	kind, n, size, unit := v.Kind, v.SectorSize, l.Sectors.Size(), "sectors"
	switch b := v.Boot; {
	case n == 0 && b != nil:
		kind, n = b.Kind, b.SectorSize
	case n == 0 && v.BlockSize < size: // systems read whole blocks
		n, unit = v.BlockSize, "blocks"
	}
	fits, mounts := n, "neither Windows nor Linux mounts it"
	if unit == "blocks" {
		fits = units.SectorSize
	}
	switch windows := identify.Traits(kind).Letter; {
	case n == 0 || n == size || (n > size && !windows):
		return
	case n > size:
		mounts = "Windows does not mount it"
	case !windows:
		mounts = "Linux does not mount it"
	}
	l.Issues = append(l.Issues, ondisk.Issue{
		Code: CodeVolumeSectors, Effect: ondisk.Warn, Partition: partition,
		Text: fmt.Sprintf("the %s%s has %s of %d bytes, but the disk has sectors of %d bytes: %s", kind, place, unit,
			n, size, mounts),
		Remedy: fmt.Sprintf("copy the volume onto a disk with sectors of %d bytes, or its files into a new file system",
			fits),
	})
}

// sectorsUnsure is the code of a refusal based only on data at the places of the other sector size.
const sectorsUnsure = "sector-size-unsure"

// InSectors returns the patches that make the table of the disk count sectors of n bytes. A FAT with smaller sectors
// gets such sectors too, if its areas allow that, since no system mounts it otherwise.
func (l *Layout) InSectors(d disk.Disk, n int64) (out []disk.Patch, err error) {
	add := func(r disk.Range, v *volume.Volume) error {
		if v.Boot == nil || v.Boot.SectorSize >= n || !slices.Contains(fatKinds, v.Kind) {
			return nil
		}
		found, err := fat.InSectors(disk.Section(d, r), r.Off, n)
		for _, x := range found {
			x.Off += r.Off
			out = append(out, x)
		}
		return err
	}
	if l.Table == nil {
		return out, add(disk.Range{Len: l.Size}, l.Volume)
	}
	if out, err = l.Table.InSectors(d, n, l.Geometry); err != nil {
		return nil, err
	}
	for _, p := range l.Partitions {
		if err := add(p.Range, p.Volume); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(out, func(a, b disk.Patch) int { return cmp.Compare(a.Off, b.Off) })
	return out, nil
}

var fatKinds = []volume.Kind{volume.FAT12, volume.FAT16, volume.FAT32}

// AcceptSectorSize turns a refusal without better evidence (a boot record, a volume or a copy of one) into a
// warning: the user has given the size.
func (l *Layout) AcceptSectorSize() {
	for i, issue := range l.Issues {
		if issue.Code == sectorsUnsure {
			l.Issues[i].Effect = ondisk.Warn
		}
	}
}

// fitting finds the sector size that explains most places in the MBR. If several explain as many, the disk's own size
// wins.
func (l *Layout) fitting(d disk.Disk) error {
	if l.Table.Scheme != table.MBR || l.Sectors.By != NoEvidence || !l.unexplained() {
		return nil
	}
	best := evidence{}
	for _, p := range l.Partitions {
		if err := best.add(d, p.Partition, p.Volume, l.SectorSize); err != nil {
			return err
		}
	}
	best.records(l.Table)
	for _, n := range disk.SectorSizes {
		if n == l.SectorSize || d.Size()%n != 0 {
			continue
		}
		e, err := explain(disk.InSectors(d, n), n)
		switch {
		case err != nil:
			return err
		case !e.beats(best) || e.sure == 0 && !usualSectors(n):
			continue
		case e.sure > 0:
			l.Sectors.By = BootRecords
		default:
			l.Sectors.By = DataAlone
		}
		best, l.Sectors.Counted = e, n
	}
	return nil
}

// unexplained reports whether the table leads to unknown content, or is broken.
func (l *Layout) unexplained() bool {
	return !l.Table.Plausible() || slices.ContainsFunc(l.Partitions,
		func(p boot.Partition) bool { return p.Kind != table.Extended && p.Volume.Kind == volume.Unknown }) ||
		slices.ContainsFunc(l.Table.Records, func(r table.Record) bool { return r.Blank })
}

// evidence counts the evidence for a sector size.
type evidence struct {
	sure  int // boot records, volumes and copies of boot sectors at the places in the table
	own   int // of these, the ones that state this size
	edges int // partitions of unknown content that start with data right after zeros
	begun int // partitions of unknown content whose first sectors are not zero
}

// beats reports whether e is the better evidence. Without anything sure, a start in the middle of data counts less than
// a start of data after zeros: a wrong size hits data by chance.
func (e evidence) beats(o evidence) bool {
	switch {
	case e.sure != o.sure:
		return e.sure > o.sure
	case e.sure > 0:
		return e.own > o.own
	case e.edges != o.edges:
		return e.edges > o.edges
	}
	return e.begun > o.begun
}

// explain counts the evidence for the sector size of d. An implausible table has none.
func explain(d disk.Disk, sector int64) (e evidence, err error) {
	t, err := table.Read(d)
	switch {
	case errors.Is(err, ondisk.ErrNoMatch) || errors.Is(err, ondisk.ErrFormat):
		return e, nil
	case err != nil || !t.Plausible():
		return e, err
	}
	e.records(t)
	m := meter(d, len(t.Partitions))
	for _, p := range t.Partitions {
		if _, full := m.exhausted(p.Number); full {
			break
		}
		v := &volume.Volume{Kind: volume.Unknown}
		if p.Kind != table.Extended {
			if v, err = identify.Probe(disk.Section(m, p.Range), p.Off); err != nil {
				return e, err
			}
		}
		if err := e.add(d, p, v, sector); err != nil {
			return e, err
		}
	}
	return e, nil
}

// records counts the existing extended boot records.
func (e *evidence) records(t *table.Table) {
	for _, r := range t.Records {
		if !r.Blank {
			e.sure++
		}
	}
}

// beginning is the number of bytes read at the start of a partition without other evidence.
const beginning = 64 * units.KiB

// add counts a partition as evidence for a sector size, by its volume or a copy of its boot sector.
func (e *evidence) add(d disk.Disk, p table.Partition, v *volume.Volume, sector int64) error {
	if p.Kind == table.Extended || p.End() > d.Size() || p.Len < sector {
		return nil
	}
	copied, err := bootCopy(d, p.Range, sector)
	if err != nil {
		return err
	}
	if v.Kind == volume.Unknown && !copied {
		copied, err = extCopy(d, p.Range)
	}
	if err != nil {
		return err
	}
	if v.Boot != nil && v.Boot.SectorSize == sector {
		e.own++
	}
	if v.Kind != volume.Unknown || copied {
		e.sure++
		return nil
	}
	return e.unknown(disk.InSectors(d, units.SectorSize), p.Range)
}

// unknown counts a partition of unknown content.
func (e *evidence) unknown(d disk.Disk, r disk.Range) error {
	r.Len = min(r.Len, beginning)
	zeros, err := countZeros(d, r, false)
	if err != nil || zeros == r.Len {
		return err
	}
	e.begun++
	if zeros > 0 || r.Off < units.SectorSize {
		return nil
	}
	front, err := countZeros(d, disk.Range{Off: r.Off - units.SectorSize, Len: units.SectorSize}, false)
	if err == nil && front > 0 {
		e.edges++
	}
	return err
}

// bootCopy reports whether a partition has the copy of a boot sector at the place for NTFS or FAT32: in the last
// sector, or in sector 6. Spec: Linux-NTFS documentation, "$Boot"; Microsoft FAT specification 1.03, BPB_BkBootSec.
func bootCopy(d disk.Disk, r disk.Range, sector int64) (bool, error) {
	for _, c := range []struct {
		at   int64 // in the partition
		name int   // offset of the mark in the sector
		mark string
	}{{r.Len - sector, 3, "NTFS    "}, {6 * sector, 0x52, "FAT32   "}} {
		if c.at+sector > r.Len {
			continue
		}
		b, err := ondisk.Bytes(d, r.Off+c.at, 512)
		if err != nil {
			return false, err
		}
		size := int64(binary.LittleEndian.Uint16(b[0x0b:]))
		if size == sector && string(b[c.name:c.name+len(c.mark)]) == c.mark && b[510] == 0x55 && b[511] == 0xaa {
			return true, nil
		}
	}
	return false, nil
}

// extCopy reports whether a partition has the copy of an ext superblock in group 1, for blocks of 1, 2 and 4 KiB. Spec:
// Linux, Documentation/filesystems/ext4, "The Super Block".
func extCopy(d disk.Disk, r disk.Range) (bool, error) {
	const atMagic, magic, atGroup = 0x38, 0xef53, 0x5a
	for _, at := range []int64{8193 * units.KiB, 16384 * 2 * units.KiB, 32768 * 4 * units.KiB} {
		if at+units.KiB > r.Len {
			continue
		}
		b, err := ondisk.Bytes(d, r.Off+at, units.KiB)
		if err != nil {
			return false, err
		}
		if binary.LittleEndian.Uint16(b[atMagic:]) == magic && binary.LittleEndian.Uint16(b[atGroup:]) == 1 {
			return true, nil
		}
	}
	return false, nil
}

// lostRecords reports extended partitions that begin with zeros instead of a boot record, and hold data.
func (l *Layout) lostRecords(d disk.Disk) error {
	for _, r := range l.Table.Records {
		box, _ := l.Partition(r.Box)
		if !r.Blank || box.End() > d.Size() {
			continue
		}
		left := gapLimit
		at, err := firstData(d, box.Range, &left)
		if err != nil {
			return err
		}
		if at == box.End() {
			continue
		}
		l.Issues = append(l.Issues, ondisk.Issue{
			Code: "empty-boot-record", Effect: ondisk.Warn, Partition: r.Box,
			Text: fmt.Sprintf("the boot record at byte %d, the start of the chain of logical partitions, is zero, "+
				"but there are data behind it from byte %d on: no system sees a logical partition there", r.Off, at),
			Remedy: "if logical partitions are missing, restore the boot record (testdisk) or read the disk with " +
				"another --sector-size before any move",
		})
	}
	return nil
}
