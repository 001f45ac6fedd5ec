package table

// typeNames are the MBR types that P2V work meets. Source: sfdisk --list-types, Andries Brouwer's list.
var typeNames = map[byte]string{
	0x01: "FAT12", 0x04: "FAT16 <32M", 0x05: "Extended", 0x06: "FAT16", 0x07: "NTFS/exFAT/HPFS", 0x0b: "FAT32", 0x0c: "FAT32 LBA",
	0x0e: "FAT16 LBA", 0x0f: "Extended LBA", 0x11: "Hidden FAT12", 0x12: "OEM diagnostics", 0x14: "Hidden FAT16 <32M",
	0x16: "Hidden FAT16", 0x17: "Hidden NTFS", 0x1b: "Hidden FAT32", 0x1c: "Hidden FAT32 LBA", 0x1e: "Hidden FAT16 LBA",
	0x27: "Windows recovery", 0x42: "Windows dynamic (LDM)", 0x63: "GNU Hurd/SysV", 0x82: "Linux swap", 0x83: "Linux",
	0x84: "Hibernation", 0x85: "Linux extended", 0x8e: "Linux LVM", 0xa5: "FreeBSD", 0xa6: "OpenBSD", 0xa9: "NetBSD",
	0xaf: "HFS/HFS+", 0xbe: "Solaris boot", 0xbf: "Solaris", 0xde: "Dell utility", 0xee: "GPT protective", 0xef: "EFI system",
	0xfb: "VMFS", 0xfc: "VMware swap", 0xfd: "Linux RAID",
}

// gptNames are the GPT types that P2V work meets. Source: UEFI 2.10 table 5.7, Microsoft and the discoverable partitions
// specification.
var gptNames = map[string]string{
	"c12a7328-f81f-11d2-ba4b-00a0c93ec93b": "EFI system",
	"21686148-6449-6e6f-744e-656564454649": "BIOS boot",
	"e3c9e316-0b5c-4db8-817d-f92df00215ae": "Microsoft reserved",
	"ebd0a0a2-b9e5-4433-87c0-68b6b72699c7": "Microsoft basic data",
	"5808c8aa-7e8f-42e0-85d2-e1e90434cfb3": "LDM metadata",
	"af9b60a0-1431-4f62-bc68-3311714a69ad": "LDM data",
	"de94bba4-06d1-4d40-a16a-bfd50179d6ac": "Windows recovery",
	"0fc63daf-8483-4772-8e79-3d69d8477de4": "Linux",
	"0657fd6d-a4ab-43c4-84e5-0933c84b4f4f": "Linux swap",
	"e6d6d379-f507-44c2-a23c-238f2a3df928": "Linux LVM",
	"a19d880f-05fc-4d3b-a006-743f0f84911e": "Linux RAID",
}

// TypeName is the name of the partition's type, empty when it has none that is known.
func (p Partition) TypeName() string {
	if p.Kind == Entry {
		return gptNames[p.TypeGUID]
	}
	return typeNames[p.Type]
}
