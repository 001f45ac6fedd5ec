package table

import (
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// MaxLBA is the largest LBA that an entry of an MBR can hold.
const MaxLBA = 1<<32 - 1

// relocateMBR rewrites the entries of sector 0 and of the chains.
func (t *Table) relocateMBR(to Places, g Geometry) []disk.Patch {
	var out []disk.Patch
	for _, p := range t.Partitions {
		r := to.rangeOf(p)
		if p.Kind == Logical {
			continue // with its record
		}
		e := t.moved(p.raw, p.Range, r, 0, g)
		out = append(out, diff(p.entry, p.raw, e, "partition table", "partition "+number(p.Number))...)
	}
	for _, r := range t.Records {
		out = append(out, t.relocateRecord(r, to, g)...)
	}
	return out
}

func (to Places) rangeOf(p Partition) disk.Range {
	if r, ok := to.Parts[p.Number]; ok {
		return r
	}
	return p.Range
}

func (to Places) record(off int64) int64 {
	if n, ok := to.Records[off]; ok {
		return n
	}
	return off
}

// moved returns an entry for a partition that went from one range to another. Its start counts from base, in bytes.
func (t *Table) moved(e mbrEntry, from, now disk.Range, base int64, g Geometry) mbrEntry {
	if now.Off != from.Off {
		chs, ok := g.encode(now.Off / t.SectorSize)
		if full, _ := pack(maxCylinder, int64(g.Heads-1), int64(g.Sectors)); !ok && e.StartCHS == full {
			chs = full // another way to write "beyond CHS", kept as found
		}
		e.StartCHS = chs
	}
	if now.End() != from.End() {
		e.EndCHS = g.lastOfCylinder(now.End()/t.SectorSize-1, e.EndCHS)
	}
	e.StartLBA = ondisk.U32((now.Off - base) / t.SectorSize)
	if now.Len != from.Len {
		e.Sectors = ondisk.U32(now.Len / t.SectorSize)
	}
	return e
}

// relocateRecord rewrites the two entries of an extended boot record: the logical partition counts from the record, the
// link from the begin of the extended partition.
func (t *Table) relocateRecord(r Record, to Places, g Geometry) []disk.Patch {
	now := to.record(r.Off)
	var out []disk.Patch
	if p, ok := t.find(r.Logical); ok {
		e := t.moved(p.raw, p.Range, to.rangeOf(p), now, g)
		out = append(out, diff(now+p.entry-r.Off, p.raw, e, "extended boot record", "partition "+number(p.Number))...)
	}
	if r.next == nil {
		return out
	}
	box, _ := t.find(r.Box)
	base := to.rangeOf(box).Off
	was := disk.Range{Off: r.next.Off, Len: int64(r.link.Sectors) * t.SectorSize}
	is := disk.Range{Off: to.record(r.next.Off)}
	is.Len = t.spanEnd(r, was.End(), to) - is.Off
	e := t.moved(r.link, was, is, base, g)
	return append(out, diff(now+r.linkAt-r.Off, r.link, e, "extended boot record",
		fmt.Sprintf("link of extended partition %d", r.Box))...)
}

// spanEnd returns where the length of a link leads to: to the end of the next logical partition, as the specification
// has it, or of the whole extended partition, or to a place of the maker's own liking. was is the old one.
func (t *Table) spanEnd(r Record, was int64, to Places) int64 {
	box, _ := t.find(r.Box)
	p, ok := t.find(r.next.Logical)
	record := to.record(r.next.Off)
	shift := record - r.next.Off
	if ok && was >= p.End() { // shorter ones say nothing of the partition, which can move less far than its record
		shift = to.rangeOf(p).End() - p.End()
	}
	end := to.rangeOf(box).End()
	switch {
	case ok && was == p.End():
		return was + shift
	case was == box.End():
		return end
	case was < box.End():
		return min(was+shift, end)
	}
	return min(was+shift, record+MaxLBA*t.SectorSize) // it led out of the extended partition before
}

// find returns a partition by number; there is none with number 0.
func (t *Table) find(n int) (Partition, bool) {
	for _, p := range t.Partitions {
		if p.Number == n {
			return p, true
		}
	}
	return Partition{}, false
}

// diff makes one patch of each field of an entry that changed. at is the byte offset of the entry in the result.
func diff(at int64, was, now mbrEntry, where, what string) []disk.Patch {
	a, b := was.bytes(), now.bytes()
	var out []disk.Patch
	for _, f := range []struct {
		at, n int64
		name  string
	}{{1, 3, "start CHS"}, {5, 3, "end CHS"}, {8, 4, "start LBA"}, {12, 4, "sector count"}} {
		if string(a[f.at:f.at+f.n]) != string(b[f.at:f.at+f.n]) {
			out = append(out, disk.Patch{
				Off: at + f.at, Old: a[f.at : f.at+f.n], New: b[f.at : f.at+f.n],
				Reason: fmt.Sprintf("%s: %s of %s", where, f.name, what),
			})
		}
	}
	return out
}
