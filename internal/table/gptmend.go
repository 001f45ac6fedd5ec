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

// rewrite is how a copy of a GPT that is not valid is written anew. All bytes that it replaces have been read.
type rewrite struct {
	header, array int64  // byte offsets
	old           []byte // found where the header goes, as many bytes as it has
	found, want   []byte // the array that is there, and that of the good copy
}

// maxMended bounds the array of a GPT that is mended, in bytes: as many entries as are read, of the usual size. Both
// arrays are in memory, and each byte of the damaged one that changes is in the plan.
const maxMended = maxEntries * minEntrySize

// remedies for damage.
const (
	askToMend = "--repair-table writes both copies and the protective MBR right"
	mendFirst = "find out what is in the place of the damaged copy; if nothing needs it, repair the table in the " +
		"guest (gdisk, r, then b or d, w)"
)

// prepare finds out how the copies that are not valid can be written anew, and reads what that replaces.
func (c *copies) prepare(g *gpt) error {
	c.shield = -1
	if n := c.disk - c.end; n > 0 {
		b, err := ondisk.Bytes(g.d, c.end, n)
		if err != nil {
			return err
		}
		c.rest = !ondisk.IsZero(b)
	}
	for i, own := range c.valid {
		if own != nil || (i == backup && g.cut) {
			continue
		}
		if g.array().Len > maxMended {
			g.cannotMend(i, fmt.Sprintf("its array has %d bytes, and one of %d at most is written again",
				g.array().Len, maxMended))
			continue
		}
		w, why, err := c.replaced(g, i)
		if err != nil {
			return err
		}
		if c.anew[i] = w; w == nil {
			g.cannotMend(i, why)
		}
		if alt := g.header.AltLBA; w == nil && i == backup && alt >= ondisk.U64(c.end/c.sector) &&
			alt-g.header.LastUsable <= ondisk.U64(c.room()/c.sector)+1 {
			g.Issues[len(g.Issues)-1].Remedy = fmt.Sprintf("the image was cut short: %s makes it as long as it was; "+
				"then --repair-table writes the backup again", longer(ondisk.I64(alt+1)*c.sector))
		}
	}
	return nil
}

// replaced reads what stands in the place of a copy that is not valid. w is nil if it is not known to be left of this
// GPT, which why says.
func (c *copies) replaced(g *gpt, i int) (w *rewrite, why string, err error) {
	w = &rewrite{header: c.sector}
	if i == backup {
		w.header = c.end - c.sector
		if !c.enlarged && c.names(g.header.AltLBA) {
			w.header = ondisk.I64(g.header.AltLBA) * c.sector
		}
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
	for k, off := range at { // the first one counts, unless another has the very entries
		b, err := ondisk.Bytes(g.d, off, g.array().Len)
		if err != nil {
			return nil, "", err
		}
		equal := bytes.Equal(b, w.want)
		if k == 0 || equal {
			w.array, w.found = off, b
		}
		if equal {
			break
		}
	}
	if off := g.foreign(w); off >= 0 && !c.enlarged {
		return nil, fmt.Sprintf("the bytes at %#x, in the place of its entries, are neither zeros nor entries of this "+
			"GPT, such as a boot loader in entries that are not used", w.array+off), nil
	}
	return w, "", nil
}

// names reports whether an LBA can be that of the backup.
func (c *copies) names(lba uint64) bool {
	return lba > c.good().header.LastUsable && lba < ondisk.U64(c.end/c.sector)
}

// sameHeader reports whether bytes in the place of a header are zeros, or have the disk GUID and most fields of the
// other copy: what a write that was torn or a few wrong bytes leave of it. The places of the two differ.
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

// entriesIn returns the byte offset of the array that a header names, valid or not; -1: none.
func (g *gpt) entriesIn(raw []byte) int64 {
	lba := binary.LittleEndian.Uint64(raw[atEntriesLBA:])
	if lba < firstArray || lba >= ondisk.U64(g.d.Size()/g.SectorSize) {
		return -1
	}
	return ondisk.I64(lba) * g.SectorSize
}

// foreign returns the place of a byte in a damaged array that no entry of this GPT leaves there: an entry is that of
// the good copy, zeros, or has most bytes or one of the GUIDs of the good one; -1: none.
func (g *gpt) foreign(w *rewrite) int64 {
	n := int(g.header.EntrySize)
	for at := 0; at < len(w.want); at += n {
		if off := foreignIn(w.found[at:at+n], w.want[at:at+n]); off >= 0 {
			return int64(at + off)
		}
	}
	return -1
}

// foreignIn is foreign for one entry. Bytes behind the defined part of an entry have no GUID that explains them.
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

// foreignByte returns the place of the first byte that is neither zero nor as it should be; -1: none.
func foreignByte(is, was []byte) int {
	for i, b := range is {
		if b != 0 && b != was[i] {
			return i
		}
	}
	return -1
}

// cannotMend reports a damaged copy that cannot be written anew. What only needs a warning where nothing moves has a
// remedy that works.
func (g *gpt) cannotMend(i int, why string) {
	code := [...]string{CodePrimary, CodeBackup}[i]
	for k := range g.Issues {
		if g.Issues[k].Remedy == askToMend {
			g.Issues[k].Remedy = mendFirst
		}
	}
	g.Issues = append(g.Issues, ondisk.Issue{
		Code: code, Effect: ondisk.Refuse, OnMove: true,
		Text:   fmt.Sprintf("the %s is not valid and is not written again: %s", copyNames[i], why),
		Remedy: mendFirst,
	})
}

// findEnlarged looks for the backup of a disk that was enlarged, which the primary names and which is in the middle. It
// goes to the end with the first move if nothing else is there, and else stays. A damaged one is written to the end.
func (c *copies) findEnlarged(g *gpt) error {
	at := g.header.AltLBA
	if !c.names(at) || at == ondisk.U64(c.end/c.sector-1) {
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

// arrayPatches write the array of a copy anew, with entries that move. Each patch is of one entry.
func (c *copies) arrayPatches(w *rewrite, entries []disk.Patch, name string) (out []disk.Patch) {
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
			Reason: fmt.Sprintf("%s: entry %d, from the other copy", name, at/n+1),
		})
	}
	return out
}

// magic reports whether the place of the primary's header has the signature of one.
func (c *copies) magic() bool {
	w := c.anew[primary]
	return w != nil && bytes.HasPrefix(w.old, []byte(gptMagic))
}

// tail returns what lies behind the space for partitions, which goes with the end of a disk of size bytes.
func (c *copies) tail(size int64) disk.Shift {
	from, to := c.usable(c.disk), c.usable(size)
	end := units.AlignDown(size, c.sector)
	if size == c.disk {
		end = size // with what is less than a sector
	}
	return disk.Shift{From: from, To: to, Len: end - to}
}
