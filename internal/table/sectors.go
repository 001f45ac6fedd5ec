package table

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// SizeIn returns the least size of a disk of size bytes whose table, with partitions at new places, counts sectors of n
// bytes: whole sectors, and room for a backup GPT behind the last partition.
func (t *Table) SizeIn(to Places, size, n int64) int64 {
	end := int64(0)
	for _, p := range t.Partitions {
		end = max(end, units.AlignUp(to.rangeOf(p).End(), n))
	}
	if t.gpt != nil {
		end += n + units.AlignUp(t.gpt.good().array().Len, n)
	}
	return max(units.AlignUp(size, n), end)
}

// InSectors returns the patches of a disk d with the table that make the table count sectors of n bytes. Partitions
// stay at their bytes, and end with a whole sector. A boot record moves by less than a sector. Data in the place of the
// new table are refused.
func (t *Table) InSectors(d disk.Disk, n int64, g Geometry) ([]disk.Patch, error) {
	first, err := ondisk.Bytes(d, 0, units.SectorSize)
	if err != nil {
		return nil, err
	}
	if t.explained(common[0]) >= t.explained(g) { // the ends of small partitions also fit smaller geometries
		g = common[0]
	}
	r := resized{Table: t, d: d, n: n, geometry: g}
	r.replace(disk.Range{Len: units.SectorSize}, 0, first)
	if t.Scheme == GPT {
		err = r.gptCopies(first)
	} else {
		err = r.chains(first)
	}
	if err != nil {
		return nil, err
	}
	return r.patches()
}

// resized is a table under construction in sectors of n bytes.
type resized struct {
	*Table
	d        disk.Disk
	n        int64
	geometry Geometry
	old      []disk.Range // bytes of the old structures
	now      []disk.Patch // the new structures, without old bytes
}

// replace replaces an old structure by a new one at byte off.
func (r *resized) replace(old disk.Range, off int64, now []byte) {
	r.old, r.now = append(r.old, old), append(r.now, disk.Patch{Off: off, New: now})
}

// patches returns the new structures as patches, and zeros in place of the rest of the old ones.
func (r *resized) patches() (out []disk.Patch, err error) {
	old, all := disk.Merge(slices.Clone(r.old)), slices.Clone(r.old)
	for _, x := range r.now {
		all = append(all, x.Range())
	}
	for _, at := range disk.Merge(all) {
		if free, err := zerosBut(r.d, at.Off, at.End(), slices.Clip(disk.Overlapping(old, at))...); err != nil {
			return nil, err
		} else if !free {
			return nil, ondisk.In(ondisk.ErrUnsupported, "bytes %d to %d are needed by the partition table in sectors "+
				"of %d bytes, and hold other data", at.Off, at.End()-1, r.n)
		}
		was, err := ondisk.Bytes(r.d, at.Off, at.Len)
		if err != nil {
			return nil, err
		}
		is := make([]byte, at.Len)
		for _, x := range r.now {
			if at.Contains(x.Range()) {
				copy(is[x.Off-at.Off:], x.New)
			}
		}
		if !bytes.Equal(was, is) {
			reason := fmt.Sprintf("partition table in sectors of %d bytes", r.n)
			out = append(out, disk.Patch{Off: at.Off, Old: was, New: is, Reason: reason})
		}
	}
	return out, nil
}

// whole returns the range of a partition in whole sectors.
func (r *resized) whole(number int, x disk.Range) (disk.Range, error) {
	if x.Off%r.n != 0 {
		return x, ondisk.In(ondisk.ErrUnsupported, "partition %d starts at byte %d, which is no multiple of %d",
			number, x.Off, r.n)
	}
	return disk.Range{Off: x.Off, Len: units.AlignUp(x.Len, r.n)}, nil
}

// put rewrites the entry of a range in a boot record, for a new range. at is its byte in the record. Its LBA counts
// from the byte base. The CHS address of the end stays exact, or the end of a cylinder; an entry without addresses
// stays so.
func (r *resized) put(record []byte, at int64, e mbrEntry, was, is disk.Range, base int64) error {
	first, sectors := (is.Off-base)/r.n, is.Len/r.n
	if first > MaxLBA || sectors > MaxLBA {
		return ondisk.In(ondisk.ErrLimit, "the partition at byte %d ends at byte %d, and an MBR addresses %d bytes in "+
			"sectors of %d", is.Off, is.End(), (MaxLBA+1)*r.n, r.n)
	}
	if none := [3]byte{}; e.StartCHS != none || e.EndCHS != none {
		exact, _ := r.geometry.encode(was.End()/r.SectorSize - 1)
		end, ok := r.geometry.encode(is.End()/r.n - 1)
		if e.EndCHS != exact || !ok {
			end = r.geometry.lastOfCylinder(is.End()/r.n-1, e.EndCHS)
		}
		e.StartCHS, _ = r.geometry.encode(is.Off / r.n)
		e.EndCHS = end
	}
	e.StartLBA, e.Sectors = ondisk.U32(first), ondisk.U32(sectors)
	copy(record[at:], e.bytes())
	return nil
}

// chains rewrites the entries of sector 0, and the chains of boot records.
func (r *resized) chains(first []byte) error {
	places, err := r.records()
	if err != nil {
		return err
	}
	for _, p := range r.containers() {
		x := p.Range
		if at, ok := places[p.Off]; ok && p.Kind == Extended {
			x = disk.Range{Off: at, Len: units.AlignUp(p.End(), r.n) - at}
		} else if x, err = r.whole(p.Number, x); err != nil {
			return err
		}
		if err := r.put(first, p.entry, p.raw, p.Range, x, 0); err != nil {
			return err
		}
	}
	for _, x := range r.Records {
		if err := r.record(x, places); err != nil {
			return err
		}
	}
	return nil
}

// record rewrites a boot record. The logical partition counts from it, the link from the start of the extended
// partition.
func (r *resized) record(x Record, places map[int64]int64) error {
	b, err := ondisk.Bytes(r.d, x.Off, units.SectorSize)
	if err != nil {
		return err
	}
	now, box := places[x.Off], places[r.startOf(x.Box)]
	if p, ok := r.find(x.Logical); ok {
		to, err := r.whole(p.Number, p.Range)
		if err == nil {
			err = r.put(b, p.entry-x.Off, p.raw, p.Range, to, now)
		}
		if err != nil {
			return err
		}
	}
	if x.next != nil {
		was := disk.Range{Off: x.next.Off, Len: int64(x.link.Sectors) * r.SectorSize}
		is := disk.Range{Off: places[was.Off]}
		is.Len = max(units.AlignUp(was.End(), r.n)-is.Off, r.n) // readers ignore an empty link
		if err := r.put(b, x.linkAt-x.Off, x.link, was, is, box); err != nil {
			return err
		}
	}
	r.replace(disk.Range{Off: x.Off, Len: units.SectorSize}, now, append(b, make([]byte, r.n-units.SectorSize)...))
	return nil
}

// startOf returns the byte offset of a partition.
func (r *resized) startOf(number int) int64 {
	p, _ := r.find(number)
	return p.Off
}

// records places the boot records on whole sectors of their gaps, by old offsets.
func (r *resized) records() (map[int64]int64, error) {
	taken, places := []disk.Range{{Len: r.n}}, map[int64]int64{}
	for _, p := range r.Partitions {
		if p.Kind == Extended {
			continue
		}
		x, err := r.whole(p.Number, p.Range)
		if err != nil {
			return nil, err
		}
		taken = append(taken, x)
	}
	for _, x := range r.Records {
		free := func(off int64) bool {
			at := disk.Range{Off: off, Len: r.n}
			return at.End() <= r.d.Size() && !slices.ContainsFunc(taken, at.Overlaps)
		}
		at := units.AlignDown(x.Off, r.n)
		if !free(at) {
			at = units.AlignUp(x.Off, r.n)
		}
		if !free(at) {
			return nil, ondisk.In(ondisk.ErrUnsupported, "the boot record at byte %d has no room for a sector of %d "+
				"bytes", x.Off, r.n)
		}
		places[x.Off], taken = at, append(taken, disk.Range{Off: at, Len: r.n})
	}
	return places, nil
}

// gptCopies rewrites the protective MBR and both copies of a GPT.
func (r *resized) gptCopies(first []byte) error {
	c := r.gpt
	good := c.good()
	size, array := r.d.Size(), good.array()
	switch {
	case c.torn() || c.damaged():
		return ondisk.In(ondisk.ErrUnsupported, "the partition table is damaged")
	case array.Len > maxMended:
		return ondisk.In(ondisk.ErrUnsupported, "the GPT has an array of %d bytes: at most %d can be rewritten",
			array.Len, maxMended)
	}
	entries, err := ondisk.Bytes(r.d, array.Off, array.Len)
	if err != nil {
		return err
	}
	lowest, highest, err := r.entries(entries)
	if err != nil {
		return err
	}
	room, oldRoom := units.AlignUp(array.Len, r.n), units.AlignUp(array.Len, c.sector)
	begin, end := firstArray*r.n+room, size-r.n-room
	if begin > lowest || end < highest {
		return ondisk.In(ondisk.ErrUnsupported, "partitions lie from byte %d to %d, and the GPT leaves bytes %d to %d "+
			"for them in sectors of %d bytes", lowest, highest-1, begin, end-1, r.n)
	}
	// Space that the old table leaves unused stays unused.
	if was := ondisk.I64(good.header.FirstUsable) * c.sector; was != firstArray*c.sector+oldRoom {
		begin = min(max(begin, units.AlignUp(was, r.n)), lowest)
	}
	if was := ondisk.I64(good.header.LastUsable+1) * c.sector; was != c.end-c.sector-oldRoom {
		end = max(min(end, units.AlignDown(was, r.n)), highest)
	}
	for i, at := range []int64{r.n, size - r.n} {
		own, other, to := c.valid[i], size-at, firstArray*r.n
		if i == backup {
			to = at - room
		}
		if own == nil {
			own = c.old // of an enlarged disk
		}
		if int64(own.header.HeaderSize) > r.n { // the copies can differ in this
			return ondisk.In(ondisk.ErrUnsupported, "the %s has a header of %d bytes: a sector has %d", copyNames[i],
				own.header.HeaderSize, r.n)
		}
		usable := disk.Range{Off: begin, Len: end - begin}
		now := header(own.raw, r.n, at, other, to, usable, crc32.ChecksumIEEE(entries))
		r.replace(disk.Range{Off: own.at, Len: int64(own.header.HeaderSize)}, at,
			append(now, make([]byte, r.n-int64(len(now)))...))
		r.replace(own.array(), to, append(slices.Clone(entries), make([]byte, room-array.Len)...))
	}
	return r.slots(first, size)
}

// entries rewrites the LBAs of all entries. It returns the lowest and the highest byte of the partitions.
func (r *resized) entries(all []byte) (lowest, highest int64, err error) {
	lowest = math.MaxInt64
	for _, p := range r.Partitions {
		x, err := r.whole(p.Number, p.Range)
		if err != nil {
			return 0, 0, err
		}
		lowest, highest = min(lowest, x.Off), max(highest, x.End())
		e := all[int64(p.Number-1)*int64(r.gpt.good().header.EntrySize):]
		binary.LittleEndian.PutUint64(e[32:], ondisk.U64(x.Off/r.n))
		binary.LittleEndian.PutUint64(e[40:], ondisk.U64(x.End()/r.n-1))
	}
	return lowest, highest, nil
}

// slots rewrites the protective entry of a GPT, or the slots of a hybrid MBR. A protective entry that covered the end
// of the disk still does; any other keeps its bytes.
func (r *resized) slots(first []byte, size int64) error {
	all := r.Hybrid
	if c := r.gpt; len(all) == 0 && c.shield >= 0 {
		var e mbrEntry
		ondisk.Fill(first[atEntries+c.shield*entrySize:], binary.LittleEndian, &e)
		e.Sectors = ondisk.U32(min(size/r.n-1, math.MaxUint32))
		copy(first[atEntries+c.shield*entrySize:], e.bytes())
	}
	for _, s := range all {
		x, err := r.slot(s, size)
		if err != nil {
			return err
		}
		if err := r.put(first, s.entry, s.raw, s.Range, x, 0); err != nil {
			return err
		}
	}
	return nil
}

// slot returns the new range of a slot of a hybrid MBR.
func (r *resized) slot(s Partition, size int64) (disk.Range, error) {
	if s.Type != typeProtective {
		return r.whole(s.Number, s.Range)
	}
	start, end := units.AlignUp(s.Off, r.n), units.AlignDown(s.End(), r.n)
	if s.Off == r.SectorSize {
		start = r.n // LBA 1 still
	}
	if r.gpt.coversEnd(s.End()) {
		end = min(size, (MaxLBA+1)*r.n)
	}
	return disk.Range{Off: start, Len: end - start}, nil
}
