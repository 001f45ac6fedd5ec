package firmware

import (
	"bytes"
	_ "embed" // places
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
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

// GenericCHS and GenericLBA have the shape of all standard MBR programs: they refer to the table, at its own place or
// in their copy, and read one sector through INT 13h. Code of another shape is unknown.
var (
	// mov ax,0201h or mov ah,02h: a read by cylinder, head and sector.
	GenericCHS = &boot.Code{
		ID: "generic-chs", Name: "standard code of an unnamed maker", Generic: true, ReadsCHS: true,
		Known: standard("b80102", "b402"),
	}
	// mov ah,42h, mov ax,42xxh: a read by LBA.
	GenericLBA = &boot.Code{
		ID: "generic-lba", Name: "standard code of an unnamed maker", Generic: true,
		Known: standard("b442", "0042"),
	}
)

// standard returns a test for standard code with one of two reads.
func standard(a, b string) func(code []byte) bool {
	reads := boot.Either(boot.Like(a), boot.Like(b))
	return func(code []byte) bool {
		named := func(word string) bool { return bytes.Contains(code, []byte(word)) }
		return refersToTable(code) && named("\xcd\x13") && !slices.ContainsFunc(ofLoaders, named) && reads(code)
	}
}

// ofLoaders are words in loaders that read more than the table: an unknown build of these is no standard code. grub4dos
// has a helper after it.
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

// FreeBSDBoot is gptboot or gptzfsboot, which begin alike: they copy BTX and the following program by the length in the
// header of BTX. Both find the partition of the system in the GPT. Spec: FreeBSD 8 and 13, stand/i386/gptboot/gptldr.S.
var FreeBSDBoot = &boot.Code{
	ID: "freebsd-gptboot", Name: "gptboot or gptzfsboot", OfVolume: true, Find: findFreeBSDBoot,
	Known: boot.Like("31c9 8ec1 8ed9 8ed1 bc007c bb..7c 8b770a 01de", "88160009 e9..13 eb0e 'BTX'"),
}

func findFreeBSDBoot(g *boot.Guest, c *boot.Code) (f boot.Found, err error) {
	err = g.Homes(c, func(home boot.Partition, where string, _ []byte) error {
		f.Link(home.Number, "%s in %s finds the partition of FreeBSD by its type", c.Name, where)
		return nil
	})
	return f, err
}

// Encryption finds the loaders of encrypted systems. The cipher includes sector numbers from the start of the disk, and
// a header stores the absolute start of the encrypted area: no password opens a copy in which that area has moved.
// Spec: TrueCrypt, "Volume Format Specification" and Boot/Windows/BootEncryptedIo.cpp (units of XTS).
var Encryption = boot.Finder{Name: "encryption", Find: findEncryption}

// diskCryptor is both signatures of the configuration in DiskCryptor's loader. Spec: DiskCryptor,
// boot/include/bootloader.h.
var diskCryptor = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, 0x1434a669), 0x7269da46)

// loaderArea is the size of the search area for DiskCryptor's loader at either end of the disk: it lies in the first
// track, or in the last sectors.
const loaderArea = 64 * units.KiB

func findEncryption(g *boot.Guest) (f boot.Found, err error) {
	name := g.Code.Name
	if !g.Code.Encrypts {
		if name, err = encryptedBesides(g); name == "" {
			return f, err
		}
	}
	f.Link(0, "%s asks for a password and decrypts the disk", name)
	f.Issues = append(f.Issues, ondisk.Issue{
		Code: "encrypted-system", Effect: ondisk.Refuse, OnMove: true,
		Text: fmt.Sprintf("the loader of %s is in sector 0: the system is encrypted in units counted from the "+
			"start of the disk, and no password would open a moved copy", name),
		Remedy: "decrypt the system in the guest for good, and copy again; or copy the disk as it is with " +
			"trueup convert",
	})
	return f, nil
}

// encryptedBesides names the encryption whose signature is near either end of the disk, if the code in sector 0 is
// unknown or generic.
func encryptedBesides(g *boot.Guest) (string, error) {
	if g.Code != boot.Unknown && !g.Code.Generic {
		return "", nil
	}
	n := min(loaderArea, g.Disk.Size())
	for _, off := range []int64{0, g.Disk.Size() - n} {
		b, err := ondisk.Bytes(g.Disk, off, n)
		if err != nil {
			return "", ondisk.Legible(err)
		}
		if bytes.Contains(b, diskCryptor) {
			return "DiskCryptor", nil
		}
	}
	return "", nil
}

// Limine stores the places of both halves of its stage 2 in sector 0, in bytes of the disk. They lie in the gap, in a
// partition, or on a GPT in space freed from the entry arrays, the second half at the end of the disk. Stage 2 finds
// limine-bios.sys by its name. mov di,7da8h; mov eax,[di]; mov ebp,[di+4] … mov cx,[di-4]; call. Spec: Limine 4 and 8,
// stage1/hdd/bootsect.asm and disk.asm, and limine.c, bios_install.
var Limine = &boot.Code{
	ID: "limine", Name: "Limine", AnyFlag: true, Picks: boot.None, Find: findLimine,
	Known: boot.Like("680070 07 bfa87d 668b05 668b6d04 31db 6631c9 8b4dfc e8",
		"668b4508 668b6d0c 01cb 8b4dfe e8",
		"60 be0080 c7041000 c744020100 895c04 8c4406 52 56 6650 6655 b448 be1080 c7041e00 cd13 72.. 8b6c18",
		"66f7f5 66894408 66c7440c00000000 5a b442 f8 cd13 72.. 016c04"),
}

// Offsets of the fields in sector 0. For each half they hold the length, 16 bits, and the place, 64 bits.
const (
	atLimineSizes  = 0x1a4
	atLiminePlaces = 0x1a8
)

var limineFiles = []string{
	"limine-bios.sys", "boot/limine-bios.sys", "limine/limine-bios.sys", "boot/limine/limine-bios.sys",
	"limine.sys", "boot/limine.sys", "limine/limine.sys", "boot/limine/limine.sys",
}

// limineConfigs are the paths of the configuration. Spec: Limine 8, CONFIG.md, "Location of the config file".
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

// limineHalf adds the reference to one half of stage 2, and the boot step that loads the half.
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
		text += ", which is not a valid place for it"
		f.Unbootable("limine", 0, text, boot.InstallAgain)
	case inside && p.Kind != table.Extended:
		text += fmt.Sprintf(", inside partition %d", p.Number)
		ref.Target, ref.Stays, ref.Encode = p.Number, "", boot.EncodeBytes
		f.Link(p.Number, "stage 2 of Limine lies in partition %d", p.Number)
	case slices.ContainsFunc(g.Partitions, func(p boot.Partition) bool { return p.Overlaps(r) }):
		text += ", only partly inside a partition"
		f.Unbootable("limine", 0, text, boot.InstallAgain)
	default:
		f.Fixed = append(f.Fixed, boot.Fixed{Range: r, Issue: ondisk.Issue{
			Code: "limine", Effect: ondisk.Unbootable, Text: text + ", but the copy would have other data there",
			Remedy: boot.InstallAgain,
		}})
		text += ", outside of all partitions"
	}
	f.Refs = append(f.Refs, ref) // regardless of its target: a copy has the same fields
	f.Link(0, "%s", text)
}

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
	return slices.ContainsFunc(p.Magics, func(m string) bool {
		return hex.EncodeToString(b[p.Offset:][:len(m)/2]) == m
	}), nil
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
