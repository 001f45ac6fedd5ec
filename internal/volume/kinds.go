package volume

// Kinds that several packages name. A kind that only its prober names has no constant here.
const (
	NTFS  Kind = "ntfs"
	FAT12 Kind = "fat12"
	FAT16 Kind = "fat16"
	FAT32 Kind = "fat32"
	ExFAT Kind = "exfat"
	Ext2  Kind = "ext2"
	Ext3  Kind = "ext3"
	Ext4  Kind = "ext4"
	JBD   Kind = "jbd" // the journal of an ext on another device

	APFS     Kind = "apfs" // of macOS since 10.13
	Btrfs    Kind = "btrfs"
	F2FS     Kind = "f2fs"
	HFS      Kind = "hfs"     // of Mac OS up to 8.0
	HFSPlus  Kind = "hfsplus" // of Mac OS since 8.1
	HPFS     Kind = "hpfs"    // of OS/2
	ISO9660  Kind = "iso9660"
	JFS      Kind = "jfs" // of OS/2 and Linux
	ReFS     Kind = "refs"
	ReiserFS Kind = "reiserfs" // version 3
	UFS1     Kind = "ufs1"
	UFS2     Kind = "ufs2"
	VMFS     Kind = "vmfs"
	XFS      Kind = "xfs"

	BCache    Kind = "bcache"
	BitLocker Kind = "bitlocker"
	LDM       Kind = "ldm" // a partition of a dynamic disk of Windows, known by its type
	LUKS      Kind = "luks"
	LVM2      Kind = "lvm2_member"
	MDRaid    Kind = "linux_raid_member"
	Swap      Kind = "swap"       // of Linux
	ZFS       Kind = "zfs_member" // a device of a pool

	APM       Kind = "apm"       // the partition map of Apple
	Atari     Kind = "atari"     // the root sector of AHDI
	DASD      Kind = "dasd"      // the label of an IBM mainframe disk
	Disklabel Kind = "disklabel" // the table of slices of a BSD
	RDB       Kind = "rdb"       // the rigid disk block of the Amiga
	SGI       Kind = "sgi"       // the volume header of IRIX
	VTOC      Kind = "vtoc"      // the table of slices of Solaris

	Unknown Kind = "unknown" // no prober finds it
)
