package linux

import (
	"encoding/binary"

	"github.com/trueup/trueup/internal/boot"
)

// isolinuxLBA is the place of the LBA of isolinux.bin in the code of an isohybrid: 32 bits that count sectors of 512
// bytes. Spec: syslinux, mbr/isohdpfx.S and utils/isohybrid.in.
const isolinuxLBA = 432

// Isolinux is the code of images that are ISO 9660 and a disk at once. It goes by no table. mov eax,[07b0h], the LBA of
// isolinux.bin … cmp dword [7c40h],7078c0fbh, its mark.
var Isolinux = &boot.Code{
	ID: "isolinux", Name: "ISOLINUX isohybrid", AnyFlag: true, Picks: boot.None, Find: findIsolinux,
	Known: boot.Has([]byte{0x66, 0xa1, 0xb0, 0x07}, []byte{0x66, 0x81, 0x3e, 0x40, 0x7c, 0xfb, 0xc0, 0x78, 0x70}),
}

func findIsolinux(g *boot.Guest, c *boot.Code) (f boot.Found, err error) {
	if g.Code != c {
		return f, nil
	}
	lba := binary.LittleEndian.Uint32(g.Sector0[isolinuxLBA:])
	at := int64(lba) * 512
	f.Link(0, "%s in sector 0 loads isolinux.bin from LBA %d", c.Name, lba)
	home, inside := g.Holding(at, 4*512) // it reads the first four sectors, which read the rest
	if inside {
		f.Link(home.Number, "isolinux.bin lies in partition %d", home.Number)
	}
	if inside || at >= g.FirstByte() {
		f.Unbootable("isolinux", home.Number, "isolinux.bin is found by its absolute sector",
			"run isohybrid on a new image, or leave the partition where it is")
	}
	return f, nil
}
