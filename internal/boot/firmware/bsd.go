package firmware

import (
	"slices"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/table"
)

// typeOfFreeBSDBoot is the type of a GPT's partition that holds gptboot or gptzfsboot. Spec: FreeBSD, gpart(8).
const typeOfFreeBSDBoot = "83bd6b9d-7f41-11dc-be0b-001560b84f0f"

var (
	// freeBSDStart is the start of every version, by which boot0cfg(8) knows them.
	freeBSDStart = []byte{0xfc, 0x31, 0xc0, 0x8e, 0xc0, 0x8e, 0xd8, 0x8e, 0xd0, 0xbc, 0x00, 0x7c}
	// freeBSDBootType is typeOfFreeBSDBoot as it stands in a GPT.
	freeBSDBootType = []byte{
		0x9d, 0x6b, 0xbd, 0x83, 0x41, 0x7f, 0xdc, 0x11, 0xbe, 0x0b, 0x00, 0x15, 0x60,
		0xb8, 0x4f, 0x0f,
	}
)

// Code of the BSDs. boot0 and mbr of FreeBSD use LBA only if a flag behind the code is set, which is up to the
// administrator. Hence they count as readers of CHS.
var (
	FreeBSDGPT = &boot.Code{
		ID: "freebsd-pmbr", Name: "FreeBSD pmbr", GPT: true, Choice: "the partition of type freebsd-boot",
		Picks: func(p boot.Partition) bool { return p.TypeGUID == typeOfFreeBSDBoot },
		Known: boot.Has(freeBSDStart, freeBSDBootType),
	}
	// "Drive " belongs to the menu.
	FreeBSDMenu = &boot.Code{
		ID: "freebsd-boot0", Name: "FreeBSD boot0", ReadsCHS: true, HandsOver: true, Many: true, Address: byFlag,
		Choice: "a partition that the user chooses",
		Picks:  func(p boot.Partition) bool { return p.Kind == table.Primary },
		Known:  boot.Has(freeBSDStart, []byte("Drive ")),
	}
	// mov si,7c1ah; mov di,061ah behind it … cmp word [bx+1feh],0aa55h.
	FreeBSD = &boot.Code{
		ID: "freebsd-mbr", Name: "FreeBSD", ReadsCHS: true, Address: byFlag,
		Known: boot.Has(append(slices.Clip(freeBSDStart), 0xbe, 0x1a, 0x7c, 0xbf, 0x1a, 0x06)),
	}
	// xor ax,ax; mov ss,ax; mov sp,7c00h; mov es,ax; mov ds,ax; mov si,sp; mov di,0600h … mov esi,ebp; pop dx: hands the
	// LBA over. It reads by CHS only where the bytes mean the LBA in the BIOS's geometry.
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

// byFlag is the address of code that goes by LBA only when a flag behind it says so.
const byFlag = "cylinder, head and sector (by LBA when a flag says so)"
