// Package table reads partition tables (MBR with logical partitions, GPT) and writes moved partitions back as patches.
package table

import (
	"cmp"
	_ "embed" // the types of partitions
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Scheme is the kind of a partition table.
type Scheme string

// Schemes.
const (
	MBR Scheme = "mbr"
	GPT Scheme = "gpt"
)

// Kind is the structure that records a partition.
type Kind string

// Kinds of partitions.
const (
	Primary  Kind = "primary"
	Extended Kind = "extended" // a container of logical partitions
	Logical  Kind = "logical"
	Entry    Kind = "gpt"
)

// Partition is one entry. Offsets are bytes of the disk.
type Partition struct {
	disk.Range
	Number   int // number in Linux: 1 to 4 for MBR slots, from 5 for logical partitions, from 1 for GPT entries
	Kind     Kind
	Active   bool
	Type     byte   // MBR
	TypeGUID string // GPT
	GUID     string // GPT
	Name     string // GPT
	// LegacyBoot is attribute bit 2 of a GPT entry, "Legacy BIOS Bootable". Spec: UEFI 2.10, table 5.8.
	LegacyBoot bool
	// Slot is the slot of a hybrid MBR that mirrors this GPT entry, 0 without one. The slot also sets Type and Active.
	Slot int

	entry int64 // byte offset of the 16-byte MBR entry
	raw   mbrEntry
}

// Record returns the byte offset of the boot record with the partition's entry: sector 0, or the EBR of a logical
// partition.
func (p Partition) Record() int64 { return units.AlignDown(p.entry, units.SectorSize) }

// InMBR reports whether a slot of an MBR holds the partition, so that a BIOS or an old Windows can see it.
func (p Partition) InMBR() bool { return p.Kind == Primary || p.Slot > 0 }

// TypeID returns the type in the notation of type tables: "0x07", or the GUID.
func (p Partition) TypeID() string {
	if p.Kind == Entry {
		return p.TypeGUID
	}
	return mbrType(p.Type)
}

// TypeIDs returns the type, followed by the type of its slot in a hybrid MBR.
func (p Partition) TypeIDs() []string {
	if p.Slot > 0 {
		return []string{p.TypeID(), mbrType(p.Type)}
	}
	return []string{p.TypeID()}
}

func mbrType(t byte) string { return fmt.Sprintf("0x%02x", t) }

// Table is a partition table. Partitions are in the order of their numbers.
type Table struct {
	Scheme     Scheme
	SectorSize int64 // bytes per LBA of the table
	Signature  uint32
	GUID       string // GPT
	Partitions []Partition
	Issues     []ondisk.Issue
	BootCode   []byte      // the 440 bytes of code in sector 0
	Records    []Record    // of the extended partitions, in the order of their chains
	BesideGPT  bool        // MBR: a GPT follows, valid or not, without a protective entry
	Hybrid     []Partition // GPT: the used slots of its MBR, if it has more than the protective slot

	gpt *copies // GPT: both copies
}

// Places holds the new positions of partitions and records. Anything not listed stays.
type Places struct {
	Parts   map[int]disk.Range // by partition number; only extended partitions change their length
	Records map[int64]int64    // new byte offsets of extended boot records, by old byte offset
	Size    int64              // of the disk, bytes
	Mend    bool               // rewrite damaged copies of a GPT, and its protective MBR
}

// Relocate returns the patches that write the new positions into the table. Patch offsets are offsets in the result.
// geometry is the geometry of the CHS bytes.
func (t *Table) Relocate(to Places, geometry Geometry) []disk.Patch {
	if t.Scheme == GPT {
		return t.relocateGPT(to, geometry)
	}
	return t.relocateMBR(to, geometry)
}

// Usable returns the end of the space for partitions on a disk of size bytes.
func (t *Table) Usable(size int64) int64 {
	if t.gpt != nil {
		return t.gpt.usable(size)
	}
	return size
}

// Limit returns the end of the space that the table can address, in bytes.
func (t *Table) Limit() int64 {
	if t.Scheme == GPT && !t.IsHybrid() {
		return math.MaxInt64
	}
	return (MaxLBA + 1) * t.SectorSize
}

// Read reads the table of a disk. It returns ErrNoMatch if the disk has no table. A fault inside a table becomes an
// issue, so that the rest can be reported.
func Read(d disk.Disk) (*Table, error) {
	m, err := readMBR(d)
	noMBR := isNoMatch(err)
	if err != nil && !noMBR {
		return nil, err
	}
	if !noMBR && m.isCode(d.Size()) {
		return nil, ondisk.ErrNoMatch
	}
	if noMBR || m.protective() {
		g, err := readGPT(d)
		if err == nil {
			return &g.Table, g.addMBR(d, m, noMBR)
		}
		if noMBR || !isNoMatch(err) {
			return nil, err
		}
		m.broken(atEntries, "partition table", "a protective entry (0xEE)",
			"a GPT header at LBA 1 or at the end of the disk")
	}
	m.checkRanges(d.Size())
	m.readLogical(d)
	m.checkCut(d.Size())
	return &m.Table, m.besideGPT(d)
}

// Damaged reports whether a copy of the table or its protective MBR is damaged, and Relocate can repair it.
func (t *Table) Damaged() bool { return t.gpt != nil && t.gpt.damaged() }

// Tail returns the range behind the space for partitions, and its position on a disk of size bytes: the backup of a GPT
// keeps its distance from the end.
func (t *Table) Tail(size int64) disk.Shift {
	if t.gpt == nil {
		return disk.Shift{From: size, To: size}
	}
	return t.gpt.tail(size)
}

// Structures returns the ranges of the table: sector 0, extended boot records, and both copies of a GPT. An invalid
// copy is listed at its usual position. The backup of an enlarged disk is listed twice: at its current and its future
// position.
func (t *Table) Structures() []disk.Range {
	sector := func(off int64) disk.Range { return disk.Range{Off: off, Len: t.SectorSize} }
	out := []disk.Range{sector(0)}
	for _, r := range t.Records {
		out = append(out, sector(r.Off))
	}
	c := t.gpt
	if c == nil {
		return out
	}
	for i, own := range []*gpt{c.valid[primary], c.valid[backup], c.old} {
		switch {
		case own != nil:
			out = append(out, sector(own.at), disk.Range{Off: own.array().Off, Len: c.room()})
		case i == primary:
			out = append(out, sector(c.sector), disk.Range{Off: firstArray * c.sector, Len: c.room()})
		case i == backup:
			last := c.end - c.sector
			out = append(out, sector(last), disk.Range{Off: last - c.room(), Len: c.room()})
		}
	}
	return out
}

// containers returns all partitions except logical ones. They lie side by side on the disk.
func (t *Table) containers() []Partition {
	return slices.DeleteFunc(slices.Clone(t.Partitions), func(p Partition) bool { return p.Kind == Logical })
}

// broken adds an issue for a field with an illegal value, with which a copy would fail.
func (t *Table) broken(off int64, field string, got, want any) {
	t.brokenIn(string(t.Scheme), off, 0, field, got, want)
}

// maxIssues limits the issues of one table: a large GPT can hold thousands of overlaps.
const maxIssues = 64

// report adds an issue up to the limit.
func (t *Table) report(i ondisk.Issue) {
	if len(t.Issues) < maxIssues {
		t.Issues = append(t.Issues, i)
	}
}

func (t *Table) brokenIn(what string, off int64, part int, field string, got, want any) {
	err := ondisk.Field(what, field, off, got, want)
	t.report(ondisk.Issue{
		Code: "table", Effect: ondisk.Broken, Partition: part, Text: err.Error(), Err: err,
		Remedy: "repair the partition table with the guest's own tools, or restore the image",
	})
}

// cutShort adds the issue of a truncated disk in front of all others. The table needs want bytes, the disk has size.
// err holds the position; missing reports whether bytes of a partition are past the end.
func (t *Table) cutShort(want, size int64, missing bool, err error) {
	text := fmt.Sprintf("the image has %d of the %d bytes that its partition table requires: it was cut short", size,
		want)
	remedy := "copy the whole image from its source again; if it is whole, repair the partition table in the guest"
	switch {
	case missing:
		text += ", or the table is damaged"
	case t.Scheme == MBR:
		text += " in the free space at the end of the extended partition. All other partitions are there"
		remedy = longer(want) + " restores its size"
	default:
		text += " behind its last partition. All partitions are there, but the backup GPT is missing"
		remedy = longer(want) + " restores its size; then --repair-table rewrites the backup"
	}
	t.Issues = slices.Insert(t.Issues, 0, ondisk.Issue{
		Code: "cut-short", Effect: ondisk.Broken, Text: text, Remedy: remedy,
		Err: fmt.Errorf("%s: %w; %s", text, err, remedy),
	})
}

// longer returns the commands that extend an image to size bytes.
func longer(size int64) string {
	return fmt.Sprintf("truncate -s %d IMAGE (raw; qemu-img resize IMAGE %d for other formats)", size, size)
}

func number(n int) string { return strconv.Itoa(n) }

// byOffset returns the indices of the partitions in disk order.
func (t *Table) byOffset() []int {
	out := make([]int, len(t.Partitions))
	for i := range out {
		out[i] = i
	}
	slices.SortFunc(out, func(a, b int) int { return cmp.Compare(t.Partitions[a].Off, t.Partitions[b].Off) })
	return out
}

// Role is a property of a partition type. Types of one system can share a role.
type Role string

// Roles used in code. Roles of types that do not move are keys of the refusals of package layout.
const (
	ESP         Role = "esp"       // an EFI system partition. Spec: UEFI 2.10, table 5.7 and 5.2.2
	PReP        Role = "prep"      // code that PowerPC firmware boots. Spec: PowerPC reference platform
	BIOSBoot    Role = "bios-boot" // core.img of GRUB on a GPT. Spec: GRUB manual, "BIOS installation"
	FreeBSDBoot Role = "freebsd-boot"
	FreeBSD     Role = "freebsd"      // a disklabel in it counts from its start
	LDM         Role = "ldm"          // a partition of a Windows dynamic disk
	LDMDatabase Role = "ldm-database" // the partition of a dynamic disk with the database
	BeOS        Role = "beos"
	NoFiles     Role = "no-files" // unknown content of this type is no file system
	// Reserved marks partitions that a running guest neither reads nor writes: space kept free, or code that firmware
	// or a boot loader reads once. Sources: Microsoft, "CREATE_PARTITION_PARAMETERS" and "Windows and GPT FAQ" (MSR);
	// GRUB manual, "BIOS installation"; Linux, arch/powerpc, and sfdisk --list-types (PReP); FreeBSD, gpart(8),
	// freebsd-boot, which MidnightBSD has copied.
	Reserved Role = "reserved"
)

// partitionType is a line of types.txt.
type partitionType struct {
	name  string
	roles []Role
}

// types maps IDs to types of partitions.
var types = sync.OnceValue(func() map[string]partitionType {
	types := map[string]partitionType{}
	for line := range strings.Lines(typesText) {
		id, rest, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if !ok {
			continue // a comment
		}
		name, roles, _ := strings.Cut(rest, "\t")
		t := partitionType{name: name}
		for role := range strings.FieldsSeq(roles) {
			t.roles = append(t.roles, Role(role))
		}
		types[id] = t
	}
	return types
})

//go:embed types.txt
var typesText string

// TypeName returns the name of the partition's type, or "" if the type is unknown.
func (p Partition) TypeName() string { return types()[p.TypeID()].name }

// Roles returns the roles of the type with an ID.
func Roles(id string) []Role { return types()[id].roles }

// Is reports whether the type of a partition has a role.
func (p Partition) Is(role Role) bool { return slices.Contains(Roles(p.TypeID()), role) }
