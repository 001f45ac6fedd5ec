// Package boot knows what boots a disk and which absolute positions a move of a partition would break.
package boot

import (
	"bytes"
	"encoding/binary"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// Code is a program in a boot sector: how it is known, and what it does. It is compared by its address.
type Code struct {
	ID    string // "windows-2000", stable, for JSON
	Name  string // for people
	Known func(code []byte) bool
	// Generic marks code that is known by its shape only: who made it, and what else it does, is not known.
	Generic bool

	ReadsCHS bool // finds its partition by the CHS bytes of the table, on some machines at least
	// HandsOver marks code that gives the address of its entry of the table to the boot sector in DS:SI, by which a
	// loader finds its place without hidden sectors. False where that is not known.
	HandsOver bool
	// Encrypts marks the loader of a disk that is encrypted as a whole, by units that count from the start of the disk.
	Encrypts bool
	// Absolute marks a loader that finds its files by absolute sectors, from sector 0 or from the boot sector of a
	// partition.
	Absolute bool
	// AnyFlag marks code that boots whatever partition is active.
	AnyFlag bool

	// Find tells how a loader goes on and what a move of a partition breaks of it, wherever on the disk it is. Nil: the
	// fields below have it all.
	Find func(g *Guest, c *Code) (Found, error)
	// OfVolume marks the boot sector of a volume, which is never that of a disk. Offset is where it begins in volumes of a
	// kind, in bytes, where that is not at the start.
	OfVolume bool
	Offset   map[volume.Kind]int64

	// Which partition it reads the boot sector of. Without Number and Picks it is the active one, if not logical.
	Number func(sector0 []byte) int
	Picks  func(p Partition) bool
	Choice string // in words; empty: the active partition
	Many   bool   // any of several partitions is right

	GPT     bool   // it reads a GPT, and no MBR
	Address string // how it names a sector to the BIOS; empty: as ReadsCHS says
}

// Codes of a sector 0 that no entry of the table has.
var (
	Empty   = &Code{ID: "empty", Name: "none"}
	Unknown = &Code{ID: "unknown", Name: "unknown"}
)

// Codes is the table of contents, the more particular code before the more general. What each reads and hands over was
// read from its instructions.
//
// Seen as real bytes: Windows Server 2003 R2 and Windows 7 in the test corpus; syslinux and isolinux 6.04, parted 3.5
// and mbr 1.2.1 of Debian. DOS, 95B and Vista were held against copies in public repositories (retrodos, ms-sys), and
// the first instructions of FreeBSD's mbr against a published dump. FreeBSD's boot0, NetBSD and OpenBSD are known from
// their sources only. Windows NT 4 is not here: no bytes of it could be had; it is said to have the code of DOS, and
// has the common shape if not.
var Codes = []*Code{
	Grub2,
	GrubLegacy,
	Lilo,
	LiloMBR,
	TrueCrypt,
	VeraCrypt,
	PGP,
	SafeBoot,
	Windows2000,
	Windows98,
	DOS,
	Windows7,
	Vista,
	SyslinuxGPT,
	Grub4DOS,
	SyslinuxAlt,
	Syslinux,
	syslinuxVolume,
	Isolinux,
	Parted,
	DebianMBR,
	FreeBSDGPT,
	FreeBSDMenu,
	FreeBSD,
	NetBSD,
	OpenBSD,
	GenericCHS,
	GenericLBA,
}

// Identify names the code of an MBR (440 bytes).
func Identify(code []byte) *Code {
	if ondisk.IsZero(code) {
		return Empty
	}
	return first(Codes, code, func(c *Code) bool { return !c.OfVolume })
}

func first(codes []*Code, code []byte, may func(c *Code) bool) *Code {
	for _, c := range codes {
		if may(c) && c.Known(code) {
			return c
		}
	}
	return Unknown
}

// has makes code known by runs of bytes that it has in every version; their offsets differ between builds and
// languages.
func has(all ...[]byte) func(code []byte) bool {
	return func(code []byte) bool {
		for _, run := range all {
			if !bytes.Contains(code, run) {
				return false
			}
		}
		return true
	}
}

// says makes code known by a text.
func says(text string) func(code []byte) bool { return has([]byte(text)) }

func either(a, b func(code []byte) bool) func(code []byte) bool {
	return func(code []byte) bool { return a(code) || b(code) }
}

// inPartitions reports whether the code can be the boot sector of a partition, and its Find tells of it there.
func (c *Code) inPartitions() bool { return c.Absolute || c.OfVolume }

// loader names the loader in the boot sector of a partition.
func (g *Guest) loader(code []byte) *Code { return first(g.codes, code, (*Code).inPartitions) }

// chooses reports whether the code in sector 0 can boot from a partition. Code that is not known is taken for one that
// goes by the flag.
func (g *Guest) chooses(p Partition) bool {
	switch c := g.Code; {
	case c.Number != nil:
		return p.Number == c.Number(g.Sector0)
	case c.Picks != nil:
		return c.Picks(p)
	}
	return p.Active && p.Kind != table.Logical
}

// active picks the active partition, in extended ones too.
func active(p Partition) bool { return p.Active }

// none picks no partition: the code goes by no table.
func none(Partition) bool { return false }

// address says how code names a sector to the BIOS.
func (c *Code) address() string {
	switch {
	case c.Address != "":
		return c.Address
	case c.ReadsCHS:
		return "cylinder, head and sector"
	}
	return "LBA"
}

// GenericCHS and GenericLBA have the shape that all standard MBR programs share: they refer to the table, at its own
// place or at that of their copy, and read one sector through INT 13h. Code of another shape is unknown.
var (
	// mov ax,0201h or mov ah,02h: a read by cylinder, head and sector.
	GenericCHS = &Code{
		ID: "generic-chs", Name: "standard code of an unnamed maker", Generic: true, ReadsCHS: true,
		Known: func(code []byte) bool {
			return isStandard(code) && either(has([]byte{0xb8, 0x01, 0x02}), has([]byte{0xb4, 0x02}))(code)
		},
	}
	// mov ah,42h, mov ax,42xxh: a read by LBA.
	GenericLBA = &Code{
		ID: "generic-lba", Name: "standard code of an unnamed maker", Generic: true,
		Known: func(code []byte) bool {
			return isStandard(code) && either(has([]byte{0xb4, 0x42}), has([]byte{0x00, 0x42}))(code)
		},
	}
)

func isStandard(code []byte) bool {
	return refersToTable(code) && bytes.Contains(code, []byte{0xcd, 0x13})
}

// refersToTable looks for a 16-bit move or addition of the table's offset: at 7c00h, at 600h, or within the sector.
func refersToTable(code []byte) bool {
	for i := 1; i+1 < len(code); i++ {
		v := binary.LittleEndian.Uint16(code[i:])
		if (v == 0x7dbe || v == 0x07be || v == 0x01be) && (code[i-1]&0xf8 == 0xb8 || code[i-1] == 0x05 || code[i-1]&0xf8 == 0xc0) {
			return true
		}
	}
	return false
}
