package verify

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math"
	"slices"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
)

// explained holds the ranges of a result that a rule explains.
type explained []disk.Range

func (x explained) has(off int64) bool {
	i := disk.Behind(x, off)
	return i < len(x) && x[i].Off <= off
}

// rules returns the ranges that may differ. Each rule checks their values.
func (r *Result) rules() (explained, error) {
	var out explained
	if r.Before.Table == nil {
		return nil, nil
	}
	for _, rule := range []func() ([]disk.Range, error){r.slots, r.chains, r.shield, r.gpt, r.references, r.seals} {
		found, err := rule()
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return disk.Merge(out), nil
}

// Fields of an entry of an MBR. Spec: UEFI 2.10, 5.2.1.
const (
	mbrEntries = 446
	mbrEntry   = 16
	mbrEnd     = 510
)

// fields returns the ranges of an entry: both CHS addresses, first LBA and number of sectors.
func fields(entry int64) []disk.Range {
	return []disk.Range{{Off: entry + 1, Len: 3}, {Off: entry + 5, Len: 3}, {Off: entry + 8, Len: 8}}
}

// moved returns a partition before and after the move, and whether its range changed.
func (r *Result) moved(number int) (was, is boot.Partition, moved bool) {
	was, _ = r.Before.Partition(number)
	is, _ = r.After.Partition(number)
	return was, is, was.Range != is.Range
}

// slots explains entries in sector 0 of moved partitions, with the CHS address of their new start, and of hybrid MBRs.
// The LBAs need no check here, because the layout of the result comes from them.
func (r *Result) slots() (out []disk.Range, err error) {
	for _, p := range r.Before.Partitions {
		was, is, moved := r.moved(p.Number)
		switch {
		case !moved:
			continue
		case p.Kind == table.Primary || p.Kind == table.Extended:
			entry := mbrEntries + int64(p.Number-1)*mbrEntry
			ok, err := r.chs(entry+1, is.Off, is.Off != was.Off)
			if err != nil {
				return nil, err
			}
			if ok {
				out = append(out, fields(entry)...)
			}
		case p.Slot > 0:
			out = append(out, fields(mbrEntries+int64(p.Slot-1)*mbrEntry)...)
		}
	}
	if r.Before.Table.IsHybrid() || r.Before.Size != r.After.Size {
		for _, s := range r.Before.Table.Hybrid {
			if s.Type == 0xee { // its range follows the partitions
				out = append(out, fields(mbrEntries+int64(s.Number-1)*mbrEntry)...)
			}
		}
	}
	return out, nil
}

// chs reports whether three bytes of the result are the CHS address of a byte, or the maximum for a byte beyond CHS.
func (r *Result) chs(at, off int64, moved bool) (bool, error) {
	g := r.Before.Geometry
	if !moved || !g.Valid() {
		return true, nil
	}
	b, err := ondisk.Bytes(r.Dest, at, 3)
	if err != nil {
		return false, err
	}
	lba := off / r.Before.LBASize()
	track := lba / int64(g.Sectors)
	cylinder, head, sector := track/int64(g.Heads), track%int64(g.Heads), lba%int64(g.Sectors)+1
	if cylinder > 1023 { // too large for CHS: the maximum
		return int64(b[1]&0xc0)<<2|int64(b[2]) == 1023, nil
	}
	return int64(b[0]) == head && int64(b[1]) == sector|cylinder>>8<<6 && int64(b[2]) == cylinder&0xff, nil
}

// chains explains the entries in the boot records of an extended partition with moves.
func (r *Result) chains() (out []disk.Range, err error) {
	was, is := r.Before.Table.Records, r.After.Table.Records
	moves := map[int]bool{}
	for i := range min(len(was), len(is)) {
		_, _, logical := r.moved(was[i].Logical)
		_, _, box := r.moved(was[i].Box)
		moves[was[i].Box] = moves[was[i].Box] || was[i].Off != is[i].Off || logical || box
	}
	for i := range min(len(was), len(is)) {
		if !moves[was[i].Box] || was[i].Blank {
			continue
		}
		raw, err := ondisk.Bytes(r.Source, was[i].Off+mbrEntries, mbrEnd-mbrEntries)
		if err != nil {
			return nil, err
		}
		for k := range int64(4) {
			if !ondisk.IsZero(raw[k*mbrEntry : (k+1)*mbrEntry]) {
				out = append(out, fields(is[i].Off+mbrEntries+k*mbrEntry)...)
			}
		}
	}
	return out, nil
}

// shield explains the protective entry of a GPT: its number of sectors on a disk that grew, or the whole entry if
// sector 0 had no entry and no signature. Spec: UEFI 2.10, 5.2.3.
func (r *Result) shield() (out []disk.Range, err error) {
	if r.Before.Table.Scheme != table.GPT {
		return nil, nil
	}
	was, err := ondisk.Bytes(r.Source, mbrEntries, 66)
	if err != nil {
		return nil, err
	}
	is, err := ondisk.Bytes(r.Dest, mbrEntries, 66)
	if err != nil {
		return nil, err
	}
	if ondisk.IsZero(was) {
		if is[4] == 0xee && binary.LittleEndian.Uint32(is[8:]) == 1 && ondisk.IsZero(is[mbrEntry:64]) {
			out = append(out, disk.Range{Off: mbrEntries, Len: 66})
		}
		return out, nil
	}
	sectors := r.After.Size/r.Before.LBASize() - 1
	for i := range int64(4) {
		e := is[i*mbrEntry:]
		if n := int64(binary.LittleEndian.Uint32(e[12:])); e[4] == 0xee && n == min(sectors, table.MaxLBA) {
			out = append(out, disk.Range{Off: mbrEntries + i*mbrEntry + 12, Len: 4})
		}
	}
	return out, nil
}

// gptCopy is one copy of a GPT, with the fields for a comparison. Spec: UEFI 2.10, 5.3.2.
type gptCopy struct {
	at     int64
	raw    []byte
	array  disk.Range
	entry  int64
	alt    int64 // bytes
	usable int64 // bytes; the last usable LBA
	valid  bool
}

// readCopy reads a copy of a GPT with its header at byte at. A copy with correct checksums but impossible values is
// invalid too: firmware rejects it, and it is repaired like any damaged copy.
func readCopy(d disk.Disk, at, sector int64) (c gptCopy, err error) {
	if at < sector || at > d.Size()-sector {
		return c, nil
	}
	b, err := ondisk.Bytes(d, at, sector)
	if err != nil {
		return c, err
	}
	le := binary.LittleEndian
	lba := func(off int) int64 { return ondisk.I64(min(le.Uint64(b[off:]), ondisk.U64(d.Size()/sector))) * sector }
	size := int64(le.Uint32(b[12:]))
	if string(b[:8]) != "EFI PART" || size < 92 || size > sector || lba(24) != at {
		return c, nil
	}
	sum := le.Uint32(b[16:])
	c = gptCopy{at: at, raw: slices.Clone(b[:size]), alt: lba(32), usable: lba(48), entry: int64(le.Uint32(b[84:]))}
	clear(b[16:20])
	n := int64(le.Uint32(b[80:]))
	c.array = disk.Range{Off: lba(72), Len: n * c.entry}
	if crc32.ChecksumIEEE(b[:size]) != sum || n == 0 || n > 16384 || c.entry < 128 || c.entry > 4096 ||
		c.entry&(c.entry-1) != 0 || c.array.End() > d.Size() {
		return c, nil
	}
	first, last, alt, end := le.Uint64(b[40:]), le.Uint64(b[48:]), le.Uint64(b[32:]), ondisk.U64(d.Size()/sector)
	// the primary of a truncated disk names usable space and a backup past the end
	cut := at == sector && end <= alt && last < alt && alt < ondisk.U64(math.MaxInt64/sector)
	if first > last || last >= end && !cut || !outside(c.array, at, lba(40), c.usable+sector, sector) {
		return c, nil
	}
	entries := crc32.NewIEEE()
	buf := make([]byte, 64<<10)
	for off := c.array.Off; off < c.array.End(); off += int64(len(buf)) {
		p := buf[:min(int64(len(buf)), c.array.End()-off)]
		if err := ondisk.ReadFull(d, p, off); err != nil {
			return c, err
		}
		entries.Write(p)
	}
	c.valid = entries.Sum32() == le.Uint32(c.raw[88:])
	return c, nil
}

// outside reports whether the entries of a GPT copy lie outside the space for partitions, [first, end), and on the same
// side as the header at byte at. They must not overlap sector 0 or the primary header.
func outside(entries disk.Range, at, first, end, sector int64) bool {
	if entries.Off < 2*sector {
		return false
	}
	if at < first {
		return entries.End() <= first
	}
	return at >= end && entries.Off >= end && entries.End() <= at
}

// gpt explains both copies of a GPT if both are valid in the result and agree.
func (r *Result) gpt() (out []disk.Range, err error) {
	if r.Before.Table.Scheme != table.GPT {
		return nil, nil
	}
	sector := r.Before.LBASize()
	is, err := readCopy(r.Dest, sector, sector)
	if err != nil || !is.valid {
		return nil, err
	}
	other, err := readCopy(r.Dest, is.alt, sector)
	if err != nil || !other.valid || other.alt != is.at || !bytes.Equal(is.raw[88:92], other.raw[88:92]) ||
		is.usable != other.usable || r.Before.Usable(r.After.Size) != is.usable+sector {
		return nil, err
	}
	shift := r.Before.Usable(r.After.Size) - r.Before.Usable(r.Before.Size)
	was, err := readCopy(r.Source, is.at, sector)
	if err != nil {
		return nil, err
	}
	wasOther, err := readCopy(r.Source, other.at-shift, sector)
	if err != nil {
		return nil, err
	}
	old := gptCopy{} // backup in the middle of an enlarged disk
	if was.valid && !wasOther.valid {
		if old, err = readCopy(r.Source, was.alt, sector); err != nil {
			return nil, err
		}
		old.valid = old.valid && bytes.Equal(old.raw[56:72], was.raw[56:72])
	}
	for _, x := range []struct {
		was, is, good gptCopy
		shift         int64
	}{{was, is, wasOther, 0}, {wasOther, other, was, shift}} {
		found, err := r.copyOf(x.was, x.is, x.good, old, x.shift)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}

// copyOf explains one copy of a GPT. was is the source copy at the same place (minus shift), and good is the other
// source copy.
func (r *Result) copyOf(was, is, good, old gptCopy, shift int64) (out []disk.Range, err error) {
	entries := disk.Range{Off: is.array.Off - shift, Len: is.array.Len}
	if was.valid && was.array == entries {
		// both checksums, both header places, the last usable LBA, and the place of the entries
		for _, f := range []disk.Range{
			{Off: 16, Len: 4}, {Off: 24, Len: 16}, {Off: 48, Len: 8}, {Off: 72, Len: 8}, {Off: 88, Len: 4},
		} {
			out = append(out, disk.Range{Off: is.at + f.Off, Len: f.Len})
		}
		for _, p := range r.Before.Partitions {
			if _, _, moved := r.moved(p.Number); moved {
				out = append(out, disk.Range{Off: is.array.Off + int64(p.Number-1)*is.entry + 32, Len: 16})
			}
		}
		return out, nil
	}
	if was.valid || !good.valid || good.entry != is.entry {
		return nil, nil
	}
	// The copy was repaired: over zeros, its own remains, or the old backup of an enlarged disk.
	header, err := ondisk.Bytes(r.Source, is.at-shift, int64(len(is.raw)))
	if err != nil {
		return nil, err
	}
	same := 0
	for _, off := range []int{0, 8, 40, 48, 56, 64, 80} {
		if bytes.Equal(header[off:off+8], good.raw[off:off+8]) {
			same++
		}
	}
	ours := same >= 4 && bytes.Equal(header[56:72], good.raw[56:72]) && blankOr(header[92:], is.raw[92:])
	if ours || ondisk.IsZero(header) {
		out = append(out, disk.Range{Off: is.at, Len: int64(len(is.raw))})
	}
	for at := int64(0); at < is.array.Len; at += is.entry {
		a, err := ondisk.Bytes(r.Source, entries.Off+at, is.entry)
		if err != nil {
			return nil, err
		}
		b, err := ondisk.Bytes(r.Dest, is.array.Off+at, is.entry)
		if err != nil {
			return nil, err
		}
		if blankOr(a[128:], b[128:]) && sameEntry(a[:128], b[:128]) ||
			old.valid && overlaps(entries.Off+at, is.entry, old) {
			out = append(out, disk.Range{Off: is.array.Off + at, Len: is.entry})
		}
	}
	return out, nil
}

// sameEntry reports whether the defined part of an entry is zero, or the remains of its replacement.
func sameEntry(was, is []byte) bool {
	alike := 0
	for i := range was {
		if was[i] == is[i] {
			alike++
		}
	}
	return ondisk.IsZero(was) || !ondisk.IsZero(is[:16]) && (bytes.Equal(was[16:32], is[16:32]) || 2*alike > len(was))
}

// blankOr reports whether each byte is zero or equal to the result.
func blankOr(was, is []byte) bool {
	for i, b := range was {
		if b != 0 && b != is[i] {
			return false
		}
	}
	return true
}

// overlaps reports whether an entry overlaps an old copy, from its entries to the end of its header.
func overlaps(off, n int64, old gptCopy) bool {
	return off+n > old.array.Off && off < old.at+int64(len(old.raw))
}

// references explains stored positions of moved partitions. The layout of the result shows that they point to the new
// places.
func (r *Result) references() (out []disk.Range, err error) {
	is := r.After.Boot.Refs
	for i, was := range r.Before.Boot.Refs {
		if i >= len(is) || is[i].Points == was.Points && !was.FromRecord {
			continue
		}
		for _, at := range was.At {
			out = append(out, disk.Range{Off: at.Off + r.shift(was.Partition), Len: at.Len})
		}
	}
	return out, nil
}

// shift returns the distance a partition moved, or 0 for the range before all partitions.
func (r *Result) shift(number int) int64 {
	was, is, _ := r.moved(number)
	return is.Off - was.Off
}

// seals explains checksums over references. The bytes of the source with the references of the result must have the
// checksum of the result.
func (r *Result) seals() (out []disk.Range, err error) {
	places, err := r.references()
	if err != nil {
		return nil, err
	}
	refs := explained(disk.Merge(places))
	done := map[*boot.Seal]bool{}
	for _, ref := range r.Before.Boot.Refs {
		for _, s := range ref.Seals {
			if done[s] {
				continue
			}
			done[s] = true
			var now []byte
			var to []disk.Range
			for _, at := range s.At {
				x := disk.Range{Off: at.Off + r.shift(ref.Partition), Len: at.Len}
				b, err := ondisk.Bytes(r.Dest, x.Off, x.Len)
				if err != nil {
					return nil, err
				}
				now, to = append(now, b...), append(to, x)
			}
			made, i := slices.Clone(s.Raw), 0
			for _, x := range to {
				for off := x.Off; off < x.End(); off, i = off+1, i+1 {
					if refs.has(off) {
						made[i] = now[i]
					}
				}
			}
			if s.Make(made); bytes.Equal(made, now) {
				out = append(out, to...)
			}
		}
	}
	return out, nil
}
