package firmware

import (
	"bytes"
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

// GenericCHS and GenericLBA have the shape that all standard MBR programs share: they refer to the table, at its own
// place or at that of their copy, and read one sector through INT 13h. Code of another shape is unknown.
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

// standard makes standard code known by one of two reads.
func standard(a, b string) func(code []byte) bool {
	reads := boot.Either(boot.Like(a), boot.Like(b))
	return func(code []byte) bool { return isStandard(code) && reads(code) }
}

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
			return p.TypeGUID != "" && p.Is(table.BeOS) || p.TypeGUID == "" && p.Active && p.Kind == table.Primary
		},
		Known: boot.Like("31f6 bbbe07 b90400 382f 74.. 7f.. 85f6 75.. 89de 80c310 e2",
			"83c608 bff80d 66a5 87.. 83ee04 e8.... eb.. 8a7401 8b4c02 b002 b402 cd13", "5e 8814 81bffe0155aa",
			"'1SFB' a33b f110 802a 'Haiku!'"),
	}
)

// freeBSDStart is the start of every version, by which boot0cfg(8) knows them.
const freeBSDStart = "fc 31c0 8ec0 8ed8 8ed0 bc007c"

// Code of the BSDs. boot0 and mbr of FreeBSD use LBA only if a flag behind the code is set, which is up to the
// administrator. Hence they count as readers of CHS.
var (
	// Moves itself from 7c1ah to 061ah … compares a type with that of freebsd-boot … loads the partition to 7c00h, up
	// to its last LBA in the GPT … reads by mov ax,4200h. Spec: FreeBSD 8 and 14, stand/i386/pmbr/pmbr.S.
	FreeBSDGPT = &boot.Code{
		ID: "freebsd-pmbr", Name: "FreeBSD pmbr", GPT: true, Choice: "the partition of type freebsd-boot",
		Picks: func(p boot.Partition) bool { return p.Is(table.FreeBSDBoot) },
		Known: boot.Like("fc 31c0 8ec0 8ed8 8ed0 bc.... be1a7c bf1a06 b9e601 f3a4 e9008a",
			"f3a6 75.. 89df 8d7520 bbc007 8ec3 31db 56 e8.... 5e 668b4528 663b04 75.. 668b452c 663b4404 75",
			"06 53 6a01 6a10 89e6 b80042 cd13 83c410 72",
			"9d6bbd83 417f dc11 be0b 0015 60b84f0f"),
	}
	// FreeBSDBoot is gptboot or gptzfsboot, which begin alike: copies BTX, and what follows it, by the length in the
	// header of BTX. Both find the partition of the system in the GPT. Spec: FreeBSD 8 and 13,
	// stand/i386/gptboot/gptldr.S.
	FreeBSDBoot = &boot.Code{
		ID: "freebsd-gptboot", Name: "gptboot or gptzfsboot", OfVolume: true, Find: findFreeBSDBoot,
		Known: boot.Like("31c9 8ec1 8ed9 8ed1 bc007c bb..7c 8b770a 01de", "88160009 e9..13 eb0e 'BTX'"),
	}
	// "Drive " belongs to the menu.
	FreeBSDMenu = &boot.Code{
		ID: "freebsd-boot0", Name: "FreeBSD boot0", ReadsCHS: true, HandsOver: true, Many: true, Address: byFlag,
		Choice: "a partition that the user chooses",
		Picks:  func(p boot.Partition) bool { return p.InMBR() },
		Known:  boot.Like(freeBSDStart, "'Drive '"),
	}
	// mov si,7c1ah; mov di,061ah behind it … cmp word [bx+1feh],0aa55h.
	FreeBSD = &boot.Code{
		ID: "freebsd-mbr", Name: "FreeBSD", ReadsCHS: true, Address: byFlag,
		Known: boot.Like(freeBSDStart + "be1a7c bf1a06"),
	}
	// xor ax,ax; mov ss,ax; mov sp,7c00h; mov es,ax; mov ds,ax; mov si,sp; mov di,0600h … mov esi,ebp; pop dx: hands
	// the LBA over. It reads by CHS only where the bytes mean the LBA in the BIOS's geometry.
	NetBSD = &boot.Code{
		ID: "netbsd", Name: "NetBSD",
		Known: boot.Like("31c0 8ed0 bc007c 8ec0 8ed8 89e6 bf0006", "6689ee 5a"),
	}
	// jmp 07c0h:…; mov ax,cs; mov ss,ax; mov sp,0fffch; mov ds,ax … mov ax,07a0h; mov es,ax; xor si,si; xor di,di.
	OpenBSD = &boot.Code{
		ID: "openbsd", Name: "OpenBSD", HandsOver: true,
		Known: boot.Like("c007 8cc8 8ed0 bcfcff 8ed8", "b8a007 8ec0 31f6 31ff"),
	}
)

func findFreeBSDBoot(g *boot.Guest, c *boot.Code) (f boot.Found, err error) {
	err = g.Homes(c, func(home boot.Partition, where string, _ []byte) error {
		f.Link(home.Number, "%s in %s finds the partition of FreeBSD by its type", c.Name, where)
		return nil
	})
	return f, err
}

// byFlag is the address of code that goes by LBA only when a flag behind it says so.
const byFlag = "cylinder, head and sector (by LBA when a flag says so)"

// Encryption finds the loaders of encrypted systems. The key holds for sectors that count from the start of the disk,
// and a header has the absolute start of what is encrypted: no password opens a copy in which that has moved. Spec:
// TrueCrypt, "Volume Format Specification" and Boot/Windows/BootEncryptedIo.cpp (units of XTS).
var Encryption = boot.Finder{Name: "encryption", Find: findEncryption}

// Loaders of system encryption, by their names in the code. Spec: TrueCrypt 7.1a and VeraCrypt,
// Boot/Windows/BootSector.asm; The Sleuth Kit, tsk/util/detect_encryption.c.
var (
	TrueCrypt = &boot.Code{
		ID: "truecrypt", Name: "TrueCrypt", Encrypts: true,
		Known: boot.Like("'TrueCrypt Boot Loader'"),
	}
	VeraCrypt = &boot.Code{
		ID: "veracrypt", Name: "VeraCrypt", Encrypts: true,
		Known: boot.Like("'VeraCrypt Boot Loader'"),
	}
	PGP = &boot.Code{
		ID: "pgp", Name: "PGP or Symantec Drive Encryption", Encrypts: true, Known: boot.Like("eb4890 'PGPGUARD'"),
	}
	SafeBoot = &boot.Code{
		ID: "safeboot", Name: "SafeBoot or McAfee Endpoint Encryption", Encrypts: true,
		Known: boot.Either(boot.Like("'SafeBoot'"), boot.Like("'Safeboot'")),
	}
)

// diskCryptor are both signatures of the configuration in DiskCryptor's loader. Spec: DiskCryptor,
// boot/include/bootloader.h.
var diskCryptor = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, 0x1434a669), 0x7269da46)

// loaderArea is the part of either end of the disk that is searched for the loader of DiskCryptor: it lies in the first
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
		Text: fmt.Sprintf("the loader of %s is in sector 0: the system is encrypted by units that "+
			"count from the start of the disk, and no password would open a copy in which they moved", name),
		Remedy: "decrypt the system in the guest for good, and copy again; or copy the disk as it is with " +
			"trueup convert",
	})
	return f, nil
}

// encryptedBesides names an encryption that does not show in sector 0, whose code is unknown.
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
		ref.Target, ref.Stays, ref.Encode = p.Number, "", boot.EncodeBytes
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
