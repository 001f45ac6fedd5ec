package table

import (
	_ "embed" // for gptTypes
	"strings"
	"sync"
)

// typeNames are the MBR types. Source: sfdisk --list-types, Andries Brouwer's list; the names of what P2V work meets
// are our own.
var typeNames = map[byte]string{
	0x01: "FAT12", 0x02: "XENIX root", 0x03: "XENIX usr", 0x04: "FAT16 <32M", 0x05: "Extended", 0x06: "FAT16",
	0x07: "NTFS/exFAT/HPFS", 0x08: "AIX", 0x09: "AIX bootable", 0x0a: "OS/2 Boot Manager", 0x0b: "FAT32",
	0x0c: "FAT32 LBA", 0x0e: "FAT16 LBA", 0x0f: "Extended LBA", 0x10: "OPUS", 0x11: "Hidden FAT12",
	0x12: "OEM diagnostics", 0x14: "Hidden FAT16 <32M", 0x16: "Hidden FAT16", 0x17: "Hidden NTFS",
	0x18: "AST SmartSleep", 0x1b: "Hidden FAT32", 0x1c: "Hidden FAT32 LBA", 0x1e: "Hidden FAT16 LBA", 0x24: "NEC DOS",
	0x27: "Windows recovery", 0x39: "Plan 9", 0x3c: "PartitionMagic recovery", 0x40: "Venix 80286",
	0x41: "PPC PReP Boot", 0x42: "Windows dynamic (LDM)", 0x4d: "QNX4.x", 0x4e: "QNX4.x 2nd part",
	0x4f: "QNX4.x 3rd part", 0x50: "OnTrack DM", 0x51: "OnTrack DM6 Aux1", 0x52: "CP/M", 0x53: "OnTrack DM6 Aux3",
	0x54: "OnTrackDM6", 0x55: "EZ-Drive", 0x56: "Golden Bow", 0x5c: "Priam Edisk", 0x61: "SpeedStor",
	0x63: "GNU Hurd/SysV", 0x64: "Novell Netware 286", 0x65: "Novell Netware 386", 0x70: "DiskSecure Multi-Boot",
	0x75: "PC/IX", 0x80: "Old Minix", 0x81: "Minix / old Linux", 0x82: "Linux swap", 0x83: "Linux", 0x84: "Hibernation",
	0x85: "Linux extended", 0x86: "NTFS volume set", 0x87: "NTFS volume set", 0x88: "Linux plaintext",
	0x8e: "Linux LVM", 0x93: "Amoeba", 0x94: "Amoeba BBT", 0x9f: "BSD/OS", 0xa0: "IBM Thinkpad hibernation",
	0xa5: "FreeBSD", 0xa6: "OpenBSD", 0xa7: "NeXTSTEP", 0xa8: "Darwin UFS", 0xa9: "NetBSD", 0xab: "Darwin boot",
	0xaf: "HFS/HFS+", 0xb7: "BSDI fs", 0xb8: "BSDI swap", 0xbb: "Boot Wizard hidden", 0xbc: "Acronis FAT32 LBA",
	0xbe: "Solaris boot", 0xbf: "Solaris", 0xc1: "DRDOS/sec (FAT-12)", 0xc4: "DRDOS/sec (FAT-16 < 32M)",
	0xc6: "DRDOS/sec (FAT-16)", 0xc7: "Syrinx", 0xda: "Non-FS data", 0xdb: "CP/M / CTOS / ...", 0xde: "Dell utility",
	0xdf: "BootIt", 0xe1: "DOS access", 0xe3: "DOS R/O", 0xe4: "SpeedStor", 0xea: "Linux extended boot",
	0xeb: "BeOS fs", 0xee: "GPT protective", 0xef: "EFI system", 0xf0: "Linux/PA-RISC boot", 0xf1: "SpeedStor",
	0xf2: "DOS secondary", 0xf4: "SpeedStor", 0xf8: "EBBR protective", 0xfb: "VMFS", 0xfc: "VMware swap",
	0xfd: "Linux RAID", 0xfe: "LANstep", 0xff: "BBT",
}

// TypeName returns the name of the partition's type, empty when it has none that is known.
func (p Partition) TypeName() string {
	if p.Kind == Entry {
		return gptNames()[p.TypeGUID]
	}
	return typeNames[p.Type]
}

// reservedTypes are the types of partitions that a running guest does not read or write: space that is kept free, or
// code that firmware or a boot loader reads once. Sources: Microsoft, "CREATE_PARTITION_PARAMETERS" and "Windows and
// GPT FAQ" (MSR); GRUB manual, "BIOS installation"; Linux, arch/powerpc, and sfdisk --list-types (PReP); FreeBSD,
// gpart(8), freebsd-boot, of which MidnightBSD has a copy.
var reservedTypes = map[string]bool{
	"0x41":                                 true, // PReP boot
	"21686148-6449-6e6f-744e-656564454649": true, // BIOS boot
	"9e1a2d38-c612-4316-aa26-8b49521e5a8b": true, // PReP boot
	"e3c9e316-0b5c-4db8-817d-f92df00215ae": true, // Microsoft reserved
	"83bd6b9d-7f41-11dc-be0b-001560b84f0f": true, // FreeBSD boot
	"85d5e45e-237c-11e1-b4b3-e89a8f7fc3a7": true, // MidnightBSD boot
}

// Reserved reports whether the type of a partition says that a running guest does not read or write it.
func (p Partition) Reserved() bool { return reservedTypes[p.TypeID()] }

// gptNames are the GPT types. Source: sfdisk --label gpt --list-types, which has them from UEFI 2.10 table 5.7, the
// discoverable partitions specification and the makers; the names of what P2V work meets are our own.
var gptNames = sync.OnceValue(func() map[string]string {
	names := map[string]string{}
	for line := range strings.Lines(gptTypes) {
		guid, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		names[guid] = name
	}
	return names
})

//go:embed gpttypes.txt
var gptTypes string
