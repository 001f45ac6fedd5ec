package trial

import (
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
)

// firmware matches lines that firmware shows on every machine, whatever its disk holds. They prove nothing of a guest.
// Source: SeaBIOS src/bootsplash.c, src/boot.c; iPXE src/usr/autoboot.c; EDK2 BdsDxe, PlatformBootManagerLib.
var firmware = ondisk.LazyPattern(`^(SeaBIOS \(version |Machine UUID |iPXE |Press (F12|ESC) for boot menu|Booting ` +
	`from (Hard Disk|DVD/CD|Floppy|ROM)\.\.\.$|BdsDxe: (loading|starting|failed to load) Boot|Press any key to enter ` +
	`the Boot Manager Menu|Plex86/Bochs VGABios|UEFI firmware \(version |Start boot option)`)

// noSystem are texts of firmware and of boot code in sector 0 that found nothing to start.
var noSystem = []string{
	// SeaBIOS src/boot.c.
	"No bootable device", "Boot failed: not a bootable disk", "Boot failed: could not read the boot disk",
	// EDK2 MdeModulePkg/Universal/BdsDxe; ShellPkg.
	"No bootable option or device was found", "UEFI Interactive Shell", "Shell>",
	// Boot code in sector 0: of Microsoft, and of VMware's and other BIOSes.
	"Invalid partition table", "Error loading operating system", "Missing operating system", "Missing Operating System",
	"Operating system not found", "Operating System not found", "No operating system", "No bootable medium",
	// syslinux mbr/*.S; FreeBSD stand/i386/mbr, pmbr, boot0.
	"Missing OS", "No active partition", "Operating system load error", "Multiple active partitions",
	"Missing boot loader", "Boot loader too large",
}

// failed are texts of loaders and systems that stopped. They are a guest's own, but no boot.
var failed = []string{
	// Boot sectors of DOS and Windows, NTLDR and BOOTMGR.
	"Non-System disk", "Non-system disk", "Invalid system disk", "Invalid System Disk", "Disk I/O error",
	"Disk boot failure",
	"A disk read error occurred", "Disk error", "Press Ctrl+Alt+Del to restart", "NTLDR is missing",
	"NTLDR is compressed",
	"BOOTMGR is missing", "BOOTMGR is compressed", "BOOTMGR image is corrupt", "Bad or missing Command Interpreter",
	"Windows could not start because", "Windows failed to start", "Windows Boot Manager has experienced a problem",
	"Status: 0xc0", "Error code: 0xc0", "Remove disks or other media", "*** STOP: 0x", "Invalid BOOT.INI file",
	"Invalid media type reading drive",
	// syslinux core and boot sectors.
	"Boot error", "Could not find kernel image", "No DEFAULT or UI configuration directive found",
	"Failed to load ldlinux",
	// GRUB 2 kern/rescue_*.c, kern/disk.c, kern/fs.c, boot/i386/pc/boot.S; GRUB legacy stage1, stage2/common.c.
	"grub rescue>", "Entering rescue mode", "error: no such partition", "error: no such device", "error: no such disk",
	"error: unknown filesystem", "error: file `", "error: attempt to read or write outside of",
	"error: failure reading sector",
	"error: you need to load the kernel first", "error: invalid arch", "error: hd0",
	"GRUB Hard Disk Error", "GRUB Geom Error", "GRUB Read Error", "Hard Disk Error", "Geom Error",
	// Linux init/do_mounts.c, kernel/panic.c; initramfs-tools; dracut; systemd.
	"Kernel panic - not syncing", "VFS: Unable to mount root fs", "(initramfs)", "Dropping to a shell",
	"Entering emergency mode",
	"You are in emergency mode", "Give root password for maintenance", "Cannot open access to console", "dracut:/#",
	"dracut-initqueue timeout", "Warning: /dev/disk/by-uuid/",
	// FreeBSD stand/i386/boot2, gptboot.
	"No /boot/loader", "can't find /boot/", "Can't find /boot/", "gptboot:", "mountroot>",
	// LILO first.S, second.S.
	"Not a LILO", "EBDA too big", "Map file write", "Invalid hexadecimal",
}

// tooSlow is a panic of Linux where the host of an emulation has too much else to do: it counts ticks of a timer for a
// while of the processor. Source: Linux arch/x86/kernel/apic/io_apic.c, check_timer.
const tooSlow = "IO-APIC + timer doesn't work"

// failedLine are failures that are known by the whole line, since their words stand in other texts too.
var failedLine = ondisk.LazyPattern(`^(GRUB )?(loading[ ,.a-z0-9]*)?Error \d+\b|^L( ` +
	`[0-9A-F]{2}){2,}|^L(I[?-]?)?$|^grub>|^Read error$|^(GRUB|GRUB loading) *(error:|Read Error|Geom Error)`)

// onTheWay are last lines of a boot that goes on: a run that ends at one has shown nothing of its guest yet.
var onTheWay = ondisk.LazyPattern(`^(Loading initial ramdisk|Loading Linux|Loading (/|vmlinuz|initrd|kernel)|LILO ` +
	`\S* *Loading|Uncompressing Linux|Decompressing Linux|Booting the kernel|Booting '|Starting up|GRUB loading|` +
	`Welcome to GRUB|GRUB Loading stage|Starting Windows|Starting MS-DOS|Loading Windows|Loading operating system|` +
	`Probing EDD|Booting a command list|early console in|EFI stub:|SYSLINUX |EXTLINUX |ISOLINUX |Loading ` +
	`stage2)|^GRUB *$|^\.+$`)

// stays reports whether the last line is one of a boot that has not ended. A prompt below it is an end.
func stays(last string) bool { return onTheWay().MatchString(last) }

// failure returns the known failure that a line shows, or nothing.
func failure(line string) (text string, system bool) {
	for _, known := range noSystem {
		if strings.Contains(line, known) {
			return known, false
		}
	}
	for _, known := range failed {
		if strings.Contains(line, known) {
			return known, true
		}
	}
	if text = failedLine().FindString(line); text != "" {
		return text, true
	}
	return "", false
}
