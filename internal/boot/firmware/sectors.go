package firmware

import (
	"bytes"
	"fmt"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// Sector0 reports what a move would break in the code of sector 0.
var Sector0 = boot.Finder{Name: "boot code", Find: checkMBR}

func checkMBR(g *boot.Guest) (r boot.Found, err error) {
	name, err := encryptedBesides(g)
	if g.Code == boot.Unknown && name == "" && err == nil {
		r.Unbootable("boot-code", 0,
			"the boot code in sector 0 is not known, nor whether it finds its partition after a move", boot.WhenUnknown)
	}
	if g.BesideGPT && (g.Code.GPT || g.Code.BothTables) {
		r.Unbootable("boot-code", 0, "the boot code in sector 0 ("+g.Code.Name+") reads the GPT at LBA 1, and "+
			"systems go by the MBR, which has no protective entry: the GPT keeps the old places",
			"write a protective or hybrid MBR in the guest first (gdisk), and copy again")
	}
	return r, err
}

// BootSectors reports what a move would break in the boot sectors of partitions.
var BootSectors = boot.Finder{Name: "boot sectors", Find: boot.Everywhere(checkVolume)}

func checkVolume(g *boot.Guest, p boot.Partition, r *boot.Found) error {
	if _, ok, err := g.Area(p); !ok {
		return err
	}
	b, err := ondisk.Bytes(g.Disk, p.Off, boot.AreaLen)
	if err != nil {
		return err
	}
	switch {
	case p.Kind == table.Extended:
		// Its first record has room for code: LILO and GRUB can be installed there.
		if p.Active && boot.Identify(g.Codes, b[:boot.CodeLen]) == boot.Unknown {
			text := fmt.Sprintf("the boot sector of the active partition %d holds code that is not known", p.Number)
			r.Unbootable("boot-code", 0, text, boot.WhenUnknown)
		}
	case g.Loader(b[:boot.CodeLen]) != boot.Unknown:
		// Its Find reports it.
	case p.Volume.Boot != nil:
		// Its code finds the volume by the BIOS parameter block; other finders read what a Windows stores besides.
	case p.Volume.Kind == volume.Disklabel:
		// boot1 of a BSD, which the label belongs to: package layout refuses labels that keep places, by type and
		// label.
	case p.Volume.Kind == volume.ExFAT && noExFATCode(b):
	case startsFrom(g, p, b):
		unknownSector(r, g, p)
	}
	return nil
}

// startsFrom reports whether the boot can run the first sector of a partition.
func startsFrom(g *boot.Guest, p boot.Partition, b []byte) bool {
	return signed(g, b) && (p.Active || !g.Code.Many && g.Chooses(p))
}

// signed reports whether a first sector counts as boot code. FreeBSD's pmbr wants no signature.
func signed(g *boot.Guest, b []byte) bool {
	return b[510] == 0x55 && b[511] == 0xaa || g.Code == FreeBSDGPT
}

// noExFATCode reports whether the boot sector of an exFAT has no code: the specification wants halts then, and
// formatters write zeros. Spec: 3.1.15.
func noExFATCode(b []byte) bool { return len(bytes.Trim(b[120:510], "\x00\xf4")) == 0 }

// unknownSector reports an unknown boot sector. If code in sector 0 reads it, it may find its volume by a place that it
// stores, as that of OS/2 does. Without such code nothing boots by it, unless it is a loader in front of a file system
// that has no code of its own.
func unknownSector(r *boot.Found, g *boot.Guest, p boot.Partition) {
	if p.Volume.Kind == volume.Unknown && g.Code == boot.Empty {
		r.Warn("boot-code", p.Number, "the active partition has a boot sector of an unknown kind: it moves as it is",
			"")
		return
	}
	r.Unbootable("boot-code", p.Number, "the boot sector of the active partition holds code that is not known",
		boot.WhenUnknown)
}
