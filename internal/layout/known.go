// This part of the package lists the known boot sector codes, and the finders of stored positions.

package layout

import (
	"slices"
	"sync"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/boot/firmware"
	"github.com/trueup/trueup/internal/boot/linux"
	"github.com/trueup/trueup/internal/boot/windows"
	"github.com/trueup/trueup/internal/disk"
)

// finders lists all finders in boot order. All of them run on every disk with a partition table; the finders of boot
// loaders are in Codes.
var finders = []boot.Finder{
	firmware.Chain,
	firmware.DOS,
	firmware.Boards,
	firmware.Encryption,
	firmware.Sector0,
	firmware.BootSectors,
	boot.Loaders,
	windows.Hibernation,
	windows.Folders,
	windows.BootIni,
	windows.BCD,
	windows.MountedDevices,
	windows.Recovery,
	firmware.HiddenSectors,
	firmware.ExFATOffset,
	firmware.UEFI,
	linux.EFI,
	linux.Configuration,
	linux.Hibernation,
	windows.Logs,
	boot.Volumes,
}

// ReadBoot identifies the boot code of a disk and finds all references.
func ReadBoot(g *boot.Guest) (*boot.Result, error) {
	r, err := boot.Read(g, Codes(), finders)
	if err == nil {
		windows.BitLocker(g, r)
	}
	return r, err
}

// SignsOf returns the shutdown signs of a volume over the whole disk.
func SignsOf(d disk.Disk, whole boot.Partition) ([]boot.Sign, error) {
	signs, g := boot.SignsOf(whole), &boot.Guest{Disk: d, Partitions: []boot.Partition{whole}}
	for _, finder := range []boot.Finder{windows.Hibernation, linux.Hibernation, windows.Logs} {
		found, err := finder.Find(g)
		if err != nil {
			return signs, err
		}
		signs = append(signs, found.Signs...)
	}
	return signs, nil
}

// Identify returns the code of an MBR.
func Identify(code []byte) *boot.Code { return boot.Identify(Codes(), code) }

// Codes returns all codes, specific code before generic code. Disk encryption comes before loaders that another program
// may have left behind. The properties of each code come from a reading of its instructions.
//
// Real bytes were seen of Windows Server 2003 R2 and Windows 7 (in the test corpus), and of syslinux and isolinux 6.04,
// parted 3.5 and mbr 1.2.1 of Debian. DOS, 95B and Vista were compared with copies in public repositories (retrodos,
// ms-sys), and the first instructions of FreeBSD's mbr with a published dump. The corpus has boot0, mbr and pmbr of
// FreeBSD 8 and mbr.b of LILO 24. Rufus, ReactOS and KolibriOS were compared with public copies. Haiku, mbr2.b of LILO,
// NetBSD and OpenBSD are known only from their sources. Windows NT 4 is missing, since no bytes of it were available:
// it probably has the code of DOS, or else the common shape.
var Codes = sync.OnceValue(func() []*boot.Code {
	return slices.Concat([]*boot.Code{
		linux.V2,
		linux.Legacy,
		linux.Lilo,
	}, boot.Listed(), []*boot.Code{
		linux.ForDOS,
		linux.SyslinuxVolume,
		linux.Isolinux,
		firmware.FreeBSDBoot,
		firmware.Limine,
		firmware.GenericCHS,
		firmware.GenericLBA,
	})
})
