package main

// What the README of the shared corpus says about its images. Where it is silent on a size or a disk identifier, the
// number is that of sfdisk, and labels and UUIDs are those of blkid, both run on these files.

// corpusDisk is a disk with a partition table.
type corpusDisk struct {
	name              string
	whole             bool // the files of its folder belong to it
	format, subformat string
	size              int64
	scheme, id        string
	exit              int // 0, 2 or 3: is it aligned?
	partitions        []corpusPartition
	sector            int64 // of the table; 512 unless given
}

// sectorSize is what the table counts in; a GPT tells it of the disk too.
func (c corpusDisk) sectorSize() int64 {
	if c.sector != 0 {
		return c.sector
	}
	return sectorSize
}

type corpusPartition struct {
	kind, typ               string
	active                  bool
	start, startBytes, size int64
	volume                  string
	hidden                  int64
}

func mbrPartition(kind, typ string, start, sectors int64, volume string, hidden int64) corpusPartition {
	return corpusPartition{
		kind: kind, typ: typ, start: start, startBytes: start * sectorSize, size: sectors * sectorSize, volume: volume,
		hidden: hidden,
	}
}

func (p corpusPartition) activated() corpusPartition {
	p.active = true
	return p
}

func gptPartition(start, sectors int64, volume string, hidden int64) corpusPartition {
	return mbrPartition("gpt", "", start, sectors, volume, hidden)
}

// vmdkRS is the disk that all the VMware-made images of vmdk-rs hold.
var vmdkRS = []corpusPartition{mbrPartition("primary", "0x07", 128, 18304, "ntfs", 128)}

var corpusDisks = []corpusDisk{
	{
		name: "vmdk-rs/monolithicSparse.vmdk.xz", format: "vmdk", subformat: "monolithicSparse", size: 10485760,
		scheme: "mbr", id: "0xf1d3f624", partitions: vmdkRS,
	},
	{
		name: "vmdk-rs/streamOptimized.vmdk.xz", format: "vmdk", subformat: "streamOptimized", size: 10485760,
		scheme: "mbr", id: "0xf1d3f624", partitions: vmdkRS,
	},
	{
		name: "vmdk-rs/twoGbMaxExtentSparse.vmdk", whole: true, format: "vmdk", subformat: "twoGbMaxExtentSparse",
		size: 10485760, scheme: "mbr", id: "0xf1d3f624", partitions: vmdkRS,
	},
	{
		name: "vmdk-rs/monolithicFlat.vmdk", whole: true, format: "vmdk", subformat: "monolithicFlat", size: 10485760,
		scheme: "mbr", id: "0xf1d3f624", partitions: vmdkRS,
	},
	{
		name: "vmdk-rs/monolithicFlat-flat.vmdk.xz", format: "raw", size: 10485760,
		scheme: "mbr", id: "0xf1d3f624", partitions: vmdkRS,
	},
	{
		name: "vmdk-rs/vmfs_thick.vmdk", whole: true, format: "vmdk", subformat: "vmfs", size: 2097152, scheme: "mbr",
		id: "0xe4d55375", partitions: []corpusPartition{mbrPartition("primary", "0x83", 2048, 2048, "ext4", 0)},
	},
	{
		name: "vmdk-rs/vmfs_thick-flat.vmdk.xz", format: "raw", size: 2097152, scheme: "mbr", id: "0xe4d55375",
		partitions: []corpusPartition{mbrPartition("primary", "0x83", 2048, 2048, "ext4", 0)},
	},
	{
		name: "osv-scalibr/valid-ext-exfat-fat32-ntfs.vmdk.xz", format: "vmdk", subformat: "monolithicSparse",
		size: 268435456, scheme: "gpt",
		partitions: []corpusPartition{
			gptPartition(2048, 129024, "ext4", 0),
			gptPartition(131072, 131072, "exfat", 0),
			gptPartition(262144, 131072, "fat32", 262144),
			gptPartition(393216, 129024, "ntfs", 0),
		},
	},
	{
		name: "discutils/btrfs.vhdx.gz", format: "vhdx", subformat: "dynamic", size: 1 << 30, scheme: "mbr",
		id:         "0xefef665c",
		partitions: []corpusPartition{mbrPartition("primary", "0x83", 2048, 2095104, "btrfs", 0)},
	},
	{
		name: "discutils/xfs5.vhdx.gz", format: "vhdx", subformat: "dynamic", size: 10 << 30, scheme: "mbr",
		id:         "0xbaea0e87",
		partitions: []corpusPartition{mbrPartition("primary", "0x83", 2048, 20969472, "xfs", 0)},
	},
	{
		name: "dfvfs/mbr.raw.gz", format: "raw", size: 4194304, scheme: "mbr", id: "0xdf7c7c37", exit: 3,
		partitions: []corpusPartition{
			mbrPartition("primary", "0x83", 1, 129, "ext2", 0),
			mbrPartition("extended", "0x05", 130, 8062, "", 0),
			mbrPartition("logical", "0x83", 131, 129, "ext4", 0),
		},
	},
	{
		name: "imagemounter/test.mbr.xz", format: "raw", size: 1024000, scheme: "mbr", exit: 3,
		partitions: []corpusPartition{
			mbrPartition("primary", "0x83", 1, 512, "fat12", 0),
			mbrPartition("primary", "0x83", 513, 512, "ext2", 0),
			mbrPartition("primary", "0x83", 1025, 26, "unknown", 0),
			mbrPartition("extended", "0x05", 1051, 949, "", 0),
			mbrPartition("logical", "0x83", 1052, 449, "ext2", 0),
			mbrPartition("logical", "0x83", 1502, 498, "fat12", 0),
		},
	},
	{
		name: "mbrman/disk1.img", format: "raw", size: 5120, scheme: "mbr", id: "0x5abc5807", exit: 3,
		partitions: []corpusPartition{
			mbrPartition("primary", "0x06", 1, 1, "unknown", 0).activated(),
			mbrPartition("primary", "0x0b", 3, 1, "unknown", 0),
		},
	},
	{
		name: "mbrman/disk2.img", format: "raw", size: 10240, scheme: "mbr", id: "0x1eb0916b", exit: 3,
		partitions: []corpusPartition{
			mbrPartition("primary", "0x83", 1, 3, "unknown", 0),
			mbrPartition("extended", "0x05", 5, 15, "", 0),
			mbrPartition("logical", "0x83", 6, 1, "unknown", 0),
			mbrPartition("logical", "0x83", 8, 2, "unknown", 0),
			mbrPartition("logical", "0x83", 11, 3, "unknown", 0),
			mbrPartition("logical", "0x83", 15, 1, "unknown", 0),
			mbrPartition("logical", "0x83", 17, 1, "unknown", 0),
		},
	},
	{
		name: "libldm/ldm-2003r2-simple-1.img.xz", format: "raw", size: 52428800, scheme: "mbr", id: "0x901ce95f",
		exit: 3, partitions: []corpusPartition{mbrPartition("primary", "0x42", 63, 96327, "ldm", 0)},
	},
	{
		name: "gptman/disk1.img", format: "raw", size: 51200, scheme: "gpt", exit: 3,
		partitions: []corpusPartition{gptPartition(34, 10, "unknown", 0), gptPartition(48, 5, "unknown", 0)},
	},
	{
		// 4096-byte sectors: the first partition starts on 8 KiB, the second as well.
		name: "gptman/disk2.img", format: "raw", size: 409600, scheme: "gpt", exit: 2, sector: 4096,
		partitions: []corpusPartition{
			{kind: "gpt", start: 6, startBytes: 24576, size: 10 * 4096, volume: "unknown"},
			{kind: "gpt", start: 70, startBytes: 286720, size: 10 * 4096, volume: "unknown"},
		},
	},
}

// corpusVolumes are bare volumes.
var corpusVolumes = []struct {
	name, volume, label, uuid string
	size, hidden              int64
}{
	{"dfvfs/ext2.vmdk.xz", "ext2", "ext2_test", "f00050bb-07ee-46a3-83a6-a405ee0db51f", 4194304, 0},
	{"dfvfs/ext2.qcow2.xz", "ext2", "ext2_test", "f00050bb-07ee-46a3-83a6-a405ee0db51f", 4194304, 0},
	{"dfvfs/ext2.vhd.xz", "ext2", "ext2_test", "f00050bb-07ee-46a3-83a6-a405ee0db51f", 4212736, 0},
	{"dftt/7-ntfs-undel.dd.xz", "ntfs", "NTFS_DEL", "285C576D5C5734B2", 6160384, 63},
	{"dftt/6-fat-undel.dd.xz", "fat16", "FAT_REC_1", "C0FE-CD11", 6160384, 63},
	{"dfvfs/vsstest.qcow2.xz", "ntfs", "vsstest", "C45E30FD5E30EA36", 1 << 30, 2048},
	{"keramics/fat16.qcow2.xz", "fat16", "FAT16_TEST", "56F5-F53F", 16777216, 0},
	{"imagemounter/test.ntfs.xz", "ntfs", "", "4E8742C12A96CECD", 1049088, 0},
	{"imagemounter/test.fat12.xz", "fat12", "TEST", "3CB7-474B", 51200, 0},
	// no journal, for all its name
	{"imagemounter/test.ext3.xz", "ext2", "", "b620606b-02c7-4e53-b098-56758b03e8cc", 204800, 0},
}

// corpusBare are the other disks without a table, and their sizes.
var corpusBare = map[string]int64{
	"discutils/swap.vhdx.gz":            10 << 30,
	"dfvfs/lvm.qcow2.xz":                8388608,
	"cdi/fs-overhead.qcow2.xz":          858993664,
	"qemu/hyperv2012r2-dynamic.vhd.bz2": 136365211648,
}

// corpusContents are the disks of which the README gives the SHA-256 as a guest sees it.
var corpusContents = []struct {
	name  string
	whole bool
	sum   string
}{
	{"vmdk-rs/monolithicSparse.vmdk.xz", false, "a3bcf05f07a1c06a3380eeca8571f0efb2b85afafa1e21662b8cad436d1f7727"},
	{"vmdk-rs/streamOptimized.vmdk.xz", false, "a3bcf05f07a1c06a3380eeca8571f0efb2b85afafa1e21662b8cad436d1f7727"},
	{"vmdk-rs/twoGbMaxExtentSparse.vmdk", true, "a3bcf05f07a1c06a3380eeca8571f0efb2b85afafa1e21662b8cad436d1f7727"},
	{"vmdk-rs/monolithicFlat.vmdk", true, "a3bcf05f07a1c06a3380eeca8571f0efb2b85afafa1e21662b8cad436d1f7727"},
	{"vmdk-rs/vmfs_thick.vmdk", true, "8d43c795d24bce01b49f92744f934c1072210dcac170bb1c83a5aa56df46ab7d"},
	{"dfvfs/ext2.vmdk.xz", false, "a6c2f0e39afe6c6ab432ca5465349fcefe8dc944398e97b2d957d3f89dbb5d80"},
	{
		"osv-scalibr/valid-ext-exfat-fat32-ntfs.vmdk.xz", false,
		"10808edfbc61762fc1bfa7e4fb6d18cb9fcafa7faad6692e4304ed8bff40006a",
	},
}
