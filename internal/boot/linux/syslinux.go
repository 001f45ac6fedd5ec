package linux

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// SyslinuxVolume is the boot sector of syslinux and extlinux. Its sector lists count from the start of the partition,
// passed on by the code in the MBR, or otherwise from the hidden sectors of the parameter block. FAT and NTFS have that
// block anyway (firmware.HiddenSectors); extlinux makes one in other file systems. XFS has its superblock in the first
// sector. Spec: syslinux 6.04, extlinux/main.c, core/diskstart.inc.
var SyslinuxVolume = &boot.Code{
	ID: "syslinux-volume", Name: "SYSLINUX", OfVolume: true, Offset: map[volume.Kind]int64{volume.XFS: 4 * 512},
	Find: findSyslinux, Known: isSyslinux,
}

func findSyslinux(g *boot.Guest, c *boot.Code) (boot.Found, error) {
	inVolume := func(g *boot.Guest, p boot.Partition, f *boot.Found) error { return findInVolume(g, c, p, f) }
	return boot.Everywhere(inVolume)(g)
}

func isSyslinux(code []byte) bool {
	return len(code) >= 16 && namesSyslinux(code[:16])
}

var namesSyslinux = boot.Either(boot.Like("'SYSLINUX'"), boot.Like("'EXTLINUX'"))

// extlinuxKinds lists the file systems for which extlinux makes a parameter block.
var extlinuxKinds = []volume.Kind{
	volume.Ext2, volume.Ext3, volume.Ext4, volume.Btrfs, volume.UFS1, volume.UFS2, volume.XFS,
}

// syslinuxConfigs are the paths of the configuration, besides the folder of the extlinux installation. Spec: syslinux
// wiki, "Config", "Location".
var syslinuxConfigs = []string{
	"boot/syslinux/syslinux.cfg", "syslinux/syslinux.cfg", "syslinux.cfg",
	"boot/extlinux/extlinux.conf", "extlinux/extlinux.conf", "boot/extlinux.conf", "extlinux.conf",
	"boot/syslinux/extlinux.conf", "syslinux/extlinux.conf",
}

func findInVolume(g *boot.Guest, c *boot.Code, p boot.Partition, f *boot.Found) error {
	at := c.Offset[p.Volume.Kind]
	own := p.Volume.Boot == nil // only extlinux makes a parameter block here
	if (own && !slices.Contains(extlinuxKinds, p.Volume.Kind)) || p.Len < at+512 || p.Off+at+512 > g.Disk.Size() {
		return nil
	}
	if !own {
		at = 0
	}
	b, err := ondisk.Bytes(g.Disk, p.Off+at, 512)
	if !isSyslinux(b) {
		return err
	}
	const loads = "SYSLINUX in the boot sector of partition %d loads ldlinux.sys by sectors that count from the " +
		"start of the partition"
	f.Link(p.Number, loads, p.Number)
	if g.Chooses(p) || g.Code == boot.Empty {
		g.Configured(boot.Config{
			Loader: fmt.Sprintf("SYSLINUX in the boot sector of partition %d", p.Number), Syntax: boot.SYSLINUX,
			Home: p.Number, Paths: syslinuxConfigs,
		})
	}
	if !own {
		return nil
	}
	kind := string(p.Volume.Kind) + " hidden sectors"
	if err := f.HiddenSectors(g, p, kind, at+volume.AtHidden, g.Disk.SectorSize(), true); err != nil {
		return err
	}
	f.Refs[len(f.Refs)-1].Spare = g.Code.HandsOver
	return nil
}

// isolinuxLBA is the offset of isolinux.bin's LBA in isohybrid code, a 32-bit count of 512-byte sectors. Spec:
// syslinux, mbr/isohdpfx.S and utils/isohybrid.in.
const isolinuxLBA = 432

// Isolinux is the boot code of hybrid ISO 9660 and disk images. It reads no table. Its signature: mov eax,[07b0h], the
// LBA of isolinux.bin … cmp dword [7c40h],7078c0fbh, its mark.
var Isolinux = &boot.Code{
	ID: "isolinux", Name: "ISOLINUX isohybrid", AnyFlag: true, Picks: boot.None, Find: findIsolinux,
	Known: boot.Like("66a1b007", "66813e407c fbc07870"),
}

func findIsolinux(g *boot.Guest, c *boot.Code) (f boot.Found, err error) {
	if g.Code != c {
		return f, nil
	}
	lba := binary.LittleEndian.Uint32(g.Sector0[isolinuxLBA:])
	at := int64(lba) * 512
	f.Link(0, "%s in sector 0 loads isolinux.bin from LBA %d", c.Name, lba)
	home, inside := g.Holding(at, 4*512) // it reads the first four sectors, which read the rest
	if inside {
		f.Link(home.Number, "isolinux.bin lies in partition %d", home.Number)
	}
	if inside || at >= g.FirstByte() {
		f.Unbootable("isolinux", home.Number, "isolinux.bin is found by its absolute sector",
			"run isohybrid on a new image, or leave the partition where it is")
	}
	return f, nil
}

// ForDOS is the MBR of grub4dos. Its second part fills the sectors after the first, and finds GRLDR by name in any
// partition. Only positions before all partitions count from the start of the disk. It reads by CHS if the BIOS has no
// extensions.
//
// It moves 223 words of itself, and looks for the mark of the second part at bx: an installer can give each disk its
// own mark (disk_serial_number_structure). It continues in another segment, looks once more … add si,12; cmp si,1feh:
// through the table. Spec: grub4dos 0.4.4 and 0.4.6a, stage2/grldrstart.S; the copy of 0.4.6a in Rufus.
var ForDOS = &boot.Code{
	ID: "grub4dos", Name: "grub4dos", ReadsCHS: true, AnyFlag: true, Find: findGrub4DOS,
	Known: boot.Like("31f6 31ff b9df00 fc f3a5 bb.... 66b8........ 663907 7503 e8", "16 1f 663907",
		"83c60c 81fefe01 72"),
}

// The code holds the offset of the mark that ends the second part, and the mark itself: rep movsw; mov bx,offset; mov
// eax,mark; cmp [bx],eax.
var (
	beforePlace = []byte{0xfc, 0xf3, 0xa5, 0xbb}
	beforeMark  = []byte{0x66, 0xb8}
	behindMark  = []byte{0x66, 0x39, 0x07}
)

const (
	markLen     = 4
	longestPart = int64(63 * grubSector) // it reads the first track at most
)

// markOf returns the offset and the mark of the second part. The code must match ForDOS.
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
		f.Link(0, "%s in sector 0 does not read a GPT: no BIOS boots with it", c.Name)
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
		f.Unbootable(c.ID, 0, "a part of grub4dos is in the first partition, and would move with it",
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

// previousMBR adds the code that grub4dos replaced and saved in LBA 1. grub4dos runs it with the table of sector 0,
// before or after the search for GRLDR.
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
	f.Link(0, "%s runs the previous MBR (%s), stored in LBA 1, %s", c.Name, old.Name, when)
	switch {
	case old != boot.Unknown && old.Find == nil && !old.Encrypts:
	case flags&grldrFirst == 0:
		f.Unbootable(c.ID, 0, "grub4dos first runs the MBR in LBA 1, which may not find its partition after a "+
			"move", boot.WhenUnknown)
	default:
		f.Warn(c.ID, 0, "grub4dos runs the MBR in LBA 1 if it finds no GRLDR, and that MBR may not find its "+
			"partition after a move", "check the boot of the copy")
	}
	return nil
}
