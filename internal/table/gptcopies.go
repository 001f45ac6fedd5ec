package table

import (
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
	valid     [2]*gpt     // primary and backup; nil: not valid, or not where it belongs
	anew      [2]*rewrite // how a copy that is not valid can be written; nil: not at all
	enlarged  bool        // the primary names a backup in the middle of an enlarged disk, and it goes to the end
	old       *gpt        // that backup; nil: it is damaged, and only a repair writes one to the end
	rest      bool        // what is less than a sector at the end of the disk is not zero

	mbr    []byte // entries and signature of sector 0, from byte 446
	bare   bool   // they are all zero: a protective entry can be written
	shield int    // slot of the protective entry, -1: none

	remnant, taken bool // see Table.Remnant
}

const (
	primary = iota
	backup
)

// firstArray is the LBA of the primary's array where nothing says that it is another.
const firstArray = 2

// copyNames are those of the copies in reasons of patches.
var copyNames = [...]string{"primary GPT", "backup GPT"}

// good returns a valid copy.
func (c *copies) good() *gpt {
	if c.valid[primary] != nil {
		return c.valid[primary]
	}
	return c.valid[backup]
}

// room returns what an array takes, in bytes.
func (c *copies) room() int64 { return units.AlignUp(c.good().array().Len, c.sector) }

// torn reports whether entries cannot be rewritten without mending a copy, or what the two say of each other.
func (c *copies) torn() bool {
	return c.valid[primary] == nil || (c.valid[backup] == nil && !c.goes()) || c.crossed()
}

// goes reports whether a sound backup in the middle of an enlarged disk goes to the end with the first move.
func (c *copies) goes() bool { return c.enlarged && c.old != nil }

// damaged reports whether something is to be mended, and can be.
func (c *copies) damaged() bool { return !c.blocked() && (c.torn() || (c.shield < 0 && c.bare)) }

// blocked reports whether a copy cannot be written anew.
func (c *copies) blocked() bool {
	for i, own := range c.valid {
		if own == nil && c.anew[i] == nil {
			return true
		}
	}
	return false
}

// crossed reports whether one of two valid headers does not name the place of the other.
func (c *copies) crossed() bool {
	a, b := c.valid[primary], c.valid[backup]
	return a != nil && b != nil && (a.header.AltLBA != b.header.MyLBA || b.header.AltLBA != a.header.MyLBA)
}

// usable returns the end of the space for partitions on a disk of size bytes.
func (c *copies) usable(size int64) int64 {
	end := ondisk.I64(c.good().header.LastUsable+1) * c.sector
	if c.enlarged || c.good().cut {
		end = max(0, c.end-c.sector-c.room())
	}
	return end + c.growth(size)
}

// coversEnd reports whether a protective entry that ends at a byte covers the end of the disk, or the backup in the
// middle of an enlarged one, which goes to the end with a move.
func (c *copies) coversEnd(end int64) bool {
	return end == c.end || c.enlarged && end > ondisk.I64(c.good().header.AltLBA)*c.sector && end < c.end
}

// growth returns how far the end of the disk goes when that has size bytes.
func (c *copies) growth(size int64) int64 { return units.AlignDown(size, c.sector) - c.end }

// places returns where header and array of a copy are in the disk that was read.
func (c *copies) places(i int) (header, array int64) {
	if own := c.valid[i]; own != nil {
		return own.at, own.array().Off
	}
	if w := c.anew[i]; w != nil {
		return w.header, w.array
	}
	return [...]int64{c.sector, c.end - c.sector}[i], 0
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
		g.BootCode = make([]byte, codeLength) // no BIOS starts a sector without a signature
		text := "there is no protective MBR in sector 0: many systems will not see this GPT"
		if g.gpt.bare = ondisk.IsZero(b); !g.gpt.bare {
			g.Issues = append(g.Issues, ondisk.Issue{
				Code: "gpt-no-mbr", Effect: ondisk.Warn, Text: text, Remedy: "sector 0 holds something else, which " +
					"stays; repair it with gdisk if nothing needs it",
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
			Text: fmt.Sprintf("the protective entry of the MBR starts at LBA %d, want 1: Linux does not take the "+
				"disk for one with a GPT", start),
			Remedy: "write it again in the guest (gdisk, x, n) if a Linux is to see the partitions",
		})
	}
	g.readHybrid(m)
	return nil
}

// readPlace finds out whether a GPT is a remnant. missing is the sector 0 of a disk without an MBR.
func (c *copies) readPlace(d disk.Disk, missing *mbr) error {
	named := slices.ContainsFunc(missing.sector.Entries[:], func(e mbrEntry) bool { return e.Type == typeProtective })
	c.remnant = c.valid[primary] == nil && !named
	if !c.remnant || c.magic() {
		return nil
	}
	var ours []disk.Range
	if w := c.anew[primary]; w != nil { // a wiped header leaves the entries
		ours = append(ours, disk.Range{Off: w.array, Len: int64(len(w.found))})
	}
	free, err := zerosBut(d, c.sector, min(firstArray*c.sector+c.room(), d.Size()), ours...)
	c.taken = !free
	return err
}

// zerosBut reports whether a disk has only zeros from a byte on up to another, but for ranges in ascending order.
func zerosBut(d disk.Disk, at, end int64, ranges ...disk.Range) (bool, error) {
	for _, r := range append(ranges, disk.Range{Off: end}) {
		if free, err := ondisk.AllZero(d, disk.Range{Off: at, Len: min(r.Off, end) - at}); err != nil || !free {
			return false, err
		}
		at = max(at, r.End())
	}
	return true, nil
}

// Remnant reports whether of a GPT only the backup is left, without a protective MBR. A volume made on the whole disk
// leaves such a backup where it is. taken reports whether something else stands where the primary would go.
func (t *Table) Remnant() (remnant, taken bool) {
	return t.gpt != nil && t.gpt.remnant, t.gpt != nil && t.gpt.taken
}

// Torn reports whether a GPT is damaged so that nothing can be rewritten in it before it is mended.
func (t *Table) Torn() bool { return t.gpt != nil && t.gpt.torn() }

// Rest reports whether a disk ends with data behind its last whole sector, which a larger disk could not have there.
func (t *Table) Rest() bool { return t.gpt != nil && t.gpt.rest }

// Blocked reports whether a copy of a GPT is damaged and cannot be written anew.
func (t *Table) Blocked() bool { return t.gpt != nil && t.gpt.blocked() }

// OnlyBackup reports whether the primary of a GPT is not valid.
func (t *Table) OnlyBackup() bool { return t.gpt != nil && t.gpt.valid[primary] == nil }

// shield returns the slot of the protective entry: of several the one that begins behind sector 0, as firmware and
// Linux want it.
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
