package boot

import "slices"

// Codes with names.
var (
	Empty       = Code{ID: "empty", Name: "none"}
	Unknown     = Code{ID: "unknown", Name: "unknown"}
	DOS         = Code{ID: "dos", Name: "DOS or Windows 95", ReadsCHS: true, HandsOver: true}
	Windows98   = Code{ID: "windows-98", Name: "Windows 95B, 98 or ME", ReadsCHS: true, HandsOver: true}
	Windows2000 = Code{ID: "windows-2000", Name: "Windows 2000/XP/2003", ReadsCHS: true, HandsOver: true}
	Vista       = Code{ID: "windows-vista", Name: "Windows Vista or 2008"}
	Windows7    = Code{ID: "windows-7", Name: "Windows 7 or later"}
	Syslinux    = Code{ID: "syslinux", Name: "SYSLINUX", HandsOver: true}
	SyslinuxAlt = Code{ID: "syslinux-altmbr", Name: "SYSLINUX altmbr", HandsOver: true}
	SyslinuxGPT = Code{ID: "syslinux-gptmbr", Name: "SYSLINUX gptmbr", HandsOver: true}
	Isolinux    = Code{ID: "isolinux", Name: "ISOLINUX isohybrid"}
	Grub2       = Code{ID: "grub2", Name: "GRUB 2"}
	GrubLegacy  = Code{ID: "grub-legacy", Name: "GRUB legacy"}
	Lilo        = Code{ID: "lilo", Name: "LILO"}
	Parted      = Code{ID: "parted", Name: "parted", ReadsCHS: true, HandsOver: true}
	DebianMBR   = Code{ID: "debian-mbr", Name: "install-mbr of Debian", HandsOver: true}
	FreeBSDMenu = Code{ID: "freebsd-boot0", Name: "FreeBSD boot0", ReadsCHS: true, HandsOver: true}
	FreeBSD     = Code{ID: "freebsd-mbr", Name: "FreeBSD", ReadsCHS: true}
	NetBSD      = Code{ID: "netbsd", Name: "NetBSD"}
	OpenBSD     = Code{ID: "openbsd", Name: "OpenBSD", HandsOver: true}
	FreeBSDGPT  = Code{ID: "freebsd-pmbr", Name: "FreeBSD pmbr"}
	LiloMBR     = Code{ID: "lilo-mbr", Name: "LILO's plain MBR (lilo -M)", HandsOver: true}
	Grub4DOS    = Code{ID: "grub4dos", Name: "grub4dos", ReadsCHS: true}
	TrueCrypt   = Code{ID: "truecrypt", Name: "TrueCrypt", Encrypts: true}
	VeraCrypt   = Code{ID: "veracrypt", Name: "VeraCrypt", Encrypts: true}
	PGP         = Code{ID: "pgp", Name: "PGP or Symantec Drive Encryption", Encrypts: true}
	SafeBoot    = Code{ID: "safeboot", Name: "SafeBoot or McAfee Endpoint Encryption", Encrypts: true}
	GenericCHS  = Code{ID: "generic-chs", Name: "standard code of an unnamed maker", ReadsCHS: true}
	GenericLBA  = Code{ID: "generic-lba", Name: "standard code of an unnamed maker"}
)

// signature is runs of code that a program has in every version; their offsets differ between builds and languages.
type signature struct {
	code Code
	all  [][]byte
}

// signatures name MBR code, the more particular before the more general. What each reads and hands over was read from its instructions.
//
// Seen as real bytes: Windows Server 2003 R2 and Windows 7 in the test corpus; syslinux and isolinux 6.04, parted 3.5 and mbr 1.2.1 of
// Debian. DOS, 95B and Vista were held against copies in public repositories (retrodos, ms-sys), and the first instructions of FreeBSD's
// mbr against a published dump. FreeBSD's boot0, NetBSD and OpenBSD are known from their sources only. Windows NT 4 is not here: no bytes of it
// could be had; it is said to have the code of DOS, and has the common shape if not.
var signatures = []signature{
	// The loaders of system encryption name themselves. Spec: TrueCrypt 7.1a and VeraCrypt, Boot/Windows/BootSector.asm; The Sleuth Kit,
	// tsk/util/detect_encryption.c.
	{TrueCrypt, [][]byte{[]byte("TrueCrypt Boot Loader")}},
	{VeraCrypt, [][]byte{[]byte("VeraCrypt Boot Loader")}},
	{PGP, [][]byte{{0xeb, 0x48, 0x90, 'P', 'G', 'P', 'G', 'U', 'A', 'R', 'D'}}},
	{SafeBoot, [][]byte{[]byte("SafeBoot")}},
	{SafeBoot, [][]byte{[]byte("Safeboot")}},
	// cmp [bp+0ah],dx: inside of what INT 13h AH=08h calls the CHS range … mov ax,0201h; mov bx,7c00h; mov cx,[bp+2]; mov dx,[bp]; int 13h:
	// by the entry's CHS bytes, and otherwise by AH=42h. FACTS B2.
	{Windows2000, [][]byte{{0x39, 0x56, 0x0a}, {0xb8, 0x01, 0x02, 0xbb, 0x00, 0x7c, 0x8b, 0x4e, 0x02, 0x8b, 0x56, 0x00, 0xcd, 0x13}}},
	// mov al,[bp+4]; mov ah,6; cmp al,0eh; je; mov ah,0bh; cmp al,0ch: by LBA for types 0C and 0E, and by CHS for all others.
	{Windows98, [][]byte{{0x8a, 0x46, 0x04, 0xb4, 0x06, 0x3c, 0x0e, 0x74}, {0xb4, 0x0b, 0x3c, 0x0c, 0x74}}},
	// mov dx,[si]; mov cx,[si+2]; mov bp,si … mov di,5; mov bx,7c00h; mov ax,0201h; push di; int 13h … mov si,bp; jmp 0:7c00h.
	{DOS, [][]byte{
		{0x8b, 0x14, 0x8b, 0x4c, 0x02, 0x8b, 0xee},
		{0xbf, 0x05, 0x00, 0xbb, 0x00, 0x7c, 0xb8, 0x01, 0x02, 0x57, 0xcd, 0x13},
		{0x8b, 0xf5, 0xea, 0x00, 0x7c, 0x00, 0x00},
	}},
	// cmp ebx,"TCPA": asks the TPM BIOS before it goes on. Windows 7 stays at hlt; jmp $-1 behind a message, Vista loops over its end.
	{Windows7, [][]byte{{0x66, 0x81, 0xfb, 'T', 'C', 'P', 'A'}, {0xbd, 0xbe, 0x07}, {0xeb, 0xf2, 0xf4, 0xeb, 0xfd}}},
	{Vista, [][]byte{{0x66, 0x81, 0xfb, 'T', 'C', 'P', 'A'}, {0xbd, 0xbe, 0x07}}},
	// xor ax,ax; cli; mov ds,ax; mov ss,ax; mov sp,7c00h; mov si,sp; push es; push di begin every build. gptmbr goes on with
	// mov eax,"!GPT" in the end, altmbr counts a partition number down: dec byte [07b7h].
	{SyslinuxGPT, [][]byte{syslinuxStart, {0x66, 0xb8, '!', 'G', 'P', 'T'}}},
	// The message of every build, by which bootlace.com and grubinst know it. It reads by CHS where the BIOS has no extensions.
	{Grub4DOS, [][]byte{[]byte("Missing MBR-helper.")}},
	// Before SYSLINUX 4 the start was cli; xor ax,ax (ESXi installs these), and the messages tell the builds apart.
	{SyslinuxGPT, [][]byte{syslinuxOldStart, []byte("Missing OS")}},
	{Syslinux, [][]byte{syslinuxOldStart, []byte("Missing operating system")}},
	{SyslinuxAlt, [][]byte{syslinuxStart, {0xfe, 0x0e, 0xb7, 0x07}}},
	{Syslinux, [][]byte{syslinuxStart}},
	// mov eax,[07b0h], the LBA of isolinux.bin … cmp dword [7c40h],7078c0fbh, its mark.
	{Isolinux, [][]byte{{0x66, 0xa1, 0xb0, 0x07}, {0x66, 0x81, 0x3e, 0x40, 0x7c, 0xfb, 0xc0, 0x78, 0x70}}},
	// mov ax,1000h; mov ss,ax; mov sp,0b000h … mov ah,2; mov al,1; mov bx,7c00h; mov dl,80h; mov dh,[si+1]; mov cx,[si+2]; int 13h.
	{Parted, [][]byte{
		{0xb8, 0x00, 0x10, 0x8e, 0xd0, 0xbc, 0x00, 0xb0},
		{0xb4, 0x02, 0xb0, 0x01, 0xbb, 0x00, 0x7c, 0xb2, 0x80, 0x8a, 0x74, 0x01, 0x8b, 0x4c, 0x02, 0xcd, 0x13},
	}},
	// mov ax,[si+8]; mov bx,[si+0ah]; mov si,packet; mov [si+8],ax; mov [si+0ah],bx; mov ah,42h … "MBR ", its prompt.
	{DebianMBR, [][]byte{{0x8b, 0x44, 0x08, 0x8b, 0x5c, 0x0a, 0xbe}, {0x89, 0x44, 0x08, 0x89, 0x5c, 0x0a, 0xb4, 0x42}, []byte("MBR \x10")}},
	// The start of every version, by which boot0cfg(8) knows them, and "Drive " of the menu. boot0 and mbr go by LBA only when a flag
	// behind the code says so, which the administrator sets. Hence they count as readers of CHS.
	// pmbr has the type of the partition that it loads, 83bd6b9d-7f41-11dc-be0b-001560b84f0f, as it stands in a GPT.
	{FreeBSDGPT, [][]byte{freeBSDStart, freeBSDBootType}},
	{FreeBSDMenu, [][]byte{freeBSDStart, []byte("Drive ")}},
	// mov si,7c1ah; mov di,061ah behind it … cmp word [bx+1feh],0aa55h.
	{FreeBSD, [][]byte{append(slices.Clip(freeBSDStart), 0xbe, 0x1a, 0x7c, 0xbf, 0x1a, 0x06)}},
	// xor ax,ax; mov ss,ax; mov sp,7c00h; mov es,ax; mov ds,ax; mov si,sp; mov di,0600h … mov esi,ebp; pop dx: hands the LBA over. It reads
	// by CHS only where the bytes mean the LBA in the BIOS's geometry.
	{NetBSD, [][]byte{{0x31, 0xc0, 0x8e, 0xd0, 0xbc, 0x00, 0x7c, 0x8e, 0xc0, 0x8e, 0xd8, 0x89, 0xe6, 0xbf, 0x00, 0x06}, {0x66, 0x89, 0xee, 0x5a}}},
	// jmp 07c0h:…; mov ax,cs; mov ss,ax; mov sp,0fffch; mov ds,ax … mov ax,07a0h; mov es,ax; xor si,si; xor di,di.
	{OpenBSD, [][]byte{
		{0xc0, 0x07, 0x8c, 0xc8, 0x8e, 0xd0, 0xbc, 0xfc, 0xff, 0x8e, 0xd8},
		{0xb8, 0xa0, 0x07, 0x8e, 0xc0, 0x31, 0xf6, 0x31, 0xff},
	}},
}

var (
	syslinuxStart    = []byte{0x33, 0xc0, 0xfa, 0x8e, 0xd8, 0x8e, 0xd0, 0xbc, 0x00, 0x7c, 0x89, 0xe6, 0x06, 0x57}
	syslinuxOldStart = []byte{0xfa, 0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xd0, 0xbc, 0x00, 0x7c, 0x89, 0xe6, 0x06, 0x57}
	freeBSDBootType  = []byte{0x9d, 0x6b, 0xbd, 0x83, 0x41, 0x7f, 0xdc, 0x11, 0xbe, 0x0b, 0x00, 0x15, 0x60, 0xb8, 0x4f, 0x0f}
	freeBSDStart     = []byte{0xfc, 0x31, 0xc0, 0x8e, 0xc0, 0x8e, 0xd8, 0x8e, 0xd0, 0xbc, 0x00, 0x7c}
)
