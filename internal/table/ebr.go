package table

import (
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// maxLogical bounds the chain of logical partitions. Windows stops at 24 letters, Linux at 59 device numbers.
const maxLogical = 256

// firstLogical is the number that the first logical partition has in Linux.
const firstLogical = 5

// readLogical walks the chain of every extended partition. A chain that breaks keeps what was read of it.
func (m *mbr) readLogical(d disk.Disk) {
	for _, p := range m.Containers() {
		if p.Kind != Extended || p.Off == 0 || p.End() > d.Size() {
			continue // said by checkRanges
		}
		w := chain{m: m, d: d, box: p, link: p.entry + atStartLBA, seen: map[int64]bool{}}
		for off := p.Off; off != 0; {
			off = w.step(off)
		}
	}
}

// chain is a walk over extended boot records: each holds one logical partition and a link to the next record.
type chain struct {
	m    *mbr
	d    disk.Disk
	box  Partition // the extended partition
	link int64     // byte offset of the field that led to the record in work
	seen map[int64]bool
	n    int
	last disk.Range // the logical partition before
}

// step reads the record at off and gives the place of the next one, 0 at the end.
func (c *chain) step(off int64) int64 {
	lba := off / c.m.SectorSize
	switch {
	case c.seen[off]:
		c.broken(c.link, "link", fmt.Sprintf("LBA %d", lba), fmt.Sprintf("a record that was not visited: the chain returns to LBA %d", lba))
		return 0
	case off < c.box.Off || off > c.box.End()-c.m.SectorSize:
		c.broken(c.link, "link", fmt.Sprintf("LBA %d", lba), fmt.Sprintf("LBA %d to %d, inside the extended partition",
			c.box.Off/c.m.SectorSize, c.box.End()/c.m.SectorSize-1))
		return 0
	case c.n == maxLogical:
		err := fmt.Errorf("ebr at %#x: more than %d logical partitions: %w", off, maxLogical, ondisk.ErrLimit)
		c.m.Issues = append(c.m.Issues, ondisk.Issue{Code: "table", Effect: ondisk.Broken, Partition: c.box.Number, Text: err.Error(), Err: err})
		return 0
	case c.last.Overlaps(disk.Range{Off: off, Len: c.m.SectorSize}):
		c.broken(c.link, "link", fmt.Sprintf("LBA %d", lba), "a place outside of the logical partition before it")
		return 0
	}
	c.seen[off] = true
	c.n++
	return c.record(off)
}

func (c *chain) record(off int64) int64 {
	var s mbrSector
	if _, err := ondisk.Decode(c.d, off, &s); err != nil {
		c.m.Issues = append(c.m.Issues, ondisk.Issue{Code: "table", Effect: ondisk.Broken, Partition: c.box.Number, Text: err.Error(), Err: err})
		return 0
	}
	if s.Magic != mbrMagic {
		c.broken(off+atMagic, "signature", fmt.Sprintf("%#04x", s.Magic), "0xaa55")
		return 0
	}
	next := int64(0)
	for i, e := range s.Entries {
		switch {
		case e.Type == typeUnused || e.Sectors == 0:
		case isExtended(e.Type) && next != 0:
			c.broken(off+atEntries+int64(i)*entrySize, "entry", "a second link", "one link at most")
		case isExtended(e.Type):
			// A link counts from the begin of the extended partition.
			next = c.box.Off + int64(e.StartLBA)*c.m.SectorSize
			c.link = off + atEntries + int64(i)*entrySize + atStartLBA
		case i == 0:
			c.add(off, e)
		default:
			c.broken(off+atEntries+int64(i)*entrySize, "entry", fmt.Sprintf("type %#02x", e.Type), "a logical partition in the first entry only")
		}
	}
	return next
}

// add takes a logical partition; its start counts from its own record.
func (c *chain) add(off int64, e mbrEntry) {
	p := Partition{
		Number: firstLogical + c.logicals(), Kind: Logical, Type: e.Type, Active: e.Flag == 0x80, entry: off + atEntries, raw: e,
		Range: disk.Range{Off: off + int64(e.StartLBA)*c.m.SectorSize, Len: int64(e.Sectors) * c.m.SectorSize},
	}
	if e.StartLBA == 0 || !c.box.Contains(p.Range) {
		c.m.brokenIn("ebr", off+atEntries+atStartLBA, p.Number, "start LBA", e.StartLBA,
			"a place behind its record and inside the extended partition")
	}
	c.last = p.Range
	c.m.Partitions = append(c.m.Partitions, p)
}

func (c *chain) logicals() int {
	n := 0
	for _, p := range c.m.Partitions {
		if p.Kind == Logical {
			n++
		}
	}
	return n
}

func (c *chain) broken(off int64, field string, got, want any) {
	c.m.brokenIn("ebr", off, c.box.Number, field, got, want)
}
