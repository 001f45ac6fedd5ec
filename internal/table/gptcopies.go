package table

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// copies are the two copies of a GPT and the protective MBR in front. At least one copy is valid.
type copies struct {
	disk, end int64 // size of the disk, and of its whole sectors; bytes
	sector    int64
	valid     [2]*gpt     // primary and backup; nil if invalid or misplaced
	rewrites  [2]*rewrite // rewrite of an invalid copy; nil if it cannot be rewritten
	enlarged  bool        // the primary refers to a backup in the middle of an enlarged disk, which moves to the end
	old       *gpt        // that backup; nil if damaged, then only a repair writes one to the end
	rest      bool        // the bytes behind the last whole sector are not zero

	mbr    []byte // entries and signature of sector 0, from byte 446
	bare   bool   // mbr is all zero: a protective entry can be written
	shield int    // slot of the protective entry, -1 without one

	remnant, taken bool // see Table.Remnant
}

const (
	primary = iota
	backup
)

// firstArray is the default LBA of the primary's array.
const firstArray = 2

// copyNames holds the names of the copies for the reasons of patches.
var copyNames = [...]string{"primary GPT", "backup GPT"}

// good returns a valid copy.
func (c *copies) good() *gpt {
	if c.valid[primary] != nil {
		return c.valid[primary]
	}
	return c.valid[backup]
}

// room returns the size of an array in bytes, rounded up to whole sectors.
func (c *copies) room() int64 { return units.AlignUp(c.good().array().Len, c.sector) }

// torn reports whether a copy, or the link between the two headers, needs a repair before entries can be rewritten.
func (c *copies) torn() bool {
	return c.valid[primary] == nil || (c.valid[backup] == nil && !c.backupMoves()) || c.crossed()
}

// backupMoves reports whether the first move relocates a sound backup from the middle of an enlarged disk to its end.
func (c *copies) backupMoves() bool { return c.enlarged && c.old != nil }

// damaged reports whether the table needs a repair and can be repaired.
func (c *copies) damaged() bool { return !c.blocked() && (c.torn() || (c.shield < 0 && c.bare)) }

// blocked reports whether an invalid copy cannot be rewritten.
func (c *copies) blocked() bool {
	for i, own := range c.valid {
		if own == nil && c.rewrites[i] == nil {
			return true
		}
	}
	return false
}

// crossed reports whether one of two valid headers does not give the LBA of the other.
func (c *copies) crossed() bool {
	a, b := c.valid[primary], c.valid[backup]
	return a != nil && b != nil && (a.header.AltLBA != b.header.MyLBA || b.header.AltLBA != a.header.MyLBA)
}

// usable returns the end of the space for partitions on a disk of size bytes. On an enlarged or truncated disk, it
// reserves space for a backup at the end.
func (c *copies) usable(size int64) int64 {
	end := ondisk.I64(c.good().header.LastUsable+1) * c.sector
	if c.enlarged || c.good().cut {
		end = max(0, c.end-c.sector-c.room())
	}
	return end + c.growth(size)
}

// coversEnd reports whether a protective entry with this end covers the end of the disk, or the backup in the middle of
// an enlarged disk, which a move relocates to the end.
func (c *copies) coversEnd(end int64) bool {
	return end == c.end || c.enlarged && end > ondisk.I64(c.good().header.AltLBA)*c.sector && end < c.end
}

// growth returns the distance by which the end of the disk moves if its new size is size bytes.
func (c *copies) growth(size int64) int64 { return units.AlignDown(size, c.sector) - c.end }

// places returns the offsets of header and array of a copy on a disk of size bytes.
func (c *copies) places(i int, size int64) (header, array int64) {
	moved := [...]int64{0, c.growth(size)}[i]
	if own := c.valid[i]; own != nil {
		return own.at + moved, own.array().Off + moved
	}
	if w := c.rewrites[i]; w != nil {
		return w.header + moved, w.array + moved
	}
	return [...]int64{c.sector, c.end - c.sector}[i] + moved, moved
}

// addMBR adds the contents of sector 0 to the GPT.
func (g *gpt) addMBR(d disk.Disk, m *mbr, missing bool) error {
	b, err := ondisk.Bytes(d, atEntries, units.SectorSize-atEntries)
	if err != nil {
		return err
	}
	g.gpt.mbr = b
	g.BootCode, g.Signature = m.sector.Code[:], m.Signature
	if missing {
		if err := g.gpt.readPlace(d, m); err != nil {
			return err
		}
		g.BootCode = make([]byte, codeLength) // no BIOS boots a sector without a signature
		text := "there is no protective MBR in sector 0: many systems will not see this GPT"
		if g.gpt.bare = ondisk.IsZero(b); !g.gpt.bare {
			g.Issues = append(g.Issues, ondisk.Issue{
				Code: "gpt-no-mbr", Effect: ondisk.Warn, Text: text, Remedy: "sector 0 has other content, which " +
					"trueup keeps; if nothing needs it, repair it with gdisk",
			})
			return nil
		}
		g.warn("gpt-no-mbr", text)
		return nil
	}
	g.gpt.shield = m.shield()
	if start := m.sector.Entries[max(g.gpt.shield, 0)].StartLBA; start != 1 {
		g.Issues = append(g.Issues, ondisk.Issue{
			Code: "gpt-shield", Effect: ondisk.Warn,
			Text: fmt.Sprintf("the protective entry of the MBR starts at LBA %d, must be 1: Linux does not "+
				"recognize the GPT", start),
			Remedy: "if Linux needs the partitions, rewrite the entry in the guest (gdisk, x, n)",
		})
	}
	g.readHybrid(m)
	return nil
}

// readPlace checks whether a GPT is a remnant. missing is sector 0 of a disk without an MBR.
func (c *copies) readPlace(d disk.Disk, missing *mbr) error {
	named := slices.ContainsFunc(missing.sector.Entries[:], func(e mbrEntry) bool { return e.Type == typeProtective })
	c.remnant = c.valid[primary] == nil && !named
	if !c.remnant || c.magic() {
		return nil
	}
	var ours []disk.Range
	if w := c.rewrites[primary]; w != nil { // a wiped header leaves the entries
		ours = append(ours, disk.Range{Off: w.array, Len: int64(len(w.found))})
	}
	free, err := zerosBut(d, c.sector, min(firstArray*c.sector+c.room(), d.Size()), ours...)
	c.taken = !free
	return err
}

// zerosBut reports whether the bytes from at to end are zeros, except for ranges. The ranges are in ascending order.
func zerosBut(d disk.Disk, at, end int64, ranges ...disk.Range) (bool, error) {
	for _, r := range append(ranges, disk.Range{Off: end}) {
		if free, err := ondisk.AllZero(d, disk.Range{Off: at, Len: min(r.Off, end) - at}); !free {
			return false, err
		}
		at = max(at, r.End())
	}
	return true, nil
}

// Remnant reports whether only the backup of a GPT is left, without a protective MBR. Creating a volume on the whole
// disk leaves such a backup. taken reports whether other data is in the place of the primary.
func (t *Table) Remnant() (remnant, taken bool) {
	return t.gpt != nil && t.gpt.remnant, t.gpt != nil && t.gpt.taken
}

// Torn reports whether a GPT needs a repair before its entries can be rewritten.
func (t *Table) Torn() bool { return t.gpt != nil && t.gpt.torn() }

// Rest reports whether a disk has data behind its last whole sector, which a larger disk could not have there.
func (t *Table) Rest() bool { return t.gpt != nil && t.gpt.rest }

// Blocked reports whether a damaged copy of a GPT cannot be rewritten.
func (t *Table) Blocked() bool { return t.gpt != nil && t.gpt.blocked() }

// OnlyBackup reports whether the primary of a GPT is invalid.
func (t *Table) OnlyBackup() bool { return t.gpt != nil && t.gpt.valid[primary] == nil }

// shield returns the slot of the protective entry, or -1. Of several it prefers the entry that starts at LBA 1, as
// firmware and Linux require.
func (m *mbr) shield() int {
	first := -1
	for i, e := range m.sector.Entries {
		switch {
		case e.Type != typeProtective:
		case e.StartLBA == 1:
			return i
		case first < 0:
			first = i
		}
	}
	return first
}

// rewrite describes the rewrite of an invalid copy of a GPT. All bytes to replace have been read.
type rewrite struct {
	header, array int64  // byte offsets
	old           []byte // bytes at the header's position, HeaderSize long
	found, want   []byte // the array on the disk, and the array of the valid copy
}

// maxMended limits the array of a repaired GPT, in bytes: the most entries of the usual size. Both arrays are in
// memory, and each changed byte of the damaged one is in the plan.
const maxMended = maxEntries * minEntrySize

// Remedies for damage.
const (
	askToMend = "--repair-table rewrites both copies and the protective MBR"
	mendFirst = "check the content in the place of the damaged copy; if nothing needs it, repair the table in the " +
		"guest (gdisk, r, then b or d, w)"
)

// prepare plans the rewrite of invalid copies, and reads the bytes to replace.
func (c *copies) prepare(g *gpt) error {
	c.shield = -1
	zero, err := zerosBut(g.d, c.end, c.disk)
	if err != nil {
		return err
	}
	c.rest = !zero
	for i, own := range c.valid {
		if own != nil || (i == backup && g.cut) {
			continue
		}
		if g.array().Len > maxMended {
			g.cannotMend(i, fmt.Sprintf("its array has %d bytes, and trueup rewrites at most %d",
				g.array().Len, maxMended))
			continue
		}
		w, why, err := c.replaced(g, i)
		if err != nil {
			return err
		}
		if c.rewrites[i] = w; w == nil {
			g.cannotMend(i, why)
		}
		if alt := g.header.AltLBA; w == nil && i == backup && alt >= ondisk.U64(c.end/c.sector) &&
			alt-g.header.LastUsable <= ondisk.U64(c.room()/c.sector)+1 {
			g.Issues[len(g.Issues)-1].Remedy = fmt.Sprintf("the image was cut short: %s restores its size; then "+
				"--repair-table rewrites the backup", longer(ondisk.I64(alt+1)*c.sector))
		}
	}
	return nil
}

// replaced reads the bytes in the place of an invalid copy. w is nil if they may belong to something other than this
// GPT; why is the reason.
func (c *copies) replaced(g *gpt, i int) (w *rewrite, why string, err error) {
	w = &rewrite{header: c.sector}
	switch alt := g.header.AltLBA; {
	case i == primary:
	case !c.enlarged && c.mayHoldBackup(alt):
		w.header = ondisk.I64(alt) * c.sector
	default:
		w.header = c.end - c.sector
	}
	if w.old, err = ondisk.Bytes(g.d, w.header, int64(g.header.HeaderSize)); err != nil {
		return nil, "", err
	}
	if w.want, err = ondisk.Bytes(g.d, g.array().Off, g.array().Len); err != nil {
		return nil, "", err
	}
	if !c.enlarged && !g.sameHeader(w.old) {
		return nil, fmt.Sprintf("the bytes where its header belongs (%#x) are neither zeros nor a header of this GPT",
			w.header), nil
	}
	room := c.room()
	least, most := firstArray*c.sector, ondisk.I64(g.header.FirstUsable)*c.sector-room
	at := []int64{g.entriesIn(w.old), least, most}
	if i == backup {
		least, most = ondisk.I64(g.header.LastUsable+1)*c.sector, w.header-room
		at = []int64{g.entriesIn(w.old), most}
		if c.enlarged {
			least = most
		}
	}
	at = slices.DeleteFunc(at, func(off int64) bool { return off < least || off > most })
	if len(at) == 0 {
		return nil, fmt.Sprintf("there is no room for its %d bytes of entries between LBA %d and LBA %d",
			g.array().Len, least/c.sector, (most+room)/c.sector), nil
	}
	if err := w.placeArray(g.d, at); err != nil {
		return nil, "", err
	}
	if off := g.foreign(w); off >= 0 && !c.enlarged {
		return nil, fmt.Sprintf("the bytes at %#x, in the place of its entries, are neither zeros nor entries of "+
			"this GPT, such as a boot loader in unused entries", w.array+off), nil
	}
	return w, "", nil
}

// placeArray places the array at the first offset, unless another one already holds the same entries.
func (w *rewrite) placeArray(d disk.Disk, offsets []int64) error {
	for i, off := range offsets {
		b, err := ondisk.Bytes(d, off, int64(len(w.want)))
		if err != nil {
			return err
		}
		equal := bytes.Equal(b, w.want)
		if i == 0 || equal {
			w.array, w.found = off, b
		}
		if equal {
			break
		}
	}
	return nil
}

// mayHoldBackup reports whether an LBA is legal for the backup.
func (c *copies) mayHoldBackup(lba uint64) bool {
	return lba > c.good().header.LastUsable && lba < ondisk.U64(c.end/c.sector)
}

// sameHeader reports whether bytes in the place of a header are zeros, or share the disk GUID and most fields with the
// other copy, as after a torn write or a few wrong bytes. The LBAs of the two headers differ.
func (g *gpt) sameHeader(found []byte) bool {
	if ondisk.IsZero(found) {
		return true
	}
	const n, atGUID = 8, 56
	if !bytes.Equal(found[atGUID:atGUID+2*n], g.raw[atGUID:atGUID+2*n]) ||
		foreignByte(found[minHeader:], g.raw[minHeader:]) >= 0 {
		return false
	}
	same, fields := 0, []int{0, n, atUsable, atUsable + n, atGUID, atGUID + n, atNumEntries}
	for _, off := range fields {
		if bytes.Equal(found[off:off+n], g.raw[off:off+n]) {
			same++
		}
	}
	return 2*same > len(fields)
}

// entriesIn returns the byte offset of the array of a header, valid or not. It returns -1 if the LBA of the array is
// below firstArray or past the end of the disk.
func (g *gpt) entriesIn(raw []byte) int64 {
	lba := binary.LittleEndian.Uint64(raw[atEntriesLBA:])
	if lba < firstArray || lba >= ondisk.U64(g.d.Size()/g.SectorSize) {
		return -1
	}
	return ondisk.I64(lba) * g.SectorSize
}

// foreign returns the offset of the first byte in a damaged array that is not left from this GPT, or -1. An entry is
// left from this GPT if it is equal to the valid copy, is all zeros, shares most bytes and the LBAs, or shares the
// partition GUID.
func (g *gpt) foreign(w *rewrite) int64 {
	n := int(g.header.EntrySize)
	for at := 0; at < len(w.want); at += n {
		if off := foreignIn(w.found[at:at+n], w.want[at:at+n]); off >= 0 {
			return int64(at + off)
		}
	}
	return -1
}

// foreignIn is foreign for one entry. No GUID explains bytes behind the defined part of an entry.
func foreignIn(is, was []byte) int {
	if off := foreignByte(is[minEntrySize:], was[minEntrySize:]); off >= 0 {
		return minEntrySize + off
	}
	is, was = is[:minEntrySize], was[:minEntrySize]
	if bytes.Equal(is, was) || ondisk.IsZero(is) {
		return -1
	}
	same, first := 0, -1
	for i := range is {
		if is[i] == was[i] {
			same++
		} else if first < 0 {
			first = i
		}
	}
	if !ondisk.IsZero(was[:16]) && (2*same > minEntrySize && bytes.Equal(is[32:48], was[32:48]) ||
		bytes.Equal(is[16:32], was[16:32])) {
		return -1
	}
	return first
}

// foreignByte returns the offset of the first byte that is neither zero nor as expected, or -1.
func foreignByte(is, was []byte) int {
	for i, b := range is {
		if b != 0 && b != was[i] {
			return i
		}
	}
	return -1
}

// cannotMend reports a damaged copy that cannot be rewritten. It also replaces the remedy of earlier warnings, which
// does not work then.
func (g *gpt) cannotMend(i int, why string) {
	code := [...]string{CodePrimary, CodeBackup}[i]
	for k := range g.Issues {
		if g.Issues[k].Remedy == askToMend {
			g.Issues[k].Remedy = mendFirst
		}
	}
	g.Issues = append(g.Issues, ondisk.Issue{
		Code: code, Effect: ondisk.Refuse, OnMove: true,
		Text:   fmt.Sprintf("the %s is invalid and is not rewritten: %s", copyNames[i], why),
		Remedy: mendFirst,
	})
}

// findEnlarged finds the backup of an enlarged disk, in the middle of the disk at the LBA in the primary. The first
// move relocates it to the end if that space is free; otherwise it stays. A damaged backup is written to the end.
func (c *copies) findEnlarged(g *gpt) error {
	at := g.header.AltLBA
	if !c.mayHoldBackup(at) || at == ondisk.U64(c.end/c.sector-1) {
		return nil
	}
	old, err := readCopy(g.d, c.sector, ondisk.I64(at)*c.sector, true)
	if err != nil && !isNoMatch(err) && ondisk.Legible(err) != nil {
		return err
	}
	sound := err == nil && g.same(old) && old.header.AltLBA == g.header.MyLBA
	var ours []disk.Range // the old backup is replaced where the two overlap
	if sound {
		ours = append(ours, old.array(), disk.Range{Off: old.at, Len: int64(old.header.HeaderSize)})
	}
	free, err := zerosBut(g.d, c.end-c.sector-c.room(), c.end, ours...)
	if err != nil {
		return err
	}
	fits := c.end-c.sector-c.room() >= ondisk.I64(g.header.LastUsable+1)*c.sector
	c.enlarged = free && fits && g.array().Len <= maxMended
	switch {
	case sound && c.enlarged:
		c.old = old
	case sound:
		c.valid[backup] = old
	}
	return nil
}

// arrayPatches returns patches that rewrite the array of a copy, including moved entries. Each patch covers one entry.
func (c *copies) arrayPatches(w *rewrite, entries []disk.Patch) (out []disk.Patch) {
	now := slices.Clone(w.want)
	for _, e := range entries {
		copy(now[e.Off:], e.New)
	}
	n := int(c.good().header.EntrySize)
	for at := 0; at < len(now); at += n {
		is, was := now[at:at+n], w.found[at:at+n]
		if bytes.Equal(is, was) {
			continue
		}
		from, end := 0, n
		for is[from] == was[from] {
			from++
		}
		for is[end-1] == was[end-1] {
			end--
		}
		out = append(out, disk.Patch{
			Off: int64(at + from), Old: was[from:end], New: is[from:end],
			Reason: fmt.Sprintf("entry %d, from the other copy", at/n+1),
		})
	}
	return out
}

// magic reports whether the place of the primary header begins with the GPT signature.
func (c *copies) magic() bool {
	w := c.rewrites[primary]
	return w != nil && bytes.HasPrefix(w.old, []byte(gptMagic))
}

// tail returns the range behind the space for partitions, which moves with the end of a disk of size bytes.
func (c *copies) tail(size int64) disk.Shift {
	from, to := c.usable(c.disk), c.usable(size)
	end := units.AlignDown(size, c.sector)
	if size == c.disk {
		end = size // including a partial sector
	}
	return disk.Shift{From: from, To: to, Len: end - to}
}
