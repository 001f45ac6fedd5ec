package linux

import (
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// Codes of SYSLINUX for sector 0. xor ax,ax; cli; mov ds,ax; mov ss,ax; mov sp,7c00h; mov si,sp; push es; push di begin
// every build. Before SYSLINUX 4 the start was cli; xor ax,ax (ESXi installs these), and the messages tell the builds
// apart.
var (
	// mov eax,"!GPT" in the end.
	SyslinuxGPT = &boot.Code{
		ID: "syslinux-gptmbr", Name: "SYSLINUX gptmbr", HandsOver: true, GPT: true,
		Choice: "the partition with the attribute of legacy boot",
		Picks:  func(p boot.Partition) bool { return p.LegacyBoot },
		Known: boot.Either(boot.Has(syslinuxStart, []byte("\x66\xb8!GPT")),
			boot.Has(syslinuxOldStart, []byte("Missing OS"))),
	}
	// Counts a partition number down: dec byte [07b7h]. Spec: syslinux wiki, "Mbr".
	SyslinuxAlt = &boot.Code{
		ID: "syslinux-altmbr", Name: "SYSLINUX altmbr", HandsOver: true, AnyFlag: true,
		Number: func(sector0 []byte) int { return int(sector0[439]) },
		Known:  boot.Has(syslinuxStart, []byte{0xfe, 0x0e, 0xb7, 0x07}),
	}
	Syslinux = &boot.Code{
		ID: "syslinux", Name: "SYSLINUX", HandsOver: true, Picks: boot.Active,
		Known: boot.Either(boot.Has(syslinuxStart), boot.Has(syslinuxOldStart, []byte("Missing operating system"))),
	}

	syslinuxStart    = []byte{0x33, 0xc0, 0xfa, 0x8e, 0xd8, 0x8e, 0xd0, 0xbc, 0x00, 0x7c, 0x89, 0xe6, 0x06, 0x57}
	syslinuxOldStart = []byte{0xfa, 0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xd0, 0xbc, 0x00, 0x7c, 0x89, 0xe6, 0x06, 0x57}
)

// SyslinuxVolume is the boot sector of syslinux and extlinux. Its sector lists count from the start of the partition,
// which the code in the MBR passes on; otherwise from the hidden sectors of the parameter block. FAT and NTFS have that
// block anyway (firmware.HiddenSectors); extlinux makes one in front of other file systems. XFS has its superblock in
// the first sector. Spec: syslinux 6.04, extlinux/main.c, core/diskstart.inc.
var SyslinuxVolume = &boot.Code{
	ID: "syslinux-volume", Name: "SYSLINUX", OfVolume: true, Offset: map[volume.Kind]int64{volume.XFS: 4 * 512},
	Find: findSyslinux, Known: isSyslinux,
}

func findSyslinux(g *boot.Guest, c *boot.Code) (boot.Found, error) {
	inVolume := func(g *boot.Guest, p boot.Partition, f *boot.Found) error { return findInVolume(g, c, p, f) }
	return boot.Everywhere(inVolume)(g)
}

func isSyslinux(code []byte) bool {
	return len(code) >= 16 && boot.Either(boot.Says("SYSLINUX"), boot.Says("EXTLINUX"))(code[:16])
}

// extlinuxKinds are the file systems that extlinux makes a parameter block for.
var extlinuxKinds = []volume.Kind{
	volume.Ext2, volume.Ext3, volume.Ext4, volume.Btrfs, volume.UFS1, volume.UFS2, volume.XFS,
}

// syslinuxConfigs are the places of the configuration, beside the folder that extlinux was installed to. Spec: syslinux
// wiki, "Config", "Location".
var syslinuxConfigs = []string{
	"boot/syslinux/syslinux.cfg", "syslinux/syslinux.cfg", "syslinux.cfg",
	"boot/extlinux/extlinux.conf", "extlinux/extlinux.conf", "boot/extlinux.conf", "extlinux.conf",
	"boot/syslinux/extlinux.conf", "syslinux/extlinux.conf",
}

func findInVolume(g *boot.Guest, c *boot.Code, p boot.Partition, f *boot.Found) error {
	at := c.Offset[p.Volume.Kind]
	own := p.Volume.Boot == nil // no parameter block but that of extlinux
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
