// Package firmware knows how a BIOS or UEFI starts a disk: code of sector 0 and of boot sectors that belongs to no
// other family, and what they store of the place of their partition.
package firmware

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// Chain finds how a BIOS gets from sector 0 to the boot sector of a partition. The finder of a loader describes the
// steps from there on. Without code in sector 0 there is no chain.
var Chain = boot.Finder{Name: "boot chain", Find: firstLinks}

func firstLinks(g *boot.Guest) (f boot.Found, err error) {
	switch c := g.Code; {
	case c == boot.Unknown:
		f.Link(0, "the code in sector 0 is not known, and so is what it reads")
	case c == boot.Empty || c.Encrypts || c.Find != nil: // see finder encryption, and the loader's own
		return f, nil
	case !sector0Reads(&f, g):
		return f, nil
	}
	for _, p := range chosen(g) {
		if err := bootSector(&f, g, p); err != nil {
			return f, fmt.Errorf("partition %d: %w", p.Number, err)
		}
	}
	return f, nil
}

// sector0Reads adds what standard code does, and reports whether it finds a partition to boot from.
func sector0Reads(f *boot.Found, g *boot.Guest) bool {
	c, who := g.Code, "code of "+g.Code.Name
	if c.Generic {
		who = c.Name
	}
	if g.Scheme == table.GPT && c.Generic && !g.Hybrid() {
		const text = "the code in sector 0 has the shape of standard code for an MBR, " +
			"and whether it reads the GPT is not known"
		f.Link(0, text)
		f.Warn("boot-code", 0, text, "if a BIOS boots the disk by it, install the boot loader again on the copy")
		return false
	}
	if g.BesideGPT && c.GPT {
		f.Link(0, "%s in sector 0 reads the GPT at LBA 1, which the MBR does not announce: where it leads is unknown",
			who)
		return false
	}
	if (g.Scheme == table.GPT) != c.GPT && !c.BothTables && (c.GPT || !g.Hybrid()) {
		other := map[bool]string{true: "an MBR", false: "a GPT"}[c.GPT]
		f.Link(0, "%s in sector 0 does not read %s: no BIOS boots by it", who, other)
		return false
	}
	choice := cmp.Or(c.Choice, "the active partition")
	if c.Number != nil {
		choice = fmt.Sprintf("partition %d", c.Number(g.Sector0))
	}
	if g.Hybrid() && !c.GPT && !c.BothTables {
		choice += " of the hybrid MBR"
	}
	over := ""
	if c.HandsOver {
		over = ", and hands its entry of the table over"
	}
	f.Link(0, "%s in sector 0 reads the boot sector of %s by %s%s", who, choice, address(c), over)
	return chosenAre(f, chosen(g), c)
}

// maxChosen bounds the bootable partitions that are reported. An MBR has room for four.
const maxChosen = 16

// chosen returns the partitions that the code in sector 0 can boot from.
func chosen(g *boot.Guest) []boot.Partition {
	ps := slices.DeleteFunc(slices.Clone(g.Partitions), func(p boot.Partition) bool { return !g.Chooses(p) })
	return ps[:min(len(ps), maxChosen)]
}

// chosenAre adds what happens if not exactly one partition is bootable, and reports whether any is.
func chosenAre(f *boot.Found, ps []boot.Partition, c *boot.Code) bool {
	switch {
	case len(ps) == 0:
		f.Link(0, "there is no such partition, so a BIOS does not boot from this disk")
	case len(ps) > 1 && !c.Many:
		var numbers []string
		for _, p := range ps {
			numbers = append(numbers, strconv.Itoa(p.Number))
		}
		f.Link(0, "partitions %s are marked so, which most code takes for an error", strings.Join(numbers, ", "))
	}
	return len(ps) > 0
}

// systemFile is a file that a boot sector loads.
type systemFile struct {
	mark, text string
	dos        bool // by the heads and sectors that the boot sector stores
}

// systemFiles are the files that boot sectors of file systems load, by the name in the code: in a message, or as a
// folder entry of FAT. Seen: the test corpus has those of Windows, and mkfs.fat and mkntfs write the message. The rest
// are the names that their systems document.
var systemFiles = []systemFile{
	{"BOOTMGR", "loads BOOTMGR of Windows Vista or later", false},
	{"NTLDR", "loads NTLDR of Windows NT to 2003", false},
	{"IO      SYS", "loads IO.SYS of MS-DOS or Windows 9x", true},
	{"IBMBIO  COM", "loads IBMBIO.COM of PC DOS", true},
	{"KERNEL  SYS", "loads KERNEL.SYS of FreeDOS", true},
	{"SYS01475", "loads OS/2", true},
	{"FREELDR SYS", "loads FREELDR.SYS of ReactOS", false},
	{"not a bootable disk", "shows a message of the formatter: there is no loader", false},
}

// DOS finds the boot sectors of DOS and OS/2, which the menu of any loader can start, and those that the code in sector
// 0 starts by their number.
var DOS = boot.Finder{Name: "boot sectors of DOS", Find: boot.Everywhere(findDOS)}

func findDOS(g *boot.Guest, p boot.Partition, f *boot.Found) error {
	if p.Volume.Boot == nil || p.Len < 512 || p.End() > g.Disk.Size() {
		return nil
	}
	b, err := ondisk.Bytes(g.Disk, p.Off, 512)
	if err != nil {
		return err
	}
	ofDOS := signed(g, b) && slices.ContainsFunc(systemFiles, func(s systemFile) bool {
		return s.dos && bytes.Contains(b[endOfBPB:], []byte(s.mark))
	})
	if ofDOS || g.Chooses(p) {
		f.DOS = append(f.DOS, p.Number)
	}
	return nil
}

// bootSector adds what the boot sector of a partition does.
func bootSector(f *boot.Found, g *boot.Guest, p boot.Partition) error {
	if p.Len < 512 || p.End() > g.Disk.Size() {
		f.Link(p.Number, "partition %d has no boot sector inside of the disk", p.Number)
		return nil
	}
	b, err := ondisk.Bytes(g.Disk, p.Off, 512)
	if err != nil {
		return err
	}
	if described, err := g.Described(p, b); described || err != nil {
		return err
	}
	f.Link(p.Number, "the boot sector of partition %d (%s) %s", p.Number, content(p), sectorText(g, b, p))
	return nil
}

func content(p boot.Partition) string {
	if p.Kind == table.Extended {
		return "extended"
	}
	return string(p.Volume.Kind)
}

// endOfBPB is where the fields of every file system end and only code follows, but for exFAT. Spec: fatgen103,
// "Extended BPB" of FAT32.
const endOfBPB = 90

func sectorText(g *boot.Guest, b []byte, p boot.Partition) string {
	if ondisk.IsZero(b[endOfBPB:510]) || !signed(g, b) ||
		p.Volume.Kind == volume.ExFAT && noExFATCode(b) {
		return "holds no code: the boot ends there"
	}
	for _, s := range systemFiles {
		if bytes.Contains(b, []byte(s.mark)) {
			return s.text
		}
	}
	if p.Volume.Kind == volume.Disklabel {
		return "holds the first stage of a BSD"
	}
	return "holds code that is not known"
}

// address returns how code names a sector to the BIOS.
func address(c *boot.Code) string {
	switch {
	case c.Address != "":
		return c.Address
	case c.ReadsCHS:
		return "cylinder, head and sector"
	}
	return "LBA"
}
