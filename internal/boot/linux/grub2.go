package linux

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/ulikunitz/xz/lzma"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume/identify"
)

// V2 is boot.img of GRUB 2, in the MBR or in the boot sector of a partition. It stores the absolute number of the first
// sector of core.img, which lists the other sectors. core.img finds its files through partition numbers and UUIDs.
//
// Spec: GRUB 2.06, include/grub/i386/pc/boot.h, grub-core/boot/i386/pc/boot.S, diskboot.S and startup_raw.S,
// util/setup.c. The list may be edited: the Reed-Solomon code that setup.c adds, and startup_raw.S uses for repair,
// begins at GRUB_DISK_SECTOR_SIZE + no_rs_length of core.img, after its first sector.
var V2 = &boot.Code{
	ID: "grub2", Name: "GRUB 2", Absolute: true, AnyFlag: true, Picks: boot.None, Find: findGrub2,
	Known: func(code []byte) bool { return isGrub(code) && code[atGrubVersion] != legacyVersion },
}

// isGrub reports whether code contains the messages common to boot.img and stage1.
func isGrub(code []byte) bool {
	return len(code) > atGrubVersion && bytes.Contains(code, []byte("GRUB ")) && bytes.Contains(code, []byte("Geom"))
}

// atGrubVersion is the offset of stage1's major version. boot.img of GRUB 2 has a BPB there.
const (
	atGrubVersion = 0x3e
	legacyVersion = 3
)

// grubSector is the unit of all fields: GRUB for the BIOS supports only 512-byte sectors (GRUB_DISK_SECTOR_SIZE). GRUB
// legacy reads 512 bytes for each sector, regardless of the BIOS.
const grubSector = 512

// Offsets in boot.img.
const (
	grubKernelAddress = 0x5a // u16: load and entry address of core.img
	grubKernelSector  = 0x5c // u64
	grubBootDrive     = 0x64 // u8: BIOS drive to read
)

// Offsets in the first sector of core.img, which is diskboot.img.
const (
	grubFirstEntry = 0x1f4 // the list grows downwards from here; an entry of zero sectors ends it
	grubEntrySize  = 12

	grubLoadSegment   = 0x820 // of the first entry: after the first sector at 0x8000
	grubSectorSegment = grubSector / 16
	grubMaxSectors    = (0xa0000 - grubLoadSegment*16) / grubSector // conventional memory ends at 640 KiB
)

// grubEntry is a run of sectors. Spec: struct grub_pc_bios_boot_blocklist.
type grubEntry struct {
	Start   uint64
	Sectors uint16
	Segment uint16 // real-mode segment to load to
}

// grubReader is the state of reading GRUB 2's stored positions.
type grubReader struct {
	g    *boot.Guest
	c    *boot.Code
	f    *boot.Found
	seen map[grubSeen]bool // lists already read: two boot sectors may share one
}

type grubSeen struct {
	sector uint64 // of the core image
	starts bool   // the boot reaches the list, so a fault in it matters
}

// grubImage is a boot.img.
type grubImage struct {
	boot.Partition
	place string // "the MBR"
	code  []byte
}

func findGrub2(g *boot.Guest, c *boot.Code) (f boot.Found, err error) {
	r := grubReader{g: g, c: c, f: &f, seen: map[grubSeen]bool{}}
	err = eachHome(g, c, &f, func(home boot.Partition, where string, code []byte) error {
		return r.boot(grubImage{home, where, code[:boot.CodeLen]})
	})
	return f, err
}

// eachHome calls do for each boot sector with a loader, up to the limit of boot sectors.
func eachHome(g *boot.Guest, c *boot.Code, f *boot.Found, do func(boot.Partition, string, []byte) error) error {
	followed := 0
	return g.Homes(c, func(home boot.Partition, where string, code []byte) error {
		if home.Number != 0 {
			followed++
		}
		if followed == boot.MaxBootSectors+1 {
			text := fmt.Sprintf("%s is in the boot sectors of more than %d partitions", c.Name, boot.MaxBootSectors)
			f.Unbootable(c.ID, 0, text, boot.InstallAgain)
		}
		if followed > boot.MaxBootSectors {
			return nil
		}
		return do(home, where, code)
	})
}

// boot reads a boot.img and the core image it loads.
func (r *grubReader) boot(img grubImage) error {
	// A known boot.img loads to 0x8000, and fills the address packet of its only read by mov ebx,[7c5ch].
	known := binary.LittleEndian.Uint16(img.code[grubKernelAddress:]) == 0x8000 &&
		bytes.Contains(img.code, []byte{0x66, 0x8b, 0x1e, 0x5c, 0x7c})
	if !known || r.g.Disk.SectorSize() != grubSector {
		r.breaks(img, 0, fmt.Sprintf("GRUB 2 in %s is of an unknown build, and so is the position of its core.img",
			img.place), boot.WhenUnknown)
		r.f.Link(img.Number, "GRUB 2 in %s, of an unknown build", img.place)
		return nil
	}
	if drive := img.code[grubBootDrive]; drive != bootedDrive && drive != firstDrive {
		text := fmt.Sprintf("GRUB 2 in %s loads core.img from BIOS drive %#x, which can be another disk", img.place,
			drive)
		r.f.Link(img.Number, "%s", text)
		r.breaks(img, 0, text, boot.WhenUnknown)
		return nil
	}
	sector := binary.LittleEndian.Uint64(img.code[grubKernelSector:])
	z := zoneOf(r.g, sector, 1)
	text := fmt.Sprintf("GRUB 2 in %s loads core.img from LBA %d, %s", img.place, sector, z.text)
	r.link(img.Number, z, text)
	if !z.known {
		r.breaks(img, 0, text, boot.InstallAgain)
		return nil
	}
	first, err := ondisk.Bytes(r.g.Disk, ondisk.I64(sector)*grubSector, grubSector)
	if err != nil {
		return err
	}
	entries, ok := blockList(first)
	switch nothing := ondisk.IsZero(first) || bytes.HasPrefix(first, gptMagic); {
	case !ok && nothing:
		r.f.Warn(r.c.ID, 0, text+", where it is missing: no BIOS boots with it, before or after a move",
			"if a BIOS is to boot from the disk, reinstall the boot loader")
		return nil
	case !ok:
		r.breaks(img, 0, text+": there is no known core.img", boot.InstallAgain)
		return nil
	}
	r.refer(img, "grub2 core image", img.Partition, img.Off+grubKernelSector, sector, z)
	if key := (grubSeen{sector, r.g.Starts(img.Partition)}); !r.seen[key] {
		r.seen[key] = true
		if r.list(img, sector, z, entries) {
			return r.configure(img, entries)
		}
	}
	return nil
}

// gptMagic begins the header of a GPT at LBA 1. Converting an MBR disk to GPT destroys a GRUB in the gap.
var gptMagic = []byte("EFI PART")

// breaks reports that a move breaks the boot from a boot sector.
func (r *grubReader) breaks(img grubImage, partition int, text, remedy string) {
	r.f.Breaks(r.g, img.Partition, r.c.ID, partition, text, remedy)
}

// link records the partitions that a boot step needs.
func (r *grubReader) link(stored int, z grubZone, text string) {
	r.f.Link(stored, "%s", text)
	if z.Number != 0 && z.Number != stored {
		r.f.Link(z.Number, "core.img of GRUB 2 lies in partition %d", z.Number)
	}
}

// list reads the block list of the core image at a sector. whole reports whether the complete image is readable.
func (r *grubReader) list(img grubImage, sector uint64, in grubZone, entries []grubEntry) (whole bool) {
	said := map[int]bool{in.Number: true}
	whole = true
	for i, e := range entries {
		z := zoneOf(r.g, e.Start, uint64(e.Sectors))
		at := ondisk.I64(sector)*grubSector + grubFirstEntry - int64(i)*grubEntrySize
		switch {
		case !z.known:
			r.breaks(img, 0, fmt.Sprintf("the block list of GRUB 2 at LBA %d names %d sectors from LBA %d, %s", sector,
				e.Sectors, e.Start, z.text),
				boot.InstallAgain)
			whole = false
			continue
		case !said[z.Number] && z.Number != 0:
			r.f.Link(z.Number, "core.img of GRUB 2 continues in partition %d", z.Number)
		}
		said[z.Number] = true
		r.refer(img, fmt.Sprintf("grub2 block list entry %d", i+1), in.Partition, at, e.Start, z)
	}
	return whole
}

// refer adds a sector number stored at a byte of the disk. A number in the gap stays valid and is left out.
func (r *grubReader) refer(img grubImage, kind string, stored boot.Partition, at int64, sector uint64, z grubZone) {
	if z.Number == 0 {
		return
	}
	ref := boot.Ref{
		Kind: kind, Partition: stored.Number, Off: at - stored.Off, At: []disk.Range{{Off: at, Len: 8}},
		Raw: binary.LittleEndian.AppendUint64(nil, sector), Points: ondisk.I64(sector) * grubSector, Target: z.Number,
		Encode: encodeGrubSector,
	}
	if ref.Stays = stays(stored, ref.Off); ref.Stays != "" {
		ref.Encode = nil
		r.breaks(img, z.Number, fmt.Sprintf("%s: LBA %d stays unchanged, %s", ref.Name(), sector, ref.Stays),
			boot.InstallAgain)
	}
	r.f.Refs = append(r.f.Refs, ref)
}

// stays returns why a field in a partition cannot be rewritten, and an empty string if it can.
func stays(stored boot.Partition, off int64) string {
	if stored.Number == 0 {
		return ""
	}
	if stored.Kind == table.Extended {
		return "it is inside a record of the partition table"
	}
	if reserved := identify.Traits(stored.Volume.Kind).Checksummed; reserved > 0 && off >= reserved {
		return fmt.Sprintf("it is covered by a checksum of %s", stored.Volume.Kind)
	}
	return ""
}

// encodeGrubSector encodes a byte offset as a sector number.
func encodeGrubSector(_ []byte, to int64) ([]byte, error) {
	if to <= 0 || to%grubSector != 0 {
		return nil, fmt.Errorf("offset %#x: %w to whole sectors of %d bytes", to, ondisk.ErrLimit, grubSector)
	}
	return binary.LittleEndian.AppendUint64(nil, ondisk.U64(to/grubSector)), nil
}

// Signature of diskboot.img. Builds differ in their messages, and so in the place of the code.
var (
	grubListCode = boot.Like(
		"bff481",     // mov di,81f4h: the first entry, in memory
		"83ef0c",     // sub di,12: on to the next
		"ea00820000", // jmp 0:8200h: into the loaded sectors
	)
	grubTexts = []byte("Geom\x00Read\x00 Error\x00") // the last messages, after the code
)

// blockList decodes the list in the first sector of core.img. It requires the code that reads such a list, and entries
// that fill memory without a hole, as setup.c writes them: a guess is never patched.
func blockList(b []byte) (entries []grubEntry, ok bool) {
	end := bytes.Index(b, grubTexts)
	if end < 0 || !grubListCode(b[:end]) {
		return nil, false
	}
	sectors := 0
	for at := grubFirstEntry; at >= end+len(grubTexts); at -= grubEntrySize {
		var e grubEntry
		ondisk.Fill(b[at:at+grubEntrySize], binary.LittleEndian, &e)
		if e.Sectors == 0 {
			return entries, true
		}
		if int(e.Segment) != grubLoadSegment+sectors*grubSectorSegment {
			return nil, false
		}
		sectors += int(e.Sectors)
		if sectors > grubMaxSectors {
			return nil, false
		}
		entries = append(entries, e)
	}
	return nil, false
}

// grubZone is the location of a run of sectors. Number 0 is the gap before the first partition, which never moves.
type grubZone struct {
	boot.Partition
	known bool // in the gap or inside one partition
	text  string
}

// zoneOf finds the location of n sectors from first on.
func zoneOf(g *boot.Guest, first, n uint64) grubZone {
	sectors := ondisk.U64(g.Disk.Size() / grubSector)
	gap := ondisk.U64(g.FirstByte()) / grubSector
	switch {
	case first >= sectors || n > sectors-first:
		return grubZone{text: fmt.Sprintf("behind the end of the disk at LBA %d", sectors)}
	case first > 0 && first+n <= gap:
		return grubZone{known: true, text: "in the gap"}
	}
	p, ok := g.Holding(ondisk.I64(first)*grubSector, ondisk.I64(n)*grubSector)
	if !ok || p.Kind == table.Extended {
		const neither = "neither in the gap in front of the first partition (LBA 1 to %d) nor inside of one partition"
		return grubZone{text: fmt.Sprintf(neither, gap-1)}
	}
	text := fmt.Sprintf("inside partition %d", p.Number)
	if p.Is(table.BIOSBoot) {
		text = fmt.Sprintf("inside the BIOS boot partition %d", p.Number)
	}
	return grubZone{p, true, text}
}

// Offsets in core.img after diskboot.img, where the decompressor begins. Spec: GRUB 2.06,
// grub-core/boot/i386/pc/startup_raw.S; include/grub/offsets.h, GRUB_DECOMPRESSOR_I386_PC_*.
const (
	atCompressed   = 0x08 // u32: bytes of the compressed kernel with its modules
	atUncompressed = 0x0c // u32
	decompressorAt = 0x8200
	maxCore        = 8 << 20 // bytes of a kernel with its modules; GRUB loads it below 16 MiB
)

// lzmaFrom is the code that passes the compressed kernel to the decoder: mov edi,100000h; mov esi,address.
var lzmaFrom = []byte{0xbf, 0x00, 0x00, 0x10, 0x00, 0xbe}

// errBuild means a core image of an unknown build, whose modules cannot be located.
var errBuild = errors.New("its core image is of an unknown build")

// unpackCore returns the kernel and its modules from a core image without diskboot.img.
func unpackCore(img []byte) ([]byte, error) {
	call := bytes.Index(img, lzmaFrom)
	if call < 0 || call+len(lzmaFrom)+4 > len(img) {
		return nil, errBuild
	}
	compressed := int64(binary.LittleEndian.Uint32(img[atCompressed:]))
	uncompressed := binary.LittleEndian.Uint32(img[atUncompressed:])
	at := int64(binary.LittleEndian.Uint32(img[call+len(lzmaFrom):])) - decompressorAt
	if at <= int64(call) || at > int64(len(img)) || compressed > int64(len(img))-at || uncompressed > maxCore {
		return nil, errBuild
	}
	// The LZMA stream has no header. Spec: GRUB 2.06, startup_raw.S (FIXED_PROPS: lc 3, lp 0, pb 2) and
	// util/mkimage.c, compress_kernel_lzma.
	header := binary.LittleEndian.AppendUint32([]byte{0x5d}, 1<<16) // dictionary size
	header = binary.LittleEndian.AppendUint64(header, uint64(uncompressed))
	packed := io.MultiReader(bytes.NewReader(header), bytes.NewReader(img[at:at+compressed]))
	r, err := lzma.NewReader(packed)
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", errBuild, err)
	}
	out := make([]byte, uncompressed)
	if _, err := io.ReadFull(r, out); err != nil {
		return nil, fmt.Errorf("%w (%w)", errBuild, err)
	}
	return out, nil
}

// The modules of GRUB: a header, followed by a sequence of objects. Spec: GRUB 2.06, include/grub/kernel.h.
const (
	modulesMagic = "mimg"
	infoLen32    = 12 // magic, offset of the first object, total bytes: 32 bits each
	infoLen64    = 24 // the last two have 64 bits, at multiples of 8
	objectHeader = 8  // type, and length including this header
	objMemdisk   = 1
	objConfig    = 2
	objPrefix    = 3
	maxObjects   = 4096
	maxText      = 64 << 10 // bytes of a script or name
	maxMemdisk   = 8 << 20  // bytes of all modules of a program
)

// embedded is the data embedded in a GRUB image by its installer.
type embedded struct {
	script, prefix string
	memdisk        []byte // nil if the image has no memory disk
}

// readModules finds the modules in b: at its start, or anywhere in a kernel.
func readModules(b []byte, wide bool) (out embedded, err error) {
	n := infoLen32
	if wide {
		n = infoLen64
	}
	for at := 0; ; at++ {
		next := bytes.Index(b[at:], []byte(modulesMagic))
		if next < 0 || at+next+n > len(b) {
			return out, errBuild
		}
		at += next
		first, size := infoOf(b[at:], wide)
		if first == uint64(n) && size >= first && size <= uint64(len(b)-at) { //nolint:gosec // at is in b
			return readObjects(b[at+n : at+int(size)]), nil //nolint:gosec // it is at most the length of b
		}
	}
}

func infoOf(b []byte, wide bool) (first, size uint64) {
	if wide {
		return binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
	}
	return uint64(binary.LittleEndian.Uint32(b[4:])), uint64(binary.LittleEndian.Uint32(b[8:]))
}

func readObjects(b []byte) (out embedded) {
	for n := 0; len(b) >= objectHeader && n < maxObjects; n++ {
		kind, size := binary.LittleEndian.Uint32(b), int64(binary.LittleEndian.Uint32(b[4:]))
		if size < objectHeader || size > int64(len(b)) {
			break
		}
		body := b[objectHeader:size]
		text, _, _ := bytes.Cut(body[:min(len(body), maxText)], []byte{0})
		switch kind {
		case objConfig:
			out.script += string(text) + "\n"
		case objPrefix:
			out.prefix = string(text)
		case objMemdisk:
			out.memdisk = body
		}
		b = b[size:]
	}
	return out
}

// inMemdisk returns the configuration in the memory disk, a tar archive made by grub-mkstandalone.
func (b embedded) inMemdisk() (string, error) {
	r := tar.NewReader(bytes.NewReader(b.memdisk))
	for range maxObjects {
		h, err := r.Next()
		if err != nil {
			break
		}
		if h.Name != "boot/grub/grub.cfg" && h.Name != "./boot/grub/grub.cfg" {
			continue
		}
		if h.Size > maxText {
			return "", fmt.Errorf("%s in its memory disk has %d bytes: %w of %d", h.Name, h.Size, ondisk.ErrLimit,
				maxText)
		}
		text, err := io.ReadAll(io.LimitReader(r, maxText))
		return string(text), err
	}
	return "", errors.New("its memory disk has no readable boot/grub/grub.cfg")
}

// configOf describes where GRUB 2 looks for its configuration.
func (b embedded) configOf(loader string, home int) boot.Config {
	c := boot.Config{Loader: loader, Syntax: boot.GRUB2, Home: home, Script: b.script, Prefix: b.prefix}
	if bytes.HasPrefix([]byte(b.prefix), []byte("(memdisk)")) {
		text, err := b.inMemdisk()
		if c.Script += text; err != nil {
			c.Why = err.Error()
		}
	}
	return c
}

// grub2Paths are the usual paths of GRUB 2's configuration, for an image of an unknown build.
var grub2Paths = []string{"boot/grub/grub.cfg", "grub/grub.cfg", "boot/grub2/grub.cfg", "grub2/grub.cfg"}

// configure records where the GRUB 2 of a core image looks for its configuration. entries locate the sectors after
// diskboot.img.
func (r *grubReader) configure(img grubImage, entries []grubEntry) error {
	loader := "GRUB 2 in " + img.place
	if !r.g.Starts(img.Partition) {
		return nil
	}
	var core []byte
	for _, e := range entries {
		b, err := ondisk.Bytes(r.g.Disk, ondisk.I64(e.Start)*grubSector, int64(e.Sectors)*grubSector)
		if err != nil {
			return err
		}
		core = append(core, b...)
	}
	var all embedded
	kernel, err := unpackCore(core)
	if err == nil {
		all, err = readModules(kernel, false)
	}
	if err != nil {
		r.g.Configured(boot.Config{Loader: loader, Syntax: boot.GRUB2, Paths: grub2Paths, Anywhere: true})
		return nil //nolint:nilerr // of such a build the usual places are searched
	}
	r.g.Configured(all.configOf(loader, img.Number))
	return nil
}

// EFI finds the configuration of every GRUB that UEFI firmware starts.
var EFI = boot.Finder{Name: "grub of uefi", Find: boot.Everywhere(findEFI)}

// Limits for the programs examined on an EFI system partition.
const (
	maxPrograms   = 16
	maxEFIFolders = 64
	maxSections   = 64
)

func findEFI(g *boot.Guest, p boot.Partition, _ *boot.Found) error {
	if !boot.IsESP(p) {
		return nil
	}
	files, err := g.Files(p)
	if err != nil {
		return tolerable(err)
	}
	folders, err := files.List("EFI")
	if err != nil {
		return tolerable(err)
	}
	left := maxPrograms
	for _, e := range folders[:min(len(folders), maxEFIFolders)] {
		if !e.Dir || e.Name == "." || e.Name == ".." {
			continue
		}
		path := "EFI/" + e.Name
		programs, err := files.List(path)
		if err != nil {
			return unreadable(g, p, path, err)
		}
		for _, x := range programs {
			name := strings.ToLower(x.Name)
			if x.Dir || !strings.HasSuffix(name, ".efi") || left == 0 {
				continue
			}
			left--
			if err := program(g, p, files, path, x.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// unreadable records a program of an EFI system partition that cannot be read. firmware.UEFI reports a wholly
// unreadable partition.
func unreadable(g *boot.Guest, p boot.Partition, path string, err error) error {
	if !ondisk.Understood(err) {
		return tolerable(err) // a folder without entries
	}
	g.Configured(boot.Config{
		Loader: fmt.Sprintf("the loader %s of partition %d", path, p.Number), Home: p.Number, Why: err.Error(),
	})
	return nil
}

// program records the configuration of GRUB in an EFI program. Other programs have no modules.
func program(g *boot.Guest, p boot.Partition, files guestfile.FS, folder, name string) error {
	f, err := files.Open(folder + "/" + name)
	if err != nil {
		return unreadable(g, p, folder+"/"+name, err)
	}
	mods, wide, err := modulesOf(f)
	if err != nil || mods == nil {
		return ondisk.Legible(err)
	}
	loader := fmt.Sprintf(`GRUB 2 in \%s\%s of partition %d`, strings.ReplaceAll(folder, "/", `\`), name, p.Number)
	all, err := readModules(mods, wide)
	if err != nil {
		g.Configured(boot.Config{Loader: loader, Syntax: boot.GRUB2, Paths: grub2Paths, Anywhere: true})
		return nil //nolint:nilerr // of such a build the usual places are searched
	}
	c := all.configOf(loader, p.Number)
	c.Paths = []string{folder + "/grub.cfg"} // $cmdpath
	g.Configured(c)
	return nil
}

// modulesOf returns the section with GRUB's modules, or nil if the program has none. wide reports a 64-bit processor.
// Spec: Microsoft PE format, "COFF File Header", "Section Table"; GRUB 2.06, util/mkimage.c, "mods".
func modulesOf(f *guestfile.File) (mods []byte, wide bool, err error) {
	head, err := ondisk.Bytes(f, 0, min(f.Size(), 4096))
	if err != nil || len(head) < 0x40 || string(head[:2]) != "MZ" {
		return nil, false, err
	}
	at := int64(binary.LittleEndian.Uint32(head[0x3c:]))
	if at+24 > int64(len(head)) || string(head[at:at+4]) != "PE\x00\x00" {
		return nil, false, nil
	}
	count := min(int64(binary.LittleEndian.Uint16(head[at+6:])), maxSections)
	table := at + 24 + int64(binary.LittleEndian.Uint16(head[at+20:]))
	for i := range count {
		s := table + i*40
		if s+40 > int64(len(head)) {
			break
		}
		if string(head[s:s+8]) != "mods\x00\x00\x00\x00" {
			continue
		}
		size, place := int64(binary.LittleEndian.Uint32(head[s+16:])), int64(binary.LittleEndian.Uint32(head[s+20:]))
		if place > f.Size() || size > f.Size()-place || size > maxMemdisk {
			return nil, false, nil
		}
		machine := binary.LittleEndian.Uint16(head[at+4:])
		wide := machine == 0x8664 || machine == 0xaa64 || machine == 0x5064 || machine == 0x6264
		mods, err := ondisk.Bytes(f, place, size)
		return mods, wide, err
	}
	return nil, false, nil
}
