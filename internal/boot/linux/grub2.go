package linux

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
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

// grubSector is the unit of all fields: GRUB for the BIOS supports only 512-byte sectors (GRUB_DISK_SECTOR_SIZE).
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
	z := r.zone(sector, 1)
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
		z := r.zone(e.Start, uint64(e.Sectors))
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

// zone finds the location of n sectors from first on.
func (r *grubReader) zone(first, n uint64) grubZone {
	sectors := ondisk.U64(r.g.Disk.Size() / grubSector)
	gap := ondisk.U64(r.g.FirstByte()) / grubSector
	switch {
	case first >= sectors || n > sectors-first:
		return grubZone{text: fmt.Sprintf("behind the end of the disk at LBA %d", sectors)}
	case first > 0 && first+n <= gap:
		return grubZone{known: true, text: "in the gap"}
	}
	p, ok := r.g.Holding(ondisk.I64(first)*grubSector, ondisk.I64(n)*grubSector)
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
