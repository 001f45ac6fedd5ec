package volume

// Probers is the table of contents. All of them run on every partition.
var Probers = []Prober{
	ntfsVolumes,
	fatVolumes,
	extVolumes,
	exFAT,
	refs,
	xfs,
	btrfs,
	jfs,
	hpfs,
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
	lvm,
	md,
	bcache,
	zfs,
	vmfs,
	disklabel,
	vtoc,
	sunDisk,
	applePartitions,
	sgiDisk,
	amigaDisk,
	atariDisk,
	dasdDisk,
}

// Kinds yields all kinds: those of probers, those that have a magic number only, and those that no content shows. A
// kind of several probers comes for each.
func Kinds(yield func(Traits) bool) {
	for _, p := range Probers {
		for _, t := range p.Kinds {
			if !yield(t) {
				return
			}
		}
	}
	for _, m := range magics {
		if !yield(m.Traits) {
			return
		}
	}
	_ = yield(ldm) && yield(Traits{Kind: Unknown})
}
