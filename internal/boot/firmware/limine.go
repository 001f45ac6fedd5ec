package firmware

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
)

// Limine keeps the places of both halves of its stage 2 in sector 0, in bytes of the disk. They lie in the gap, in a
// partition, or on a GPT in what the arrays of entries gave up, the second half at the end of the disk. Stage 2 finds
// limine-bios.sys by its name. mov di,7da8h; mov eax,[di]; mov ebp,[di+4] … mov cx,[di-4]; call. Spec: Limine 4 and 8,
// stage1/hdd/bootsect.asm and disk.asm, and limine.c, bios_install.
var Limine = &boot.Code{
	ID: "limine", Name: "Limine", AnyFlag: true, Picks: boot.None, Find: findLimine,
	Known: boot.Like("680070 07 bfa87d 668b05 668b6d04 31db 6631c9 8b4dfc e8",
		"668b4508 668b6d0c 01cb 8b4dfe e8",
		"60 be0080 c7041000 c744020100 895c04 8c4406 52 56 6650 6655 b448 be1080 c7041e00 cd13 72.. 8b6c18",
		"66f7f5 66894408 66c7440c00000000 5a b442 f8 cd13 72.. 016c04"),
}

// Fields of sector 0: for each half the length, 16 bits, and the place, 64 bits.
const (
	atLimineSizes  = 0x1a4
	atLiminePlaces = 0x1a8
)

var limineFiles = []string{
	"limine-bios.sys", "boot/limine-bios.sys", "limine/limine-bios.sys", "boot/limine/limine-bios.sys",
	"limine.sys", "boot/limine.sys", "limine/limine.sys", "boot/limine/limine.sys",
}

// limineConfigs are the places of the configuration. Spec: Limine 8, CONFIG.md, "Location of the config file".
var limineConfigs = []string{
	"limine.conf", "limine/limine.conf", "boot/limine.conf", "boot/limine/limine.conf",
	"limine.cfg", "limine/limine.cfg", "boot/limine.cfg", "boot/limine/limine.cfg",
}

func findLimine(g *boot.Guest, c *boot.Code) (f boot.Found, err error) {
	if g.Code != c {
		return f, nil
	}
	for half := range int64(2) {
		limineHalf(&f, g, half)
	}
	g.Configured(boot.Config{Loader: c.Name, Anywhere: true, Paths: limineConfigs})
	return f, g.WithFile(limineFiles, func(p boot.Partition, path string) {
		f.Link(p.Number, "%s of Limine lies in partition %d", path, p.Number)
	})
}

// limineHalf adds what holds one half of stage 2.
func limineHalf(f *boot.Found, g *boot.Guest, half int64) {
	size := int64(binary.LittleEndian.Uint16(g.Sector0[atLimineSizes+2*half:]))
	place := binary.LittleEndian.Uint64(g.Sector0[atLiminePlaces+8*half:])
	sector := g.Disk.SectorSize()
	text := fmt.Sprintf("Limine in sector 0 loads half %d of its stage 2 (%d bytes) from byte %d of the disk", half+1,
		size, place)
	points := ondisk.I64(min(place, math.MaxInt64))
	at := atLiminePlaces + 8*half
	ref := boot.Ref{
		Kind: fmt.Sprintf("limine stage 2, half %d", half+1), Off: at, At: []disk.Range{{Off: at, Len: 8}},
		Raw: slices.Clone(g.Sector0[at : at+8]), Points: points, Stays: "it lies outside of all partitions",
	}
	r := disk.Range{Off: min(points, g.Disk.Size()), Len: units.AlignUp(size, sector)}
	p, inside := g.Holding(r.Off, r.Len)
	switch {
	case size == 0 || r.Off < sector || r.Off%sector != 0 || r.Off > g.Disk.Size()-r.Len:
		text += ", which is no place for it"
		f.Unbootable("limine", 0, text, boot.InstallAgain)
	case inside && p.Kind != table.Extended:
		text += fmt.Sprintf(", inside partition %d", p.Number)
		ref.Target, ref.Stays, ref.Encode = p.Number, "", func(_ []byte, to int64) ([]byte, error) {
			return binary.LittleEndian.AppendUint64(nil, ondisk.U64(to)), nil
		}
		f.Link(p.Number, "stage 2 of Limine lies in partition %d", p.Number)
	case slices.ContainsFunc(g.Partitions, func(p boot.Partition) bool { return p.Overlaps(r) }):
		text += ", of which only a part is in a partition"
		f.Unbootable("limine", 0, text, boot.InstallAgain)
	default:
		f.Fixed = append(f.Fixed, boot.Fixed{Range: r, Issue: ondisk.Issue{
			Code: "limine", Effect: ondisk.Unbootable, Text: text + ", and the copy would have something else there",
			Remedy: boot.InstallAgain,
		}})
		text += ", outside of all partitions"
	}
	f.Refs = append(f.Refs, ref) // whatever it points to: a copy has the same fields
	f.Link(0, "%s", text)
}
