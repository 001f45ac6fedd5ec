package firmware

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/trueup/trueup/internal/boot"
)

// GenericCHS and GenericLBA have the shape that all standard MBR programs share: they refer to the table, at its own
// place or at that of their copy, and read one sector through INT 13h. Code of another shape is unknown.
var (
	// mov ax,0201h or mov ah,02h: a read by cylinder, head and sector.
	GenericCHS = &boot.Code{
		ID: "generic-chs", Name: "standard code of an unnamed maker", Generic: true, ReadsCHS: true,
		Known: func(code []byte) bool {
			return isStandard(code) && boot.Either(boot.Has([]byte{0xb8, 0x01, 0x02}),
				boot.Has([]byte{0xb4, 0x02}))(code)
		},
	}
	// mov ah,42h, mov ax,42xxh: a read by LBA.
	GenericLBA = &boot.Code{
		ID: "generic-lba", Name: "standard code of an unnamed maker", Generic: true,
		Known: func(code []byte) bool {
			return isStandard(code) && boot.Either(boot.Has([]byte{0xb4, 0x42}), boot.Has([]byte{0x00, 0x42}))(code)
		},
	}
)

func isStandard(code []byte) bool {
	named := func(word string) bool { return bytes.Contains(code, []byte(word)) }
	return refersToTable(code) && bytes.Contains(code, []byte{0xcd, 0x13}) && !slices.ContainsFunc(ofLoaders, named)
}

// ofLoaders are words of loaders that read the table and more: a build of them that is not known is no standard code.
// grub4dos has a helper behind it.
var ofLoaders = []string{"GRUB", "LILO", "helper."}

// refersToTable reports a 16-bit move or addition of the table's offset: at 7c00h, at 600h, or within the sector.
func refersToTable(code []byte) bool {
	for i := 1; i+1 < len(code); i++ {
		v := binary.LittleEndian.Uint16(code[i:])
		if (v == 0x7dbe || v == 0x07be || v == 0x01be) &&
			(code[i-1]&0xf8 == 0xb8 || code[i-1] == 0x05 || code[i-1]&0xf8 == 0xc0) {
			return true
		}
	}
	return false
}
