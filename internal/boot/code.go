// Package boot knows what boots a disk and which absolute positions a move of a partition would break.
package boot

import (
	"bytes"
	"encoding/binary"

	"github.com/trueup/trueup/internal/ondisk"
)

// Code is the program in a boot sector, named by what it does.
type Code struct {
	ID       string // "windows-2000", stable, for JSON
	Name     string // for people
	ReadsCHS bool   // finds its partition by the CHS bytes of the table, on some machines at least
	// HandsOver tells that the boot sector gets the address of its entry of the table in DS:SI, by which a loader finds its place
	// without hidden sectors. False where that is not known.
	HandsOver bool
	// Encrypts marks the loader of a disk that is encrypted as a whole, by units that count from the start of the disk.
	Encrypts bool
}

// Identify names the code of an MBR (440 bytes).
func Identify(code []byte) Code {
	if ondisk.IsZero(code) {
		return Empty
	}
	if c := loader(code); c != Unknown {
		return c
	}
	if isLiloMBR(code) {
		return LiloMBR
	}
	for _, s := range signatures {
		if containsAll(code, s.all) {
			return s.code
		}
	}
	return generic(code)
}

func containsAll(b []byte, subs [][]byte) bool {
	for _, s := range subs {
		if !bytes.Contains(b, s) {
			return false
		}
	}
	return true
}

// loader knows boot loaders that put the same code into an MBR and into the boot sector of a partition.
func loader(code []byte) Code {
	switch {
	case isLiloMBR(code): // code of a table, see Identify
		return Unknown
	case len(code) >= 10 && (string(code[6:10]) == "LILO" || string(code[2:6]) == "LILO"):
		return Lilo
	case !bytes.Contains(code, []byte("GRUB ")) || !bytes.Contains(code, []byte("Geom")):
		return Unknown
	case code[0x3e] == 3: // major version of stage1; boot.img of GRUB 2 has a BPB there
		return GrubLegacy
	}
	return Grub2
}

// liloPacket is the begin of the address packet of mbr.b: 16 bytes, one sector, to 0:7c00h. LILO with a map has its version there.
var liloPacket = []byte{16, 0, 1, 0, 0, 0x7c}

// isLiloMBR knows mbr.b and mbr2.b, which have LILO's word and no map. Spec: LILO 24, src/mbr.S.
func isLiloMBR(code []byte) bool {
	return len(code) >= 18 && string(code[6:10]) == "LILO" && bytes.Equal(code[12:18], liloPacket)
}

// generic recognises the shape that all standard MBR programs share: they refer to the table, at its own place or at
// that of their copy, and read one sector through INT 13h. Code of another shape is unknown.
func generic(code []byte) Code {
	int13 := []byte{0xcd, 0x13}
	if !refersToTable(code) || !bytes.Contains(code, int13) {
		return Unknown
	}
	// mov ax,0201h or mov ah,02h: a read by cylinder, head and sector.
	if bytes.Contains(code, []byte{0xb8, 0x01, 0x02}) || bytes.Contains(code, []byte{0xb4, 0x02}) {
		return GenericCHS
	}
	// mov ah,42h, mov ax,42xxh: a read by LBA.
	if bytes.Contains(code, []byte{0xb4, 0x42}) || bytes.Contains(code, []byte{0x00, 0x42}) {
		return GenericLBA
	}
	return Unknown
}

// refersToTable looks for a 16-bit move or addition of the table's offset: at 7c00h, at 600h, or within the sector.
func refersToTable(code []byte) bool {
	for i := 1; i+1 < len(code); i++ {
		v := binary.LittleEndian.Uint16(code[i:])
		if (v == 0x7dbe || v == 0x07be || v == 0x01be) && (code[i-1]&0xf8 == 0xb8 || code[i-1] == 0x05 || code[i-1]&0xf8 == 0xc0) {
			return true
		}
	}
	return false
}
