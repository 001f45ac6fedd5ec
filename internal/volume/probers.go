package volume

// probers is the table of contents. All of them run on every partition.
var probers = []Prober{
	ntfs,
	fat,
	ext,
	exFAT,
	refs,
	xfs,
	btrfs,
	jfs,
	reiserFS,
	f2fs,
	ufs,
	hfs,
	hfsPlus,
	apfs,
	iso9660,
	swap,
	luks,
	bitLocker,
	disklabel,
	vtoc,
	sunDisk,
}
