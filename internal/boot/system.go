package boot

import (
	"fmt"

	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// firmwareTypes are types of partitions from which firmware boots, or a loader in the MBR. Spec: UEFI 2.10, 5.2 and
// table 5.7; GRUB manual, "BIOS installation"; PowerPC reference platform.
var firmwareTypes = map[string]string{
	"0xef":                                 "an EFI system partition",
	"0x41":                                 "a PReP boot partition",
	espGUID:                                "an EFI system partition",
	"21686148-6449-6e6f-744e-656564454649": "a BIOS boot partition",
	"9e1a2d38-c612-4316-aa26-8b49521e5a8b": "a PReP boot partition",
}

// Types of an EFI system partition. Spec: UEFI 2.10, table 5.7 and 5.2.2.
const (
	espGUID = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"
	espByte = 0xef
)

// IsESP reports whether UEFI firmware starts loaders from a partition.
func IsESP(p Partition) bool {
	return p.TypeGUID == espGUID || p.Kind == table.Primary && p.Type == espByte
}

// Needs returns why a partition is part of the system that the disk boots, or can be; empty for one that only holds
// data. One that cannot be looked into can hold a system, if the disk boots at all.
func (r *Result) Needs(p Partition) string {
	if p.Kind == table.Extended {
		return ""
	}
	if name := firmwareTypes[p.TypeID()]; name != "" {
		return "it is " + name
	}
	for _, l := range r.Chain {
		if l.Partition == p.Number {
			return "it is in the boot chain: " + l.Text
		}
	}
	switch {
	case p.Active:
		return "it is the active partition, from which a BIOS boots"
	case r.unseen[p.Number] && r.boots && p.Volume.Kind != volume.Swap:
		const unseen = "the disk boots, and a system can lie in what it holds (%s), whose files cannot be read"
		return fmt.Sprintf(unseen, p.Volume.Kind)
	}
	return ""
}

// BootsBy returns why a machine can boot from the disk; empty for one that only holds data. Windows writes its code
// into sector 0 of those, too.
func (g *Guest) BootsBy() string {
	switch c := g.Code; {
	case c == Unknown:
		return "the code in sector 0 is not known"
	case c.AnyFlag:
		return c.Name + " is in sector 0"
	}
	for _, p := range g.Partitions {
		name := firmwareTypes[p.TypeID()]
		switch {
		case name != "":
			return fmt.Sprintf("partition %d is %s", p.Number, name)
		case p.Active:
			return fmt.Sprintf("partition %d is active", p.Number)
		case g.Code != Empty && g.Chooses(p):
			return fmt.Sprintf("%s in sector 0 can boot partition %d", g.Code.Name, p.Number)
		}
	}
	return ""
}

// bootable reports whether anything on the disk looks like the start of a boot.
func (r *Result) bootable(parts []Partition) bool {
	if r.Code != Empty {
		return true
	}
	for _, p := range parts {
		if r.Boots(p.Number) || firmwareTypes[p.TypeID()] != "" {
			return true
		}
	}
	return false
}
