package table

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// mbrEntry is one of the four slots. Spec: UEFI 2.10, 5.2.1, "Legacy Master Boot Record".
type mbrEntry struct {
	Flag     byte    // 0x80: active
	StartCHS [3]byte // head, sector and cylinder high bits, cylinder low bits
	Type     byte
	EndCHS   [3]byte
	StartLBA uint32
	Sectors  uint32
}

// mbrSector is sector 0.
type mbrSector struct {
	Code      [440]byte
	Signature uint32 // identifies the disk in Windows
	_         uint16
	Entries   [4]mbrEntry
	Magic     uint16
}

const (
	mbrMagic   = 0xaa55
	atEntries  = 446
	entrySize  = 16
	atStartLBA = 8 // in an entry
	atMagic    = 510
	codeLength = 440
)

// MBR types with a special meaning.
const (
	typeUnused     = 0x00
	typeExtended   = 0x05
	typeExtendedX  = 0x0f // the same, for BIOSes with LBA support
	typeExtendedL  = 0x85 // the same, for old Linux
	typeProtective = 0xee
)

func isExtended(t byte) bool {
	return t == typeExtended || t == typeExtendedX || t == typeExtendedL
}

func isNoMatch(err error) bool { return errors.Is(err, ondisk.ErrNoMatch) }

// mbr is the table under construction.
type mbr struct {
	Table
	sector mbrSector
	beyond int  // issues caused by the end of the disk alone
	lost   bool // boot records past the end of the disk may hold more logical partitions
}

func readMBR(d disk.Disk) (*mbr, error) {
	m := &mbr{}
	if d.Size() < units.SectorSize {
		return m, ondisk.ErrNoMatch
	}
	if _, err := ondisk.Decode(d, 0, &m.sector); err != nil {
		return m, err
	}
	if m.sector.Magic != mbrMagic {
		return m, ondisk.ErrNoMatch
	}
	m.Scheme, m.SectorSize, m.Signature = MBR, d.SectorSize(), m.sector.Signature
	m.BootCode = m.sector.Code[:]
	for i, e := range m.sector.Entries {
		if e.Type != typeUnused {
			m.add(i, e)
			continue
		}
		m.unnamed(int64(atEntries+i*entrySize), e, 0, disk.Range{Len: d.Size()})
	}
	return m, nil
}

// CodeUnnamed is the issue code of an entry of type 0 with a range.
const CodeUnnamed = "type-0"

// unnamed reports an entry of type 0 with a range inside of within. DOS and Windows ignore the entry, but Linux uses it
// as a partition, which a move would leave behind. Source: Linux, block/partitions/msdos.c: msdos_partition checks only
// the size. at is the byte offset of the entry; its LBA counts from base.
func (m *mbr) unnamed(at int64, e mbrEntry, base int64, within disk.Range) {
	r := disk.Range{Off: base + int64(e.StartLBA)*m.SectorSize, Len: int64(e.Sectors) * m.SectorSize}
	if e.StartLBA == 0 || e.Sectors == 0 || !within.Contains(r) {
		return
	}
	m.report(ondisk.Issue{
		Code: CodeUnnamed, Effect: ondisk.Refuse, OnMove: true,
		Text: fmt.Sprintf("the entry at %#x has type 0x00 and names LBA %d to %d: Windows takes it for unused, and "+
			"Linux for a partition", at, r.Off/m.SectorSize, r.End()/m.SectorSize-1),
		Remedy: "delete the entry in the guest, or give it a type",
	})
}

// add adds slot i. LBAs count sectors of the disk's own size.
func (m *mbr) add(i int, e mbrEntry) {
	at := int64(atEntries + i*entrySize)
	p := Partition{
		Number: i + 1, Kind: Primary, Type: e.Type, Active: e.Flag == 0x80, entry: at, raw: e,
		Range: disk.Range{Off: int64(e.StartLBA) * m.SectorSize, Len: int64(e.Sectors) * m.SectorSize},
	}
	if isExtended(e.Type) {
		p.Kind = Extended
	}
	if e.Flag != 0 && e.Flag != 0x80 {
		m.brokenIn("mbr", at, p.Number, "boot flag", fmt.Sprintf("%#02x", e.Flag), "0x00 or 0x80")
	}
	if e.StartLBA == 0 && e.Type != typeProtective {
		m.brokenIn("mbr", at+8, p.Number, "start LBA", 0, "1 or more (sector 0 holds the table)")
	}
	if e.Sectors == 0 {
		m.brokenIn("mbr", at+12, p.Number, "sector count", 0, "1 or more")
	}
	m.Partitions = append(m.Partitions, p)
}

// isCode reports whether code or text is in place of the entries, as in the boot sector of a volume over the whole
// disk: a boot flag is illegal, and no entry has a range on the disk, or all four flags are illegal. Linux rejects a
// table for one illegal flag (block/partitions/msdos.c); here a single wrong byte of a table is damage to report.
func (m *mbr) isCode(size int64) bool {
	illegal, placed := 0, false
	for _, e := range m.sector.Entries {
		r := disk.Range{Off: int64(e.StartLBA) * m.SectorSize, Len: int64(e.Sectors) * m.SectorSize}
		inside := e.Type != typeUnused && r.Off > 0 && r.Off < size && r.Len > 0
		if e.Flag != 0 && e.Flag != 0x80 {
			illegal++
			inside = inside && r.End() <= size // a truncated disk has legal flags
		}
		placed = placed || inside
	}
	return illegal == len(m.sector.Entries) || (illegal > 0 && !placed)
}

func (m *mbr) protective() bool {
	return slices.ContainsFunc(m.Partitions, func(p Partition) bool { return p.Type == typeProtective })
}

// Plausible reports whether the entries can be a partition table. The boot sector of a volume has text or code in their
// place.
func (t *Table) Plausible() bool {
	return len(t.Partitions) > 0 &&
		!slices.ContainsFunc(t.Issues, func(i ondisk.Issue) bool { return i.Effect == ondisk.Broken })
}

// checkRanges reports partitions that leave the disk or overlap. Sums are in 64 bits, since 32-bit sums would wrap.
func (m *mbr) checkRanges(size int64) {
	parts := m.containers()
	extended := 0
	for i, p := range parts {
		if p.End() > size {
			m.endsPastDisk("mbr", p, size)
		}
		for _, q := range parts[:i] {
			if p.Overlaps(q.Range) {
				m.brokenIn("mbr", p.entry+8, p.Number, "start LBA", p.Off/m.SectorSize, fmt.Sprintf(
					"a place apart from partition %d (LBA %d to %d)", q.Number, q.Off/m.SectorSize,
					q.End()/m.SectorSize-1))
			}
		}
		if p.Kind == Extended {
			if extended++; extended == 2 {
				m.brokenIn("mbr", p.entry+4, p.Number, "type", fmt.Sprintf("%#02x", p.Type),
					"one extended partition at most")
			}
		}
	}
}

// endsPastDisk reports a partition that ends past a disk of size bytes.
func (m *mbr) endsPastDisk(what string, p Partition, size int64) {
	m.pastEnd(func() {
		m.brokenIn(what, p.entry+atStartLBA, p.Number, "end of partition", fmt.Sprintf("byte %d", p.End()),
			fmt.Sprintf("at most %d, the size of the disk", size))
	})
}

// pastEnd calls report, and counts its issues as caused by the end of the disk.
func (m *mbr) pastEnd(report func()) {
	n := len(m.Issues)
	report()
	m.beyond += len(m.Issues) - n
}

// checkCut reports a truncated disk if nothing else is wrong with its table.
func (m *mbr) checkCut(size int64) {
	broken := slices.DeleteFunc(slices.Clone(m.Issues), func(i ondisk.Issue) bool { return i.Effect != ondisk.Broken })
	if m.beyond == 0 || m.beyond < len(broken) {
		return
	}
	end, missing := size, m.lost
	for _, p := range m.Partitions {
		end, missing = max(end, p.End()), missing || p.Kind != Extended && p.End() > size
	}
	m.cutShort(end, size, missing, broken[0].Err)
}

// bytes returns the entry as stored on the disk.
func (e mbrEntry) bytes() []byte { return ondisk.Encode(binary.LittleEndian, e) }

// Geometry is the disk geometry of CHS bytes. It must be the geometry of the BIOS that boots the disk: a disk set up
// with 16 heads does not boot with bytes for 255.
type Geometry struct{ Heads, Sectors int }

// Valid reports whether g can be expressed in CHS bytes.
func (g Geometry) Valid() bool {
	return g.Heads >= 1 && g.Heads <= 256 && g.Sectors >= 1 && g.Sectors <= 63
}

// maxCylinder is the largest cylinder number of ten bits.
const maxCylinder = 1023

// saturated is the CHS address that all systems write for a sector beyond CHS.
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

// lba returns the sector of CHS bytes, or -1 if they are invalid in this geometry.
func (g Geometry) lba(b [3]byte) int64 {
	c, h, s := unpack(b)
	if s == 0 || s > int64(g.Sectors) || h >= int64(g.Heads) {
		return -1
	}
	return (c*int64(g.Heads)+h)*int64(g.Sectors) + s - 1
}

// lastOfCylinder returns the CHS end of a partition in the style of cylinder-based partitioners: the last head and
// sector of the cylinder where the partition ends, or of the last cylinder in CHS. QEMU and BIOSes guess the geometry
// from these bytes, so an exact end in the middle of a cylinder would mislead them. FE FF FF, which implies 255 heads,
// would mislead them too, unless the old bytes have it.
func (g Geometry) lastOfCylinder(lba int64, old [3]byte) [3]byte {
	if old == saturated {
		return saturated
	}
	cyl := min(lba/int64(g.Heads*g.Sectors), maxCylinder)
	chs, _ := pack(cyl, int64(g.Heads-1), int64(g.Sectors))
	return chs
}

// Guessed returns the geometry that a machine derives from the table without another source. It comes from the first
// entry of sector 0 with a nonzero end head. ok is false without such an entry. Source: QEMU 7.2
// hw/block/hd-geometry.c, guess_disk_lchs.
func (t *Table) Guessed() (g Geometry, ok bool) {
	for _, p := range t.slots() {
		_, h, s := unpack(p.raw.EndCHS)
		if (p.Kind == Primary || p.Kind == Extended) && p.raw.Sectors > 0 && h > 0 && s > 0 {
			return Geometry{Heads: int(h) + 1, Sectors: int(s)}, true
		}
	}
	return Geometry{}, false
}

// common lists the translations of BIOSes, most frequent first.
var common = []Geometry{{255, 63}, {16, 63}, {240, 63}, {128, 63}, {64, 63}, {32, 63}, {64, 32}}

// Geometry returns the geometry that explains most CHS bytes of the table. Candidates are the ends of its own entries,
// then hints (boot sectors, container), then the common translations. The first of equals wins.
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
	// No CHS byte of the table is right in any geometry, so its ends are no evidence.
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

// explained counts the CHS fields that match their LBA in geometry g.
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
