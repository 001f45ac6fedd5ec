package table

import (
	"slices"

	"github.com/trueup/trueup/internal/ondisk"
)

// Geometry is what CHS bytes are computed in. It is that of the BIOS that boots the disk, not a constant: a disk that
// was set up under 16 heads does not boot with bytes for 255.
type Geometry struct{ Heads, Sectors int }

// Valid reports whether g can be expressed in CHS bytes.
func (g Geometry) Valid() bool {
	return g.Heads >= 1 && g.Heads <= 256 && g.Sectors >= 1 && g.Sectors <= 63
}

// maxCylinder is the largest that ten bits hold.
const maxCylinder = 1023

// saturated is what every system writes for an address beyond CHS.
var saturated = [3]byte{0xfe, 0xff, 0xff}

// encode returns the CHS bytes of a sector; ok is false beyond the last cylinder.
func (g Geometry) encode(lba int64) (chs [3]byte, ok bool) {
	track := lba / int64(g.Sectors)
	return pack(track/int64(g.Heads), track%int64(g.Heads), lba%int64(g.Sectors)+1)
}

func pack(cyl, head, sector int64) (chs [3]byte, ok bool) {
	if cyl > maxCylinder {
		return saturated, false
	}
	return [3]byte{ondisk.Byte(head), ondisk.Byte(sector | cyl>>8<<6), ondisk.Byte(cyl & 0xff)}, true
}

func unpack(b [3]byte) (cyl, head, sector int64) {
	return int64(b[1]&0xc0)<<2 | int64(b[2]), int64(b[0]), int64(b[1] & 0x3f)
}

// lba returns the sector of CHS bytes, -1 if they have no meaning in this geometry.
func (g Geometry) lba(b [3]byte) int64 {
	c, h, s := unpack(b)
	if s == 0 || s > int64(g.Sectors) || h >= int64(g.Heads) {
		return -1
	}
	return (c*int64(g.Heads)+h)*int64(g.Sectors) + s - 1
}

// lastOfCylinder returns the end of a partition as partitioners that know cylinders write it: the last head and sector
// of the cylinder in which the partition ends, or of the last cylinder that CHS can name. QEMU and BIOSes guess the
// geometry from these bytes, so an exact end in the middle of a cylinder would make them guess wrong. So would
// FE FF FF, which says 255 heads, where the old bytes do not.
func (g Geometry) lastOfCylinder(lba int64, old [3]byte) [3]byte {
	if old == saturated {
		return saturated
	}
	cyl := min(lba/int64(g.Heads*g.Sectors), maxCylinder)
	chs, _ := pack(cyl, int64(g.Heads-1), int64(g.Sectors))
	return chs
}

// Guessed returns the geometry that a machine takes from the table where nothing else states one: that of the first
// entry of sector 0 with an end that has a head. ok is false without one. Source: QEMU 7.2 hw/block/hd-geometry.c,
// guess_disk_lchs.
func (t *Table) Guessed() (g Geometry, ok bool) {
	for _, p := range t.slots() {
		_, h, s := unpack(p.raw.EndCHS)
		if (p.Kind == Primary || p.Kind == Extended) && p.raw.Sectors > 0 && h > 0 && s > 0 {
			return Geometry{Heads: int(h) + 1, Sectors: int(s)}, true
		}
	}
	return Geometry{}, false
}

// common are the translations that BIOSes use, most frequent first.
var common = []Geometry{{255, 63}, {16, 63}, {240, 63}, {128, 63}, {64, 63}, {32, 63}, {64, 32}}

// Geometry finds the one that explains most CHS bytes of the table. Candidates are the ends of its own entries, then
// hints (boot sectors, container), then the common ones; of equals the first wins.
func (t *Table) Geometry(hints []Geometry) Geometry {
	var ends []Geometry
	for _, p := range t.slots() {
		_, h, s := unpack(p.raw.EndCHS)
		if p.Kind != Entry && h > 0 && p.raw.EndCHS != saturated {
			ends = append(ends, Geometry{int(h) + 1, int(s)})
		}
	}
	best, most := Geometry{}, 0
	for _, g := range slices.Concat(ends, hints, common) {
		if n := t.explained(g); n > most {
			best, most = g, n
		}
	}
	if most > 0 {
		return best
	}
	// No CHS byte of the table is right in any geometry, so its ends say nothing.
	others := slices.Concat(hints, common)
	return others[slices.IndexFunc(others, Geometry.Valid)]
}

// Saturated reports whether an entry ends in FE FF FF, "beyond CHS".
func (t *Table) Saturated() bool {
	return slices.ContainsFunc(t.slots(), func(p Partition) bool { return p.raw.EndCHS == saturated })
}

// slots returns the partitions with CHS bytes.
func (t *Table) slots() []Partition {
	if t.Scheme == GPT {
		return t.Hybrid
	}
	return t.Partitions
}

// explained counts the CHS fields that agree in g with the LBA beside them.
func (t *Table) explained(g Geometry) int {
	n := 0
	if !g.Valid() {
		return 0
	}
	for _, p := range t.slots() {
		if p.Kind != Primary && p.Kind != Extended {
			continue
		}
		first := p.Off / t.SectorSize
		if g.lba(p.raw.StartCHS) == first {
			n++
		}
		if g.lba(p.raw.EndCHS) == first+p.Len/t.SectorSize-1 {
			n++
		}
	}
	return n
}
