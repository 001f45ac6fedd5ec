package windows

import "github.com/trueup/trueup/internal/boot"

// Code of DOS and Windows, as disassembled.
var (
	// cmp [bp+0ah],dx: inside of what INT 13h AH=08h calls the CHS range … mov ax,0201h; mov bx,7c00h; mov cx,[bp+2];
	// mov dx,[bp]; int 13h: by the entry's CHS bytes, and otherwise by AH=42h.
	MBR2000 = &boot.Code{
		ID: "windows-2000", Name: "Windows 2000/XP/2003", ReadsCHS: true, HandsOver: true,
		Address: "cylinder, head and sector (by LBA behind the last cylinder of the BIOS)",
		Known: boot.Has([]byte{0x39, 0x56, 0x0a},
			[]byte{0xb8, 0x01, 0x02, 0xbb, 0x00, 0x7c, 0x8b, 0x4e, 0x02, 0x8b, 0x56, 0x00, 0xcd, 0x13}),
	}
	// mov al,[bp+4]; mov ah,6; cmp al,0eh; je; mov ah,0bh; cmp al,0ch: by LBA for types 0C and 0E, and by CHS for all
	// others.
	MBR98 = &boot.Code{
		ID: "windows-98", Name: "Windows 95B, 98 or ME", ReadsCHS: true, HandsOver: true,
		Address: "cylinder, head and sector (by LBA when its type is 0c or 0e)",
		Known:   boot.Has([]byte{0x8a, 0x46, 0x04, 0xb4, 0x06, 0x3c, 0x0e, 0x74}, []byte{0xb4, 0x0b, 0x3c, 0x0c, 0x74}),
	}
	// mov dx,[si]; mov cx,[si+2]; mov bp,si … mov di,5; mov bx,7c00h; mov ax,0201h; push di; int 13h … mov si,bp;
	// jmp 0:7c00h.
	MBRDOS = &boot.Code{
		ID: "dos", Name: "DOS or Windows 95", ReadsCHS: true, HandsOver: true,
		Known: boot.Has([]byte{0x8b, 0x14, 0x8b, 0x4c, 0x02, 0x8b, 0xee},
			[]byte{0xbf, 0x05, 0x00, 0xbb, 0x00, 0x7c, 0xb8, 0x01, 0x02, 0x57, 0xcd, 0x13},
			[]byte{0x8b, 0xf5, 0xea, 0x00, 0x7c, 0x00, 0x00}),
	}
	// cmp ebx,"TCPA": asks the TPM BIOS before it goes on. Windows 7 stays at hlt; jmp $-1 behind a message, Vista
	// loops over its end.
	MBR7 = &boot.Code{
		ID: "windows-7", Name: "Windows 7 or later",
		Known: boot.Has([]byte{0x66, 0x81, 0xfb, 'T', 'C', 'P', 'A'}, []byte{0xbd, 0xbe, 0x07},
			[]byte{0xeb, 0xf2, 0xf4, 0xeb, 0xfd}),
	}
	MBRVista = &boot.Code{
		ID: "windows-vista", Name: "Windows Vista or 2008",
		Known: boot.Has([]byte{0x66, 0x81, 0xfb, 'T', 'C', 'P', 'A'}, []byte{0xbd, 0xbe, 0x07}),
	}
)
