package table

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// copies are the two copies of a GPT and the protective MBR in front. At least one copy is valid.
type copies struct {
	disk, end       int64 // size of the disk, and of its whole sectors; bytes
	sector          int64
	primary, backup *gpt   // nil: not valid
	old             []byte // what stands where the primary header belongs
	place           int64  // where the array of a new primary goes, bytes
	tooTight        bool   // there is no place for a new primary
	occupied        bool   // something else stands where a new backup would go

	mbr    []byte // entries and signature of sector 0, from byte 446
	bare   bool   // they are all zero: a protective entry can be written
	shield int    // slot of the protective entry, -1: none

	remnant, taken bool // see Table.Remnant
}

const (
	protectiveSlots = 4
	primaryEntries  = 2 // LBA of the primary's array when it has to be written anew
)

// good returns a valid copy.
func (c *copies) good() *gpt {
	if c.primary != nil {
		return c.primary
	}
	return c.backup
}

// room returns what an array takes, in bytes.
func (c *copies) room() int64 { return units.AlignUp(c.good().array().Len, c.sector) }

// damaged reports whether something is to be mended, and can be.
func (c *copies) damaged() bool {
	if c.blocked() {
		return false
	}
	return c.primary == nil || c.backup == nil || c.crossed() || (c.shield < 0 && c.bare)
}

// blocked reports whether a copy cannot be written anew.
func (c *copies) blocked() bool {
	return (c.primary == nil && c.tooTight) || (c.backup == nil && c.occupied)
}

// backupAtEnd reports whether the backup belongs where the disk ends now: one that was enlarged has it in the middle.
func (c *copies) backupAtEnd() bool {
	return c.primary == nil || c.primary.header.AltLBA == ondisk.U64(c.end/c.sector-1)
}

// crossed reports whether one of two valid headers does not name the place of the other.
func (c *copies) crossed() bool {
	return c.primary != nil && c.backup != nil &&
		(c.primary.header.AltLBA != c.backup.header.MyLBA || c.backup.header.AltLBA != c.primary.header.MyLBA)
}

// usable returns the end of the space for partitions on a disk of size bytes. A backup that is not valid, or in the
// middle of an enlarged disk, gets its place at the end.
func (c *copies) usable(size int64) int64 {
	end := ondisk.I64(c.good().header.LastUsable+1) * c.sector
	if c.backup != nil || (c.backupAtEnd() && end <= c.end-c.sector-c.room()) {
		return end + units.AlignDown(size, c.sector) - c.end
	}
	return units.AlignDown(size, c.sector) - c.sector - c.room()
}

// pieces returns what the structures of a disk of size bytes are made of.
func (c *copies) pieces(size int64) []disk.Shift {
	var out []disk.Shift
	end := units.AlignDown(size, c.sector)
	if c.primary == nil && !c.tooTight {
		out = append(out, disk.Shift{From: c.backup.array().Off, To: c.place, Len: c.backup.array().Len})
	}
	if c.backup != nil {
		tail, last := c.usable(c.disk), c.end
		if size == c.disk {
			last = c.disk // with what is less than a sector
		}
		return append(out, disk.Shift{From: tail, To: c.usable(size), Len: last - tail})
	}
	array := end - c.sector - c.room()
	// What lies between the partitions and the backup goes with it.
	if tail := c.usable(c.disk); array > c.usable(size) {
		out = append(out, disk.Shift{From: tail, To: c.usable(size), Len: array - c.usable(size)})
	}
	return append(out, disk.Shift{From: c.primary.array().Off, To: array, Len: c.primary.array().Len})
}

// readOld looks at what a new primary would replace.
func (c *copies) readOld(g *gpt) error {
	c.shield = -1
	if c.backup == nil && !c.backupAtEnd() {
		if err := c.readEnd(g); err != nil {
			return err
		}
	}
	if c.primary != nil {
		return nil
	}
	b, err := ondisk.Bytes(g.d, c.sector, int64(g.header.HeaderSize))
	if err != nil {
		return err
	}
	c.old = b
	if c.place, err = c.findArray(); err != nil {
		return err
	}
	if c.tooTight = c.place+c.room() > ondisk.I64(g.header.FirstUsable)*c.sector; c.tooTight {
		g.cannotMend("gpt-primary",
			fmt.Sprintf("there is no room for a new primary GPT in front of the first usable LBA %d",
				g.header.FirstUsable),
			"repair the table with gdisk first")
	}
	return nil
}

// readEnd looks at what a backup at the end of an enlarged disk would replace: the metadata of an array, for one.
func (c *copies) readEnd(g *gpt) error {
	if c.primary.cut {
		c.occupied = true // by a partition, maybe
		return nil
	}
	from := c.end - c.sector - c.room()
	if alt := c.primary.header.AltLBA; alt < ondisk.U64(c.end/c.sector) {
		from = max(from, ondisk.I64(alt+1)*c.sector) // what the old backup takes
	}
	free, err := isZero(g.d, from, c.end)
	if c.occupied = !free; err != nil || free {
		return err
	}
	g.cannotMend("gpt-backup", "something else stands at the end of the disk, where the backup GPT belongs",
		"if nothing needs it, repair the table with gdisk (sgdisk -e) first")
	return nil
}

// cannotMend reports that damage with a warning stays.
func (g *gpt) cannotMend(code, text, remedy string) {
	for i := range g.Issues {
		if g.Issues[i].Remedy == alignMends {
			g.Issues[i].Remedy = remedy
		}
	}
	g.Issues = append(g.Issues, ondisk.Issue{
		Code: code, Effect: ondisk.Refuse, OnMove: true, Text: text,
		Remedy: remedy,
	})
}

// findArray returns the place of the array of a primary whose header is not valid: where it was, when it stands right
// in front of the first usable LBA and only the header is damaged, since a boot loader can lie in front of it.
// Otherwise it goes behind the header.
func (c *copies) findArray() (int64, error) {
	g := c.backup
	behind := primaryEntries * c.sector
	at := ondisk.I64(g.header.FirstUsable)*c.sector - c.room()
	if at <= behind {
		return behind, nil
	}
	sum := crc32.NewIEEE()
	if _, err := io.Copy(sum, io.NewSectionReader(g.d, at, g.array().Len)); err != nil {
		return 0, err
	}
	if sum.Sum32() != g.header.EntriesCRC {
		return behind, nil
	}
	return at, nil
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
	c.remnant = c.primary == nil && !named
	if !c.remnant || bytes.HasPrefix(c.old, []byte(gptMagic)) {
		return nil
	}
	free, err := isZero(d, c.sector, min(primaryEntries*c.sector+c.room(), d.Size()))
	c.taken = !free
	return err
}

// isZero reports whether a disk has only zeros from a byte on up to another.
func isZero(d disk.Disk, at, end int64) (bool, error) {
	buf := make([]byte, 64<<10)
	for ; at < end; at += int64(len(buf)) {
		b := buf[:min(int64(len(buf)), end-at)]
		if err := ondisk.ReadFull(d, b, at); err != nil || !ondisk.IsZero(b) {
			return false, err
		}
	}
	return true, nil
}

// Remnant reports whether of a GPT only the backup is left, without a protective MBR. A volume made on the whole disk
// leaves such a backup where it is. taken reports whether something else stands where the primary would go.
func (t *Table) Remnant() (remnant, taken bool) {
	return t.gpt != nil && t.gpt.remnant, t.gpt != nil && t.gpt.taken
}

// Blocked reports whether a copy of a GPT is damaged and there is no place for a new one.
func (t *Table) Blocked() bool { return t.gpt != nil && t.gpt.blocked() }

// OnlyBackup reports whether the primary of a GPT is not valid.
func (t *Table) OnlyBackup() bool { return t.gpt != nil && t.gpt.primary == nil }

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
