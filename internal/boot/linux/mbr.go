package linux

import "github.com/trueup/trueup/internal/boot"

// Code that partitioners and distributions of Linux install.
var (
	// mov ax,1000h; mov ss,ax; mov sp,0b000h … mov ah,2; mov al,1; mov bx,7c00h; mov dl,80h; mov dh,[si+1];
	// mov cx,[si+2]; int 13h.
	Parted = &boot.Code{
		ID: "parted", Name: "parted", ReadsCHS: true, HandsOver: true,
		Known: boot.Has([]byte{0xb8, 0x00, 0x10, 0x8e, 0xd0, 0xbc, 0x00, 0xb0},
			[]byte{
				0xb4, 0x02, 0xb0, 0x01, 0xbb, 0x00, 0x7c, 0xb2, 0x80, 0x8a, 0x74, 0x01, 0x8b, 0x4c, 0x02, 0xcd, 0x13,
			}),
	}
	// mov ax,[si+8]; mov bx,[si+0ah]; mov si,packet; mov [si+8],ax; mov [si+0ah],bx; mov ah,42h … "MBR ", its prompt.
	DebianMBR = &boot.Code{
		ID: "debian-mbr", Name: "install-mbr of Debian", HandsOver: true,
		Choice: "the active partition, or of one that the user chooses,",
		Known: boot.Has([]byte{0x8b, 0x44, 0x08, 0x8b, 0x5c, 0x0a, 0xbe},
			[]byte{0x89, 0x44, 0x08, 0x89, 0x5c, 0x0a, 0xb4, 0x42},
			[]byte("MBR \x10")),
	}
	// LiloMBR is what lilo -M writes: mbr.b, which has the word of LILO and no map. cli; jmp; stage 12h, the version at
	// 10, the address packet at 12 (16 bytes, one sector, to 0:7c00h) … mov si,bp; mov eax,[si+8]; mov [packet+8],eax.
	// A BIOS without extensions gets the same LBA in its own geometry. Spec: LILO 24, src/mbr.S.
	LiloMBR = &boot.Code{
		ID: "lilo-mbr", Name: "LILO's plain MBR (lilo -M)", HandsOver: true,
		Known: boot.Like("fa eb..12 .... 4c494c4f .... 1000 0100 007c 0000",
			"89ee 668b4408 66a31406 e8.... 813efe7d55aa", "be0c06 bbaa55 b441 cd13"),
	}
	// LiloMBR2 is mbr2.b, of lilo -M ext: stage 13h. It follows the boot records of logical partitions too, and adds
	// their starts: add [packet+8],eax. Known from the source only.
	LiloMBR2 = &boot.Code{
		ID: "lilo-mbr-ext", Name: "LILO's plain MBR (lilo -M ext)", Picks: boot.Active,
		Choice: "the active partition, primary or logical,",
		Known: boot.Like("fa eb..13 .... 4c494c4f .... 1000 0100 007c 0000",
			"668b4408 6601061406 e8.... 813efe7d55aa", "be0c06 bbaa55 b441 cd13"),
	}
)
