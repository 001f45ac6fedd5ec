package table

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// maxLogical limits the chain of logical partitions. Windows stops at 24 letters, Linux at 59 device numbers.
const maxLogical = 256

// firstLogical is the number of the first logical partition in Linux.
const firstLogical = 5

// Record is an extended boot record: a sector with at most one logical partition, and a link to the next record.
type Record struct {
	Off     int64 // bytes of the disk
	Box     int   // number of the extended partition
	Logical int   // number of the logical partition (the first of several), 0 without one
	Blank   bool  // the sector is zero: never formatted, or lost

	next   *Record // nil at the end of the chain
	link   mbrEntry
	linkAt int64 // byte offset of the link's entry
}

// readLogical walks the chain of every extended partition. On error, the records read so far are kept.
func (m *mbr) readLogical(d disk.Disk) {
	for _, p := range m.containers() {
		m.lost = m.lost || p.Kind == Extended && p.Off >= d.Size()
		if p.Kind != Extended || p.Off == 0 || p.Off >= d.Size() || p.Len == 0 {
			continue // reported by checkRanges
		}
		w := chain{m: m, d: d, box: p, link: p.entry + atStartLBA, span: p.Len, seen: map[int64]bool{}}
		for off := p.Off; off != 0; {
			off = w.step(off)
		}
		for i := range w.records {
			if i+1 < len(w.records) {
				w.records[i].next = &w.records[i+1]
			}
		}
		m.Records = append(m.Records, w.records...)
		w.checkPlaces()
	}
}

// chain is the state of a walk over extended boot records. Each holds one logical partition and a link to the next
// record.
type chain struct {
	m    *mbr
	d    disk.Disk
	box  Partition // the extended partition
	link int64     // byte offset of the link to the current record
	seen map[int64]bool
	span int64      // length in the link to the current record, bytes; first the length of the extended partition
	last disk.Range // the previous logical partition

	records []Record
	parts   []Partition
}

// step reads the record at off and returns the offset of the next record, or 0 at the end.
func (c *chain) step(off int64) int64 {
	lba := off / c.m.SectorSize
	switch {
	case c.seen[off]:
		c.broken(c.link, "link", fmt.Sprintf("LBA %d", lba),
			fmt.Sprintf("a record that was not visited: the chain returns to LBA %d", lba))
		return 0
	case off < c.box.Off || off > c.box.End()-c.m.SectorSize:
		c.broken(c.link, "link", fmt.Sprintf("LBA %d", lba), fmt.Sprintf("LBA %d to %d, inside the extended partition",
			c.box.Off/c.m.SectorSize, c.box.End()/c.m.SectorSize-1))
		return 0
	case off > c.d.Size()-c.m.SectorSize:
		c.m.lost = true
		c.m.pastEnd(func() {
			c.broken(c.link, "link", fmt.Sprintf("LBA %d", lba),
				fmt.Sprintf("at most %d, the last sector of the disk", c.d.Size()/c.m.SectorSize-1))
		})
		return 0
	case len(c.records) == maxLogical:
		err := fmt.Errorf("ebr at %#x: more than %d logical partitions: %w", off, maxLogical, ondisk.ErrLimit)
		c.m.Issues = append(c.m.Issues,
			ondisk.Issue{Code: "table", Effect: ondisk.Broken, Partition: c.box.Number, Text: err.Error(), Err: err})
		return 0
	case c.last.Overlaps(disk.Range{Off: off, Len: c.m.SectorSize}):
		c.broken(c.link, "link", fmt.Sprintf("LBA %d", lba), "a place outside of the logical partition before it")
		return 0
	}
	c.seen[off] = true
	return c.record(off)
}

func (c *chain) record(off int64) int64 {
	var s mbrSector
	raw, err := ondisk.Decode(c.d, off, &s)
	if err != nil {
		c.m.Issues = append(c.m.Issues,
			ondisk.Issue{Code: "table", Effect: ondisk.Broken, Partition: c.box.Number, Text: err.Error(), Err: err})
		return 0
	}
	if off == c.box.Off && ondisk.IsZero(raw) {
		// never formatted: no logical partition
		c.records = append(c.records, Record{Off: off, Box: c.box.Number, Blank: true})
		return 0
	}
	if s.Magic != mbrMagic {
		c.broken(off+atMagic, "signature", fmt.Sprintf("%#04x", s.Magic), "0xaa55")
		return 0
	}
	r := Record{Off: off, Box: c.box.Number}
	next, odd := int64(0), false
	for i, e := range s.Entries {
		at := off + atEntries + int64(i)*entrySize
		switch {
		case isExtended(e.Type) && e.Sectors == 0 && e.StartLBA != 0:
			c.emptyLink(at, e)
		case e.Type == typeUnused:
			c.m.unnamed(at, e, off, c.box.Range)
		case e.Sectors == 0:
		case isExtended(e.Type) && next != 0:
			c.broken(at, "entry", "a second link", "one link at most")
		case isExtended(e.Type):
			// A link counts from the start of the extended partition.
			next = c.box.Off + int64(e.StartLBA)*c.m.SectorSize
			c.link, r.link, r.linkAt = at+atStartLBA, e, at
		default:
			odd = odd || i >= 2 || r.Logical != 0
			if i < 2 || c.fits(off, e) {
				r.Logical = cmp.Or(r.Logical, c.add(off, at, e))
			}
		}
	}
	if odd {
		c.oddEntries(off)
	}
	c.records, c.span = append(c.records, r), int64(r.link.Sectors)*c.m.SectorSize
	return next
}

// fits reports whether Linux accepts a data entry in the third or fourth slot of the record at off. Linux ignores an
// entry outside of the record's link or the extended partition. Source: Linux, block/partitions/msdos.c:
// parse_extended.
func (c *chain) fits(off int64, e mbrEntry) bool {
	r := disk.Range{Off: int64(e.StartLBA) * c.m.SectorSize, Len: int64(e.Sectors) * c.m.SectorSize}
	return r.End() <= c.span && c.box.Contains(disk.Range{Off: off + r.Off, Len: r.Len})
}

// oddEntries reports that the partitions of the record at off cannot move, since systems read its entries differently.
func (c *chain) oddEntries(off int64) {
	c.m.report(ondisk.Issue{
		Code: "ebr-entries", Effect: ondisk.Refuse, OnMove: true,
		Text: fmt.Sprintf("the boot record at LBA %d (byte %#x) has a second data entry, or one in its third or "+
			"fourth slot: Linux reads all valid entries, DOS and sfdisk only the first, and a move cannot preserve "+
			"both", off/c.m.SectorSize, off),
		Remedy: "recreate the logical partitions of this record in the guest, each with its own boot record; " +
			"trueup convert copies the disk as it is",
	})
}

// emptyLink reports a link with an LBA but without sectors. Readers disagree about the end of such a chain.
func (c *chain) emptyLink(at int64, e mbrEntry) {
	c.m.report(ondisk.Issue{
		// for the move of any partition: it could overwrite the hidden ones
		Code: "ebr-link", Effect: ondisk.Refuse, OnMove: true,
		Text: fmt.Sprintf("the link at %#x names a boot record at LBA %d but has 0 sectors: the chain ends there "+
			"for Linux, but not for libfdisk", at, c.box.Off/c.m.SectorSize+int64(e.StartLBA)),
		Remedy: "check in the guest that no logical partition is missing, and rewrite the table (sfdisk --dump, " +
			"then sfdisk)",
	})
}

// add adds a logical partition and returns its number. The start counts from its own record.
func (c *chain) add(off, at int64, e mbrEntry) int {
	number := firstLogical
	for _, p := range c.m.Partitions {
		if p.Kind == Logical {
			number++
		}
	}
	p := Partition{
		Number: number, Kind: Logical, Type: e.Type, Active: e.Flag == 0x80, entry: at, raw: e,
		Range: disk.Range{Off: off + int64(e.StartLBA)*c.m.SectorSize, Len: int64(e.Sectors) * c.m.SectorSize},
	}
	if e.StartLBA == 0 || !c.box.Contains(p.Range) {
		c.m.brokenIn("ebr", at+atStartLBA, p.Number, "start LBA", e.StartLBA,
			"a place behind its record and inside the extended partition")
	} else if p.End() > c.d.Size() {
		c.m.endsPastDisk("ebr", p, c.d.Size())
	}
	c.last = p.Range
	c.parts = append(c.parts, p)
	c.m.Partitions = append(c.m.Partitions, p)
	return p.Number
}

// checkPlaces reports logical partitions that overlap each other or any record of the chain.
func (c *chain) checkPlaces() {
	type place struct {
		disk.Range
		at, number int64
		what       string
	}
	var all []place
	for _, r := range c.records {
		all = append(all, place{
			disk.Range{Off: r.Off, Len: c.m.SectorSize},
			r.Off, int64(c.box.Number),
			"the boot record at LBA " + strconv.FormatInt(r.Off/c.m.SectorSize, 10),
		})
	}
	for _, p := range c.parts {
		all = append(all, place{p.Range, p.entry + atStartLBA, int64(p.Number), "partition " + number(p.Number)})
	}
	slices.SortStableFunc(all, func(a, b place) int { return cmp.Compare(a.Off, b.Off) })
	end := place{}
	for _, x := range all {
		if x.Off < end.End() {
			c.m.brokenIn("ebr", x.at, int(x.number), "place",
				fmt.Sprintf("LBA %d to %d (%s)", x.Off/c.m.SectorSize, x.End()/c.m.SectorSize-1, x.what),
				"a place apart from "+end.what)
		}
		if x.End() > end.End() {
			end = x
		}
	}
}

func (c *chain) broken(off int64, field string, got, want any) {
	c.m.brokenIn("ebr", off, c.box.Number, field, got, want)
}
