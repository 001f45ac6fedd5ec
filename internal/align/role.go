package align

import (
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/table"
)

// Role is what a disk is for.
type Role string

// Roles.
const (
	BootDisk    Role = "boot"
	DataDisk    Role = "data"
	UnknownRole Role = "unknown"
)

// Types of partitions that firmware boots from: the EFI system partition and the BIOS boot partition of GRUB. Spec:
// UEFI 2.10, table 5.7; GRUB manual, "BIOS installation".
const (
	espByte  = 0xef
	espGUID  = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"
	biosBoot = "21686148-6449-6e6f-744e-656564454649"
)

// roleOf returns whether a BIOS or a UEFI firmware can start from a disk.
func roleOf(l *layout.Layout) Role {
	code := l.Boot.Code
	if code.AnyFlag { // partitioners write the other codes to data disks too
		return BootDisk
	}
	for _, p := range l.Partitions {
		if (p.Active || p.LegacyBoot) && code != boot.Empty || p.TypeGUID == espGUID || p.TypeGUID == biosBoot ||
			p.Kind == table.Primary && p.Type == espByte {
			return BootDisk
		}
	}
	// A system without a boot code in sector 0 is booted by another disk, or lost it.
	if code == boot.Unknown || l.Table == nil || code == boot.Empty && len(l.Boot.Chain) > 0 {
		return UnknownRole
	}
	return DataDisk
}
