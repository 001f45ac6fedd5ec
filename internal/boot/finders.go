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

// Codes is the table of contents, the more particular code before the more general. What each reads and hands over was
// read from its instructions.
//
// Seen as real bytes: Windows Server 2003 R2 and Windows 7 in the test corpus; syslinux and isolinux 6.04, parted 3.5
// and mbr 1.2.1 of Debian. DOS, 95B and Vista were held against copies in public repositories (retrodos, ms-sys), and
// the first instructions of FreeBSD's mbr against a published dump. FreeBSD's boot0, NetBSD and OpenBSD are known from
// their sources only. Windows NT 4 is not here: no bytes of it could be had; it is said to have the code of DOS, and
// has the common shape if not.
var Codes = []*Code{
	Grub2,
	GrubLegacy,
	Lilo,
	LiloMBR,
	TrueCrypt,
	VeraCrypt,
	PGP,
	SafeBoot,
	Windows2000,
	Windows98,
	DOS,
	Windows7,
	Vista,
	SyslinuxGPT,
	Grub4DOS,
	SyslinuxAlt,
	Syslinux,
	syslinuxVolume,
	Isolinux,
	Parted,
	DebianMBR,
	FreeBSDGPT,
	FreeBSDMenu,
	FreeBSD,
	NetBSD,
	OpenBSD,
	GenericCHS,
	GenericLBA,
}
