package linux

import (
	"bytes"
	"encoding/binary"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
)

// ForDOS is the MBR of grub4dos. Its second part fills the sectors behind the first, and finds GRLDR by name in
// whatever partition it lies: nothing counts from the start of the disk but what stands in front of all partitions. It
// reads by CHS where the BIOS has no extensions.
//
// It moves 223 words of itself, and looks for the mark of the second part at bx: an installer can give each disk a mark
// of its own (disk_serial_number_structure). It goes on in another segment, looks once more … add si,12; cmp si,1feh:
// through the table. Spec: grub4dos 0.4.4 and 0.4.6a, stage2/grldrstart.S; the copy of 0.4.6a in Rufus.
var ForDOS = &boot.Code{
	ID: "grub4dos", Name: "grub4dos", ReadsCHS: true, AnyFlag: true, Find: findGrub4DOS,
	Known: boot.Like("31f6 31ff b9df00 fc f3a5 bb.... 66b8........ 663907 7503 e8", "16 1f 663907",
		"83c60c 81fefe01 72"),
}

// The code has the place of the mark that ends the second part, and the mark: rep movsw; mov bx,place; mov eax,mark;
// cmp [bx],eax.
var (
	beforePlace = []byte{0xfc, 0xf3, 0xa5, 0xbb}
	beforeMark  = []byte{0x66, 0xb8}
	behindMark  = []byte{0x66, 0x39, 0x07}
)

const (
	markLen     = 4
	longestPart = int64(63 * grubSector) // it reads the first track at most
)

// markOf returns the place and the mark of the second part. The code is known to have them.
func markOf(code []byte) (place int64, mark []byte) {
	for at := 0; ; at++ {
		next := bytes.Index(code[at:], beforePlace)
		if next < 0 {
			return 0, nil
		}
		at += next
		b := code[at+len(beforePlace):]
		if len(b) >= 2+2+markLen+len(behindMark) && bytes.HasPrefix(b[2:], beforeMark) &&
			bytes.HasPrefix(b[4+markLen:], behindMark) {
			return int64(binary.LittleEndian.Uint16(b)), b[4 : 4+markLen]
		}
	}
}

// Flags of the code. Versions before 0.4.5 have them at byte 2, where later ones have a nop.
const (
	atGrldrFlags    = 0x02
	atGrldrNewFlags = 0x5a
	nop             = 0x90
	grldrFirst      = 0x80 // look for GRLDR before the previous MBR runs
)

func findGrub4DOS(g *boot.Guest, c *boot.Code) (f boot.Found, err error) {
	if g.Code != c {
		return f, nil
	}
	if g.Scheme == table.GPT {
		f.Link(0, "%s in sector 0 does not read a GPT: no BIOS boots by it", c.Name)
		return f, nil
	}
	place, mark := markOf(g.Sector0)
	end := place + markLen
	f.Link(0, "%s in sector 0 loads LBA 1 to %d, and looks for GRLDR in every partition", c.Name, end/grubSector-1)
	whole := end%grubSector == 0 && end <= longestPart && end <= g.Disk.Size()
	if whole {
		stored, err := ondisk.Bytes(g.Disk, place, markLen)
		if err != nil {
			return f, err
		}
		whole = bytes.Equal(stored, mark)
	}
	switch {
	case !whole:
		f.Unbootable(c.ID, 0, "the second part of grub4dos is not behind sector 0", boot.WhenUnknown)
	case g.FirstByte() < end:
		f.Unbootable(c.ID, 0, "a part of grub4dos lies in the first partition, and would move with it",
			boot.InstallAgain)
	}
	if err := previousMBR(&f, g, c); err != nil {
		return f, err
	}
	g.Configured(boot.Config{
		Loader: c.Name, Syntax: boot.GRUBLegacy, Anywhere: true, Paths: []string{"menu.lst", "boot/grub/menu.lst"},
	})
	return f, g.WithFile([]string{"grldr"}, func(p boot.Partition, _ string) {
		f.Link(p.Number, "GRLDR lies in partition %d", p.Number)
	})
}

// previousMBR adds the code that grub4dos replaced and kept in LBA 1. It runs it with the table of sector 0, before or
// after the search for GRLDR.
func previousMBR(f *boot.Found, g *boot.Guest, c *boot.Code) error {
	b, err := ondisk.Bytes(g.Disk, grubSector, grubSector)
	if err != nil || b[510] != 0x55 || b[511] != 0xaa || ondisk.IsZero(b[:boot.CodeLen]) {
		return ondisk.Legible(err)
	}
	flags := g.Sector0[atGrldrFlags]
	if flags == nop {
		flags = g.Sector0[atGrldrNewFlags]
	}
	when := "if it finds no GRLDR"
	if flags&grldrFirst == 0 {
		when = "unless a key is pressed"
	}
	old := boot.Identify(g.Codes, b[:boot.CodeLen])
	f.Link(0, "%s runs the MBR before it (%s), which LBA 1 holds, %s", c.Name, old.Name, when)
	switch {
	case old != boot.Unknown && old.Find == nil && !old.Encrypts:
	case flags&grldrFirst == 0:
		f.Unbootable(c.ID, 0, "grub4dos first runs the MBR in LBA 1, and whether that finds its partition after a "+
			"move is not known", boot.WhenUnknown)
	default:
		f.Warn(c.ID, 0, "grub4dos runs the MBR in LBA 1 if it finds no GRLDR, and whether that finds its partition "+
			"after a move is not known", "check the boot of the copy")
	}
	return nil
}
