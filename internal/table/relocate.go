package table

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// MaxLBA is the largest LBA in an MBR entry.
const MaxLBA = 1<<32 - 1

// relocateMBR rewrites the entries of sector 0 and of the chains.
func (t *Table) relocateMBR(to Places, g Geometry) []disk.Patch {
	var out []disk.Patch
	for _, p := range t.Partitions {
		r := to.rangeOf(p)
		if p.Kind == Logical {
			continue // rewritten with its record
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

// moved returns the entry of a partition that moved between two ranges. Its start counts from base, in bytes.
func (t *Table) moved(e mbrEntry, from, now disk.Range, base int64, g Geometry) mbrEntry {
	if now.Off != from.Off {
		chs, ok := g.encode(now.Off / t.SectorSize)
		if full, _ := pack(maxCylinder, int64(g.Heads-1), int64(g.Sectors)); !ok && e.StartCHS == full {
			chs = full // another encoding of "beyond CHS", kept as found
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
// link from the start of the extended partition.
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

// spanEnd returns the end of a link in the result: the end of the next logical partition, as specified, or of the
// extended partition, or another end chosen by the partitioner. was is the old end.
func (t *Table) spanEnd(r Record, was int64, to Places) int64 {
	box, _ := t.find(r.Box)
	p, ok := t.find(r.next.Logical)
	record := to.record(r.next.Off)
	shift := record - r.next.Off
	if ok && was >= p.End() { // a shorter link is independent of the partition, which can move less far than its record
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
	return min(was+shift, record+MaxLBA*t.SectorSize) // the link already ended past the extended partition
}

// find returns a partition by number. Number 0 has no partition.
func (t *Table) find(n int) (Partition, bool) {
	for _, p := range t.Partitions {
		if p.Number == n {
			return p, true
		}
	}
	return Partition{}, false
}

// entryFields lists the fields of an MBR entry that change when its partition moves.
var entryFields = []field{{1, 3, "start CHS"}, {5, 3, "end CHS"}, {8, 4, "start LBA"}, {12, 4, "sector count"}}

// diff returns a patch for each changed field of an MBR entry. at is the byte offset of the entry in the result.
func diff(at int64, was, now mbrEntry, where, what string) []disk.Patch {
	return changed(at, was.bytes(), now.bytes(), entryFields, func(name string) string {
		return fmt.Sprintf("%s: %s of %s", where, name, what)
	})
}

// field is a part of a structure.
type field struct {
	off, n int64
	name   string
}

// changed returns a patch for each changed field of a structure. at is the byte offset of the structure in the result.
func changed(at int64, was, now []byte, fields []field, reason func(name string) string) (out []disk.Patch) {
	for _, f := range fields {
		if a, b := was[f.off:f.off+f.n], now[f.off:f.off+f.n]; string(a) != string(b) {
			out = append(out, disk.Patch{Off: at + f.off, Old: a, New: b, Reason: reason(f.name)})
		}
	}
	return out
}

// relocateGPT rewrites the entries of moved partitions in both copies, and the headers.
func (t *Table) relocateGPT(to Places, geometry Geometry) []disk.Patch {
	c := t.gpt
	if to.Size == 0 {
		to.Size = c.disk
	}
	entries := t.movedEntries(to)
	grows, mends := to.Size != c.disk, to.Mend && c.damaged()
	if len(entries) == 0 && !grows && !mends {
		return nil
	}
	sum := c.good().header.EntriesCRC ^ c.difference(entries)
	out := make([]disk.Patch, 0, 2*len(entries)+16) // a table can have thousands of entries
	for i, own := range c.valid {
		// Any other copy stays as it is, and a move is refused.
		if own != nil || c.rewrites[i] != nil && (mends || c.backupMoves()) {
			out = append(out, c.relocate(i, entries, sum, to.Size)...)
		}
	}
	switch {
	case t.Hybrid != nil && len(entries) == 0 && !grows: // no slot changes
	case t.Hybrid != nil:
		out = append(out, t.relocateHybrid(to, geometry)...)
	case grows || mends || c.backupMoves(): // the backup is at the end of the disk
		out = append(out, c.protective(to.Size)...)
	}
	return out
}

// relocate returns the patches of one copy, on a disk of size bytes. sum is the checksum of the rewritten array.
func (c *copies) relocate(i int, entries []disk.Patch, sum uint32, size int64) (out []disk.Patch) {
	name, known := copyNames[i], cmp.Or(c.valid[i], c.good())
	at, array := c.places(i, size)
	other, _ := c.places(1-i, size)
	first := ondisk.I64(known.header.FirstUsable) * c.sector
	usable := disk.Range{Off: first, Len: c.usable(size) - first}
	was, now, fields := known.raw, header(known.raw, c.sector, at, other, array, usable, sum), headerFields
	if c.valid[i] == nil {
		entries = c.arrayPatches(c.rewrites[i], entries)
		was, fields = c.rewrites[i].old, []field{{0, int64(len(now)), "header, from the other copy"}}
	}
	for _, e := range entries {
		e.Off, e.Reason = e.Off+array, name+": "+e.Reason
		out = append(out, e)
	}
	return append(out, changed(at, was, now, fields, func(field string) string { return name + ": " + field })...)
}

// movedEntries returns patches of the first and last LBA of moved partitions. Patch offsets count from the array.
func (t *Table) movedEntries(to Places) []disk.Patch {
	var out []disk.Patch
	for _, p := range t.Partitions {
		r := to.rangeOf(p)
		if r == p.Range {
			continue
		}
		lbas := func(r disk.Range) []byte {
			b := binary.LittleEndian.AppendUint64(nil, ondisk.U64(r.Off/t.SectorSize))
			return binary.LittleEndian.AppendUint64(b, ondisk.U64(r.End()/t.SectorSize-1))
		}
		out = append(out, disk.Patch{
			Off: int64(p.Number-1)*int64(t.gpt.good().header.EntrySize) + 32, Old: lbas(p.Range), New: lbas(r),
			Reason: "first and last LBA of partition " + number(p.Number),
		})
	}
	return out
}

// difference returns the effect of the patches on the CRC of the array. A CRC is linear: the CRC of the xor of two
// equally long arrays is the xor of their CRCs and the CRC of zeros. This avoids reading up to 64 MiB of entries again.
func (c *copies) difference(patches []disk.Patch) uint32 {
	size := c.good().array().Len
	changes, zeros := crc32.NewIEEE(), crc32.NewIEEE()
	blank := make([]byte, 16<<10)
	skip := func(n int64) {
		for n > 0 {
			b := blank[:min(n, int64(len(blank)))]
			changes.Write(b)
			n -= int64(len(b))
		}
	}
	at := int64(0)
	for _, p := range patches {
		skip(p.Off - at)
		x := make([]byte, len(p.Old))
		for i := range x {
			x[i] = p.Old[i] ^ p.New[i]
		}
		changes.Write(x)
		at = p.Range().End()
	}
	skip(size - at)
	for n := size; n > 0; n -= int64(len(blank)) {
		zeros.Write(blank[:min(n, int64(len(blank)))])
	}
	return changes.Sum32() ^ zeros.Sum32()
}

// header returns a header in sectors of a size. It keeps unknown fields of the old header.
func header(old []byte, sector, at, other, array int64, usable disk.Range, sum uint32) []byte {
	b := slices.Clone(old)
	for _, x := range []struct{ off, to int64 }{
		{atMyLBA, at},
		{atAltLBA, other},
		{atUsable, usable.Off},
		{atUsable + 8, usable.End() - sector},
		{atEntriesLBA, array},
	} {
		binary.LittleEndian.PutUint64(b[x.off:], ondisk.U64(x.to/sector))
	}
	binary.LittleEndian.PutUint32(b[atEntriesCRC:], sum)
	binary.LittleEndian.PutUint32(b[atHeaderCRC:], 0)
	binary.LittleEndian.PutUint32(b[atHeaderCRC:], crc32.ChecksumIEEE(b))
	return b
}

// headerFields lists the header fields that change.
var headerFields = []field{
	{atHeaderCRC, 4, "header CRC"},
	{atMyLBA, 8, "my LBA"},
	{atAltLBA, 8, "alternate LBA"},
	{atUsable + 8, 8, "last usable LBA"},
	{atEntriesLBA, 8, "entries LBA"},
	{atEntriesCRC, 4, "entries CRC"},
}

// protective makes the protective entry cover a disk of size bytes. Spec: UEFI 2.10, 5.2.3: starting LBA 1, CHS
// 0/0/2, ending CHS beyond, as many sectors as there are behind LBA 0, or FFFFFFFF.
func (c *copies) protective(size int64) []disk.Patch {
	sectors := ondisk.U32(min(size/c.sector-1, math.MaxUint32))
	switch {
	case c.shield >= 0:
		at := int64(c.shield)*entrySize + 12
		was := c.mbr[at : at+4]
		now := binary.LittleEndian.AppendUint32(nil, sectors)
		if string(was) == string(now) || binary.LittleEndian.Uint32(was) == math.MaxUint32 {
			return nil
		}
		return []disk.Patch{{Off: atEntries + at, Old: was, New: now, Reason: "protective MBR: sector count"}}
	case c.bare:
		now := make([]byte, len(c.mbr))
		copy(now, mbrEntry{
			StartCHS: [3]byte{0, 2, 0}, Type: typeProtective, EndCHS: [3]byte{0xff, 0xff, 0xff},
			StartLBA: 1, Sectors: sectors,
		}.bytes())
		binary.LittleEndian.PutUint16(now[atMagic-atEntries:], mbrMagic)
		return []disk.Patch{{Off: atEntries, Old: c.mbr, New: now, Reason: "protective MBR, which was missing"}}
	}
	return nil
}
