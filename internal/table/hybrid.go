package table

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// A hybrid MBR has entries beside the protective one, for systems that do not read the GPT: Windows started by a BIOS,
// DOS, and boot code. No specification defines it; gdisk(8), "Hybrid MBR", and sgdisk --hybrid create it.

const codeHybrid = "hybrid-mbr"

// readHybrid reads the slots of an MBR with more than its protective entry. Slots that mirror partitions of the GPT
// follow them; any other slot prevents a move.
func (g *gpt) readHybrid(m *mbr) {
	if len(m.Partitions) < 2 {
		return
	}
	g.Hybrid = m.Partitions
	faults := g.hybridFaults(m.SectorSize)
	for _, f := range faults {
		g.Issues = append(g.Issues, ondisk.Issue{
			Code: codeHybrid, Effect: ondisk.Refuse, OnMove: true, Text: "hybrid MBR of a GPT: " + f,
			Remedy: "if every system that boots from the disk reads the GPT, make the MBR protective (gdisk, x, " +
				"n); if one boots by the MBR, make its slots mirror partitions (sgdisk --hybrid), and copy again. " +
				"trueup convert copies the disk as it is",
		})
	}
	if len(faults) > 0 {
		return
	}
	var pairs []string
	for _, s := range g.Hybrid {
		if p := g.mirrored(s); p != nil {
			p.Slot, p.Active, p.Type = s.Number, s.Active, s.Type
			pairs = append(pairs, fmt.Sprintf("slot %d partition %d", s.Number, p.Number))
		}
	}
	g.Issues = append(g.Issues, ondisk.Issue{
		Code: codeHybrid, Effect: ondisk.Note, OnMove: true,
		Text: "hybrid MBR: " + strings.Join(pairs, ", ") + ": these slots follow their partitions, and the " +
			"protective entries still cover what they covered",
	})
}

// mirrored returns the partition of the GPT with the range of a slot, or nil if there is none.
func (g *gpt) mirrored(s Partition) *Partition {
	for i := range g.Partitions {
		if p := &g.Partitions[i]; p.Range == s.Range && s.Type != typeProtective {
			return p
		}
	}
	return nil
}

// hybridFaults returns the reasons why slots cannot follow, each with its position. sector is the sector size of the
// slots.
func (g *gpt) hybridFaults(sector int64) (faults []string) {
	if sector != g.SectorSize {
		return []string{fmt.Sprintf("its slots count sectors of %d bytes, and the GPT those of %d", sector,
			g.SectorSize)}
	}
	for _, p := range g.Partitions {
		if p.End() > (MaxLBA+1)*sector {
			return []string{fmt.Sprintf("partition %d ends at LBA %d, and a slot can name %d at most", p.Number,
				p.End()/sector-1, int64(MaxLBA))}
		}
	}
	mirrors, shielded := map[int]int{}, false
	for _, s := range g.Hybrid {
		fault := ""
		switch p := g.mirrored(s); {
		case s.raw.Flag != 0 && !s.Active:
			fault = fmt.Sprintf("its boot flag is %#02x, must be 0x00 or 0x80", s.raw.Flag)
		case s.Type == typeProtective:
			shielded = shielded || s.Off == sector
			fault = g.shieldFault(s)
		case s.Kind == Extended:
			fault = "it is an extended partition"
		case p == nil:
			fault = "no partition of the GPT has that range"
		case mirrors[p.Number] != 0:
			fault = fmt.Sprintf("slot %d has the range of partition %d, too", mirrors[p.Number], p.Number)
		default:
			mirrors[p.Number] = s.Number
		}
		if fault != "" {
			faults = append(faults, fmt.Sprintf("slot %d (type %#02x, LBA %d to %d) at %#x: %s", s.Number, s.Type,
				s.Off/sector, s.End()/sector-1, s.entry, fault))
		}
	}
	if !shielded && faults == nil {
		faults = append(faults, "no protective entry starts at LBA 1")
	}
	return faults
}

// shieldFault returns the reason why the coverage of a protective entry is unclear, or "". The entry must end on the
// disk, cover whole partitions or a copy of the GPT, and not overlap other slots.
func (g *gpt) shieldFault(s Partition) string {
	if s.End() > g.gpt.end {
		return fmt.Sprintf("it ends behind the disk, whose last LBA is %d", g.gpt.end/g.SectorSize-1)
	}
	for _, o := range g.Hybrid {
		said := o.Type == typeProtective && o.Number >= s.Number
		if !said && o.Overlaps(s.Range) {
			return fmt.Sprintf("slot %d (LBA %d to %d) lies over it", o.Number, o.Off/g.SectorSize,
				o.End()/g.SectorSize-1)
		}
	}
	covers := s.Off == g.SectorSize || s.End() == g.gpt.end // a copy of the GPT
	for _, p := range g.Partitions {
		if p.Overlaps(s.Range) && !s.Contains(p.Range) {
			return fmt.Sprintf("it covers a part of partition %d (LBA %d to %d)", p.Number, p.Off/g.SectorSize,
				p.End()/g.SectorSize-1)
		}
		covers = covers || s.Contains(p.Range)
	}
	if !covers {
		return "it covers neither a partition nor a copy of the GPT"
	}
	return ""
}

// besideGPT reports a GPT behind an MBR without a protective entry. Firmware and Linux then use the MBR. Boot loaders
// that read the header at LBA 1 use the GPT, which keeps the old positions. Spec: UEFI 2.10, 5.2.3; Linux,
// block/partitions/efi.c: is_pmbr_valid.
func (m *mbr) besideGPT(d disk.Disk) error {
	g, err := readCopy(d, d.SectorSize(), d.SectorSize(), false)
	switch {
	case isNoMatch(err):
		return nil
	case errors.Is(err, ondisk.ErrFormat):
		m.BesideGPT = !m.protective() // FreeBSD's pmbr checks only the signature of the header
		return nil
	case err != nil || len(g.Partitions) == 0:
		return err
	}
	m.BesideGPT = true
	m.Issues = append(m.Issues, ondisk.Issue{
		Code: "gpt-unprotected", Effect: ondisk.Warn, OnMove: true,
		Text: fmt.Sprintf("LBA 1 holds a valid GPT (partitions: %d), and the MBR has no protective entry (0xEE): "+
			"systems use the MBR, whose partitions move, and the GPT keeps the old positions", len(g.Partitions)),
		Remedy: "if the GPT is a leftover, wipe it (wipefs --types gpt); if something reads it, write a protective " +
			"or hybrid MBR first (gdisk)",
	})
	return nil
}

// IsHybrid reports whether the MBR in front of a GPT mirrors partitions of the GPT.
func (t *Table) IsHybrid() bool {
	return slices.ContainsFunc(t.Partitions, func(p Partition) bool { return p.Slot > 0 })
}

// relocateHybrid rewrites the slots of a hybrid MBR: mirrored partitions, and the protective entries between them.
// Slots of a refused hybrid MBR stay, except for the end of a protective entry at the end of the disk.
func (t *Table) relocateHybrid(to Places, geometry Geometry) (out []disk.Patch) {
	if !geometry.Valid() {
		geometry = t.Geometry(nil)
	}
	mirrors := map[int]Partition{}
	for _, p := range t.Partitions {
		mirrors[p.Slot] = p
	}
	for _, s := range t.Hybrid {
		if s.Off != int64(s.raw.StartLBA)*t.SectorSize {
			continue // its sector size differs from the GPT
		}
		now, what := s.Range, "slot "+number(s.Number)
		switch p, ok := mirrors[s.Number]; {
		case ok:
			now, what = to.rangeOf(p), fmt.Sprintf("%s, partition %d", what, p.Number)
		case s.Type == typeProtective:
			what += ", protective"
			off, end := s.Off, s.End()
			if t.IsHybrid() {
				off, end = t.coverFrom(s, to), t.coverTo(s, to)
			} else if t.gpt.coversEnd(end) {
				end = units.AlignDown(to.Size, t.SectorSize)
			}
			n := min(end-off, math.MaxUint32*t.SectorSize)
			if n > 0 && off <= MaxLBA*t.SectorSize {
				now = disk.Range{Off: off, Len: n}
			}
		}
		out = append(out, diff(s.entry, s.raw, t.moved(s.raw, s.Range, now, 0, geometry), "hybrid MBR", what)...)
	}
	return out
}

// coverFrom returns the start of a protective entry in the result. An entry that began at the end of a partition still
// does. Any other keeps its start, unless a partition in front of it now ends later, or a partition that it covers now
// begins earlier.
func (t *Table) coverFrom(s Partition, to Places) int64 {
	if s.Off <= t.SectorSize {
		return s.Off
	}
	least, most := int64(0), s.Off
	for _, p := range t.Partitions {
		now := to.rangeOf(p)
		switch {
		case p.End() == s.Off:
			return now.End()
		case p.End() < s.Off:
			least = max(least, now.End())
		case s.Contains(p.Range):
			most = min(most, now.Off)
		}
	}
	return max(least, most)
}

// coverTo returns the end of a protective entry in the result. An entry that covered the end of the disk, or ended at
// the start or end of a partition, still does. Any other keeps its end, unless a partition behind it now begins
// earlier, or a partition that it covers now ends later.
func (t *Table) coverTo(s Partition, to Places) int64 {
	if t.gpt.coversEnd(s.End()) {
		return units.AlignDown(to.Size, t.SectorSize)
	}
	least, most := s.End(), int64(math.MaxInt64)
	for _, p := range t.Partitions {
		now := to.rangeOf(p)
		switch {
		case p.Off == s.End():
			return now.Off
		case p.Off > s.End():
			most = min(most, now.Off)
		case p.End() == s.End():
			least = now.End()
		}
	}
	for _, p := range t.Partitions {
		if s.Contains(p.Range) {
			least = max(least, to.rangeOf(p).End())
		}
	}
	return min(least, most)
}
