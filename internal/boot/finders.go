package boot

// finders is the table of contents, in the order of a boot. All of them run on every disk with a partition table.
var finders = []Finder{
	bootChain,
	encryption,
	sector0,
	grub2,
	isolinux,
	bootSectors,
	grubLegacy,
	grub4DOS,
	lilo,
	syslinux,
	hibernation,
	windows,
	bootIni,
	bootStore,
	mountedDevices,
	recovery,
	hiddenSectors,
	exfatOffset,
	uefi,
	linuxConfig,
}
