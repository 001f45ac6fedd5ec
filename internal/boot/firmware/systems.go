package firmware

import (
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/table"
)

// typeOfHaiku is the type of a GPT's partition that holds Haiku. Spec: Haiku, src/bin/writembr/mbr.S, boot_uuid.
const typeOfHaiku = "42465331-3ba3-10f1-802a-4861696b7521"

// elseCHS is the address of code that goes by LBA, and by CHS only where a BIOS has no extensions.
const elseCHS = "LBA (by cylinder, head and sector where the BIOS has no extensions)"

// Code of systems and tools that have one program for sector 0.
var (
	// mov bx,7dbeh; mov dx,[bx]; push dx; mov dl,80h; mov cx,[bx+2]; mov ebx,[bx+8]: the first entry, whatever the
	// flags say. Before 2014 it read by CHS only: mov dx,es:[bx]; mov cx,es:[bx+2] … mov ax,0201h. The older code is
	// res/mbr/mbr.S of Rufus; the newer one is known from copies.
	Rufus = &boot.Code{
		ID: "rufus", Name: "Rufus", ReadsCHS: true, Address: elseCHS,
		Number: func([]byte) int { return 1 },
		Known: boot.Either(
			boot.Like("bbbe7d 8b17 52 b280 8b4f02 668b5f08 e8.... 73",
				"61 1e 6631c0 8ed8 6650 6653 50 68007c 40 50 6a10 89e6 b442 cd13", "61 bb007c b80102 cd13 c3"),
			boot.Like("bbbe7d 268b17 268b4f02 31c0 8ec0 b80102 bb007c cd13 73")),
	}
	// lea di,[bp+01beh]; test byte [di],80h: the first active entry. It reads four sectors.
	ReactOS = &boot.Code{
		ID: "reactos", Name: "ReactOS", ReadsCHS: true, Address: elseCHS,
		Known: boot.Like("8dbebe01 f60580 75.. 83c710 81fffe7d 72",
			"8b4508 a3.... 8b450a a3.... b80042 be.... cd13 c3 b80402 bb007c 8b4d02 8a7501 cd13 c3"),
	}
	// The code of Windows 2000 without its reads by CHS: push [bp+0ah]; push [bp+8] … mov ah,42h; mov si,sp. The entry
	// goes over by mov si,bp; retf.
	KolibriOS = &boot.Code{
		ID: "kolibrios", Name: "KolibriOS", HandsOver: true,
		Known: boot.Like("bdbe07 b104 386e00 7c.. 75.. 83c510 e2", "8bfc 1e 57 8bf5 cb bf0500 9090",
			"60 bbaa55 b441 cd13 72.. 81fb55aa 75.. f6c101 74.. 61 60 "+
				"6a00 6a00 ff760a ff7608 6a00 68007c 6a01 6a10 b442 8bf4 cd13"),
	}
	// Looks into a GPT where there is one, for its type; and then for the active entry: mov si,bx, with which it jumps.
	// A partition of a GPT it loads as a whole. Spec: Haiku, src/bin/writembr/mbr.S.
	Haiku = &boot.Code{
		ID: "haiku", Name: "Haiku", ReadsCHS: true, HandsOver: true, Address: elseCHS, BothTables: true,
		Choice: "the active partition, or on a GPT that of type Haiku,",
		Picks: func(p boot.Partition) bool {
			return p.TypeGUID == typeOfHaiku || p.TypeGUID == "" && p.Active && p.Kind == table.Primary
		},
		Known: boot.Like("31f6 bbbe07 b90400 382f 74.. 7f.. 85f6 75.. 89de 80c310 e2",
			"83c608 bff80d 66a5 87.. 83ee04 e8.... eb.. 8a7401 8b4c02 b002 b402 cd13", "5e 8814 81bffe0155aa",
			"31534642 a33b f110 802a 486169 6b7521"),
	}
)
