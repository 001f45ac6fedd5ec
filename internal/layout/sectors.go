package layout

import (
	"encoding/binary"
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

// checkSectors reports a table that counts sectors of another size than the disk is read with: a raw image does not
// state its sector size.
func (l *Layout) checkSectors(d disk.Disk) error {
	size, sure, found := l.Table.SectorSize, true, "the GPT counts sectors of %d bytes"
	if l.Table.Scheme == table.MBR {
		found = "the partition table makes sense in sectors of %d bytes: that is where its boot records and " +
			"file systems are"
		var err error
		if size, sure, err = l.fitting(d); err != nil {
			return err
		}
	}
	if size == l.SectorSize {
		return nil
	}
	remedy := fmt.Sprintf("--sector-size %d, if the image is raw; an image of another format was made without its "+
		"sector size, convert it with --to raw first", size)
	l.Issues = append(l.Issues, ondisk.Issue{
		Code: "sector-size", Effect: ondisk.Note, Remedy: remedy,
		Text: fmt.Sprintf(found+", and the disk is read in those of %d: a machine must be told to show it with %d",
			size, l.SectorSize, size),
	})
	if l.Table.Scheme == table.MBR {
		// A GPT is found by its own sector size; the LBAs of an MBR would lead to the wrong bytes.
		code := "sector-size"
		if !sure {
			code, remedy = sectorsUnsure, fmt.Sprintf("%s. If the machine does show it with %d: --sector-size %[2]d",
				remedy, l.SectorSize)
		}
		l.Issues = append(l.Issues, ondisk.Issue{
			Code: code, Effect: ondisk.Refuse, OnMove: true, Remedy: remedy,
			Text: fmt.Sprintf("the partitions would be moved by sectors of %d bytes, and the file systems found in "+
				"those of %d would stay behind", l.SectorSize, size),
		})
	}
	return nil
}

// sectorsUnsure is the code of a refusal whose only evidence is data where the other sector size expects it.
const sectorsUnsure = "sector-size-unsure"

// SectorsAreAsOrdered turns a refusal without better evidence, a boot record, a volume or a copy of one, into a
// warning: the user has given the size.
func (l *Layout) SectorsAreAsOrdered() {
	for i, issue := range l.Issues {
		if issue.Code == sectorsUnsure {
			l.Issues[i].Effect = ondisk.Warn
		}
	}
}

// fitting returns the sector size that explains more of what the MBR names; if both explain as much, that of the disk.
// sure reports whether more than data supports it.
func (l *Layout) fitting(d disk.Disk) (size int64, sure bool, err error) {
	own, other := l.SectorSize, 512+4096-l.SectorSize
	if d.Size()%other != 0 || !l.unexplained() {
		return own, true, nil
	}
	mine := evidence{}
	for _, p := range l.Partitions {
		if err := mine.add(d, p.Partition, p.Volume.Kind, own); err != nil {
			return 0, false, err
		}
	}
	mine.records(l.Table)
	theirs, err := explain(inSectors(d, other), other)
	if err != nil || !theirs.beats(mine) {
		return own, true, err
	}
	return other, theirs.sure > 0, nil
}

// unexplained reports whether the table leads to unknown content.
func (l *Layout) unexplained() bool {
	return slices.ContainsFunc(l.Partitions,
		func(p boot.Partition) bool { return p.Kind != table.Extended && p.Volume.Kind == volume.Unknown }) ||
		slices.ContainsFunc(l.Table.Records, func(r table.Record) bool { return r.Blank })
}

// inSectors reads a disk in sectors of another size.
func inSectors(d disk.Disk, sector int64) disk.Disk {
	return disk.New(d.Size(), sector, func(off int64) (disk.Run, error) {
		return disk.Run{Len: d.Size() - off, Src: d, Off: off}, nil
	})
}

// evidence counts what supports a sector size.
type evidence struct {
	sure  int // boot records, volumes and copies of boot sectors where the table says that they are
	begun int // partitions whose first sectors are not zero, whatever they hold
}

func (e evidence) beats(o evidence) bool {
	return e.sure > o.sure || (e.sure == 0 && o.sure == 0 && o.begun == 0 && e.begun > 0)
}

// explain counts the evidence for the sectors by which d is read. A table that makes no sense in them has none.
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
		kind := volume.Unknown
		if p.Kind != table.Extended {
			v, err := identify.Probe(disk.Section(m, p.Range), p.Off)
			if err != nil {
				return e, err
			}
			kind = v.Kind
		}
		if err := e.add(d, p, kind, sector); err != nil {
			return e, err
		}
	}
	return e, nil
}

// records counts the extended boot records that exist.
func (e *evidence) records(t *table.Table) {
	for _, r := range t.Records {
		if !r.Blank {
			e.sure++
		}
	}
}

// beginning is the length of the start of a partition that is read without other evidence.
const beginning = 64 * units.KiB

// add counts a partition that holds a volume of a kind.
func (e *evidence) add(d disk.Disk, p table.Partition, kind volume.Kind, sector int64) error {
	if p.Kind == table.Extended || p.End() > d.Size() || p.Len < sector {
		return nil
	}
	copied, err := bootCopy(d, p.Range, sector)
	if err != nil {
		return err
	}
	if kind == volume.Unknown && !copied {
		copied, err = extCopy(d, p.Range)
	}
	if err != nil {
		return err
	}
	if kind != volume.Unknown || copied {
		e.sure++
		return nil
	}
	r := disk.Range{Off: p.Off, Len: min(p.Len, beginning)}
	zeros, err := leadingZeros(inSectors(d, 512), r)
	if err == nil && zeros < r.Len {
		e.begun++
	}
	return err
}

// bootCopy reports whether a partition has the copy of a boot sector where NTFS and FAT32 keep it: in the last sector,
// or in sector 6. Spec: Linux-NTFS documentation, "$Boot"; Microsoft FAT specification 1.03, BPB_BkBootSec.
func bootCopy(d disk.Disk, r disk.Range, sector int64) (bool, error) {
	for _, c := range []struct {
		at   int64 // in the partition
		name int   // place of the mark in the sector
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

// extCopy reports whether a partition has the copy of an ext superblock that stands in group 1, for blocks of 1, 2 and
// 4 KiB. Spec: Linux, Documentation/filesystems/ext4, "The Super Block".
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
			Text: fmt.Sprintf("the boot record at byte %d, where its chain of logical partitions begins, is zero, "+
				"and there are data in it from byte %d on: "+
				"no system sees a logical partition there", r.Off, at),
			Remedy: "if logical partitions are missing, restore the boot record (testdisk) or read the disk with " +
				"another --sector-size before anything is moved",
		})
	}
	return nil
}
