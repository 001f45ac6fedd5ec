package volume

// probers is the table of contents. All of them run on every partition.
var probers = []Prober{
	ntfs,
	fat,
	ext,
	exFAT,
	swap,
	luks,
	bitLocker,
	disklabel,
	vtoc,
	sunDisk,
}
