package firmware

import (
	"slices"

	"github.com/trueup/trueup/internal/boot"
)

// typeOfFreeBSDBoot is the type of a GPT's partition that holds gptboot or gptzfsboot. Spec: FreeBSD, gpart(8).
const typeOfFreeBSDBoot = "83bd6b9d-7f41-11dc-be0b-001560b84f0f"

// freeBSDStart is the start of every version, by which boot0cfg(8) knows them.
var freeBSDStart = []byte{0xfc, 0x31, 0xc0, 0x8e, 0xc0, 0x8e, 0xd8, 0x8e, 0xd0, 0xbc, 0x00, 0x7c}

// Code of the BSDs. boot0 and mbr of FreeBSD use LBA only if a flag behind the code is set, which is up to the
// administrator. Hence they count as readers of CHS.
var (
	// Moves itself from 7c1ah to 061ah … compares a type with that of freebsd-boot … loads the partition to 7c00h, up
	// to its last LBA in the GPT … reads by mov ax,4200h. Spec: FreeBSD 8 and 14, stand/i386/pmbr/pmbr.S.
	FreeBSDGPT = &boot.Code{
		ID: "freebsd-pmbr", Name: "FreeBSD pmbr", GPT: true, Choice: "the partition of type freebsd-boot",
		Picks: func(p boot.Partition) bool { return p.TypeGUID == typeOfFreeBSDBoot },
		Known: boot.Like("fc 31c0 8ec0 8ed8 8ed0 bc.... be1a7c bf1a06 b9e601 f3a4 e9008a",
			"f3a6 75.. 89df 8d7520 bbc007 8ec3 31db 56 e8.... 5e 668b4528 663b04 75.. 668b452c 663b4404 75",
			"06 53 6a01 6a10 89e6 b80042 cd13 83c410 72",
			"9d6bbd83 417f dc11 be0b 0015 60b84f0f"),
	}
	// FreeBSDBoot is gptboot or gptzfsboot, which begin alike: copies BTX, and what follows it, by the length in the
	// header of BTX. Both find the partition of the system in the GPT. Spec: FreeBSD 8 and 13,
	// stand/i386/gptboot/gptldr.S.
	FreeBSDBoot = &boot.Code{
		ID: "freebsd-gptboot", Name: "gptboot or gptzfsboot", OfVolume: true, Find: findFreeBSDBoot,
		Known: boot.Like("31c9 8ec1 8ed9 8ed1 bc007c bb..7c 8b770a 01de", "88160009 e9..13 eb0e 425458"),
	}
	// "Drive " belongs to the menu.
	FreeBSDMenu = &boot.Code{
		ID: "freebsd-boot0", Name: "FreeBSD boot0", ReadsCHS: true, HandsOver: true, Many: true, Address: byFlag,
		Choice: "a partition that the user chooses",
		Picks:  func(p boot.Partition) bool { return p.InMBR() },
		Known:  boot.Has(freeBSDStart, []byte("Drive ")),
	}
	// mov si,7c1ah; mov di,061ah behind it … cmp word [bx+1feh],0aa55h.
	FreeBSD = &boot.Code{
		ID: "freebsd-mbr", Name: "FreeBSD", ReadsCHS: true, Address: byFlag,
		Known: boot.Has(append(slices.Clip(freeBSDStart), 0xbe, 0x1a, 0x7c, 0xbf, 0x1a, 0x06)),
	}
	// xor ax,ax; mov ss,ax; mov sp,7c00h; mov es,ax; mov ds,ax; mov si,sp; mov di,0600h … mov esi,ebp; pop dx: hands
	// the LBA over. It reads by CHS only where the bytes mean the LBA in the BIOS's geometry.
	NetBSD = &boot.Code{
		ID: "netbsd", Name: "NetBSD",
		Known: boot.Has([]byte{
			0x31, 0xc0, 0x8e, 0xd0, 0xbc, 0x00, 0x7c, 0x8e, 0xc0, 0x8e, 0xd8, 0x89, 0xe6, 0xbf,
			0x00, 0x06,
		},
			[]byte{0x66, 0x89, 0xee, 0x5a}),
	}
	// jmp 07c0h:…; mov ax,cs; mov ss,ax; mov sp,0fffch; mov ds,ax … mov ax,07a0h; mov es,ax; xor si,si; xor di,di.
	OpenBSD = &boot.Code{
		ID: "openbsd", Name: "OpenBSD", HandsOver: true,
		Known: boot.Has([]byte{0xc0, 0x07, 0x8c, 0xc8, 0x8e, 0xd0, 0xbc, 0xfc, 0xff, 0x8e, 0xd8},
			[]byte{0xb8, 0xa0, 0x07, 0x8e, 0xc0, 0x31, 0xf6, 0x31, 0xff}),
	}
)

func findFreeBSDBoot(g *boot.Guest, c *boot.Code) (f boot.Found, err error) {
	err = g.Homes(c, func(home boot.Partition, where string, _ []byte) error {
		f.Link(home.Number, "%s in %s finds the partition of FreeBSD by its type", c.Name, where)
		return nil
	})
	return f, err
}

// byFlag is the address of code that goes by LBA only when a flag behind it says so.
const byFlag = "cylinder, head and sector (by LBA when a flag says so)"
