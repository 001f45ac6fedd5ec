package firmware

import (
	_ "embed" // places
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// place is a sector from which a boot ROM or a first loader reads the next loader, independently of the partition
// table.
type place struct {
	Reader string // the program that reads it
	What   string // its content
	LBAs   []int64
	Offset int64    // of the magic in the sector
	Magics []string // in hexadecimal
	Source string

	lba int64 // one of LBAs, in units of 512 bytes
}

// places returns the known sectors. A sector matches only with its magic, so that no PC disk matches by mistake.
var places = sync.OnceValue(func() (all []place) {
	for _, row := range ondisk.Embedded[[]place](placesText) {
		for _, row.lba = range row.LBAs {
			all = append(all, row)
		}
	}
	return all
})

//go:embed places.json
var placesText []byte

func (p place) at() int64 { return p.lba * units.SectorSize }

// holds reports whether a disk has the magic at the place.
func (p place) holds(d disk.Disk) (bool, error) {
	if d.SectorSize() != units.SectorSize || p.at()+units.SectorSize > d.Size() {
		return false, nil
	}
	b, err := ondisk.Bytes(d, p.at(), units.SectorSize)
	if err != nil {
		return false, ondisk.Legible(err)
	}
	text := hex.EncodeToString(b[p.Offset:])
	return slices.ContainsFunc(p.Magics, func(m string) bool { return strings.HasPrefix(text, m) }), nil
}

// FixedPlace returns why a partition must stay where it is: firmware or a loader reads it by its place. It is empty if
// no such reason is known.
func FixedPlace(d disk.Disk, p boot.Partition, all []boot.Partition) (string, error) {
	if why := ventoy(p, all); why != "" || p.Volume.Kind != volume.Unknown || p.Kind == table.Extended {
		return why, nil
	}
	for _, x := range places() {
		if x.at() < p.Off || x.at() >= p.End() {
			continue
		}
		if ok, err := x.holds(d); ok || err != nil {
			return fmt.Sprintf("%s reads %s from LBA %d of the disk, which is byte %d of the partition", x.Reader,
				x.What, x.lba, x.at()-p.Off), err
		}
	}
	if !strings.HasPrefix(p.Name, "fsbl") || p.Off+units.SectorSize > d.Size() {
		return "", nil
	}
	// The boot ROM of STM32MP1 finds it by its name. Sources: U-Boot, doc/board/st/stm32mp1.rst; tools/stm32image.c,
	// HEADER_MAGIC.
	b, err := ondisk.Bytes(d, p.Off, units.SectorSize)
	if err == nil && strings.HasPrefix(string(b), "STM\x32") {
		return "it holds the first loader of an STM32MP1, which is used only to start the board", nil
	}
	return "", ondisk.Legible(err)
}

// Ventoy's loader starts only if the first partition starts at LBA 2048, and the second one, of 65536 sectors, follows
// directly. Source: Ventoy, GRUB2/MOD_SRC/grub-2.04/grub-core/ventoy/ventoy_cmd.c, ventoy_check_official_device.
const (
	ventoyStart  = 2048 * units.SectorSize
	ventoySize   = 65536 * units.SectorSize
	ventoyLabel  = "VTOYEFI"
	ventoyReason = "Ventoy starts only from a disk on which the partition " + ventoyLabel + " directly follows the " +
		"first"
)

func ventoy(p boot.Partition, all []boot.Partition) string {
	first := func(x boot.Partition) bool { return x.Number == 1 && x.Off == ventoyStart }
	second := func(x boot.Partition) bool {
		return x.Number == 2 && x.Len == ventoySize && (x.Volume.Label == ventoyLabel || x.Name == ventoyLabel)
	}
	if !first(p) && !second(p) {
		return ""
	}
	i, k := slices.IndexFunc(all, first), slices.IndexFunc(all, second)
	if i < 0 || k < 0 || all[i].End() != all[k].Off {
		return ""
	}
	return ventoyReason
}

// Boards finds board loaders outside all partitions, and partitions that may hold one.
var Boards = boot.Finder{Name: "places of boards", Find: findBoards}

func findBoards(g *boot.Guest) (f boot.Found, err error) {
	for _, x := range places() {
		if _, inside := g.Holding(x.at(), 1); inside {
			continue
		}
		ok, err := x.holds(g.Disk)
		if err != nil {
			return f, err
		}
		if ok {
			text := fmt.Sprintf("%s reads %s from LBA %d of the disk", x.Reader, x.What, x.lba)
			f.Link(0, "%s", text)
			f.Fixed = append(f.Fixed, boot.Fixed{
				Range: disk.Range{Off: x.at(), Len: units.SectorSize}, Issue: ondisk.Issue{
					Code: fixedCode, Effect: ondisk.Unbootable,
					Text: text + ", but the copy would have other data there",
					Remedy: "leave the partition in front of it where it is (--partition selects others), or use " +
						"--allow-unbootable and rewrite the loader",
				},
			})
		}
	}
	f.ByPlace = byPlace(g)
	var warned, more int
	for _, p := range g.Partitions {
		if p.Fixed != "" {
			f.Link(p.Number, "%s", p.Fixed)
			f.Issues = append(f.Issues, ondisk.Issue{
				Code: fixedCode, Effect: ondisk.Note, Partition: p.Number, Text: "it stays where it is: " + p.Fixed,
			})
			continue
		}
		text, err := doubtful(g, p, f.ByPlace)
		switch {
		case err != nil:
			return f, err
		case text == "":
		case warned == maxDoubtful:
			more++
		default:
			warned++
			f.Warn(fixedCode, p.Number, text, remedyDoubtful)
		}
	}
	if more > 0 {
		f.Warn(fixedCode, 0, fmt.Sprintf("%d more partitions of unknown content are on a disk from which a board may "+
			"start", more), remedyDoubtful)
	}
	return f, nil
}

// maxDoubtful limits the partitions with a warning of their own: a table can name thousands.
const maxDoubtful = 8

const remedyDoubtful = "leave it where it is (--partition selects others), or reinstall the loader in its place in " +
	"the copy"

const fixedCode = "fixed-place"

// loaderNames lists partition names of loaders on images of boards. Sources: the same as for places; U-Boot,
// doc/board/st/stm32mp1.rst, doc/board/mediatek and include/configs of boards.
var loaderNames = []string{
	"loader1", "loader2", "idbloader", "idblock", "uboot", "u-boot", "uboot_a", "uboot_b", "trust", "spl", "preloader",
	"bootloader", "boot0", "fsbl", "fsbl1", "fsbl2", "ssbl", "fip", "fip-a", "fip-b", "bl2", "bl31", "atf", "tee",
	"mlo",
}

// firstRead is the end of the disk area that boot ROMs and first loaders read. Later loaders read a kernel or a device
// tree from anywhere.
const firstRead = 32 * units.MiB

// byPlace returns the range of a disk without PC boot code in which unknown data may be a loader. It is the whole disk,
// or with an EFI system partition of a GPT the range from there to the last file system, within the reach of boot ROMs.
func byPlace(g *boot.Guest) disk.Range {
	files, system := int64(-1), int64(-1) // starts of partitions, or -1
	for _, p := range g.Partitions {
		if p.Volume.Kind != volume.Unknown && p.Volume.Kind != volume.Swap {
			files = max(files, p.Off)
		}
		if boot.IsESP(p) && p.TypeGUID != "" {
			system = max(system, p.Off)
		}
	}
	switch {
	case g.Code != boot.Empty:
		return disk.Range{}
	case system < 0:
		return disk.Range{Len: g.Disk.Size()}
	}
	return disk.Range{Off: system, Len: max(0, min(firstRead, files)-system)}
}

// doubtful returns the warning about a partition that a board may read by its place: by its name, or as unknown content
// in the range for loaders. It is empty without such a doubt.
func doubtful(g *boot.Guest, p boot.Partition, loaders disk.Range) (text string, err error) {
	if p.Volume.Kind != volume.Unknown || p.Kind == table.Extended || boot.NoFiles(p) {
		return "", nil
	}
	named := p.Off < firstRead && slices.Contains(loaderNames, strings.ToLower(p.Name))
	if !named && !loaders.Overlaps(disk.Range{Off: p.Off, Len: 1}) {
		return "", nil
	}
	loader, used, err := g.Area(p)
	if !used || err != nil || (!named && loader != boot.Unknown) { // a PC loader, which its finder describes
		return "", err
	}
	text = "its content is unknown, on a disk without boot code for a PC"
	if named {
		text = fmt.Sprintf("its name is %.32q, and its content is unknown", p.Name)
	}
	return text + fmt.Sprintf(": if a boot ROM or loader reads it from LBA %d, a board does not boot from the copy",
		p.Off/g.Disk.SectorSize()), nil
}
