package boot

// finders is the table of contents, in the order of a boot. All of them run on every disk with a partition table; those
// of boot loaders are in Codes.
var finders = []Finder{
	bootChain,
	encryption,
	sector0,
	bootSectors,
	loaders,
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
