// Package firmware finds how a BIOS or UEFI starts a disk: the code of sector 0 and of boot sectors outside the other
// families, and its stored positions of a partition.
package firmware

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// Chain finds the BIOS boot path from sector 0 to the boot sector of a partition. The finder of a loader describes the
// later steps. Without code in sector 0 there is no chain.
var Chain = boot.Finder{Name: "boot chain", Find: firstLinks}

func firstLinks(g *boot.Guest) (f boot.Found, err error) {
	switch c := g.Code; {
	case c == boot.Unknown:
		f.Link(0, "the code in sector 0 is unknown, and so is its next step")
	case c == boot.Empty || c.Encrypts || c.Find != nil: // see finder encryption, and the loader's own
		return f, nil
	case !sector0Reads(&f, g):
		return f, nil
	}
	for _, p := range chosen(g) {
		if err := bootSector(&f, g, p); err != nil {
			return f, fmt.Errorf("partition %d: %w", p.Number, err)
		}
	}
	return f, nil
}

// sector0Reads adds the step of standard code in sector 0, and reports whether it finds a partition to boot.
func sector0Reads(f *boot.Found, g *boot.Guest) bool {
	c, who := g.Code, "code of "+g.Code.Name
	if c.Generic {
		who = c.Name
	}
	if g.Scheme == table.GPT && c.Generic && !g.Hybrid() {
		const text = "the code in sector 0 has the shape of standard code for an MBR, but it is unknown whether it " +
			"reads the GPT"
		f.Link(0, text)
		f.Warn("boot-code", 0, text, "if a BIOS boots the disk with it, reinstall the boot loader on the copy")
		return false
	}
	if g.BesideGPT && c.GPT {
		f.Link(0, "%s in sector 0 reads the GPT at LBA 1, which the MBR does not announce: the next step is unknown",
			who)
		return false
	}
	if (g.Scheme == table.GPT) != c.GPT && !c.BothTables && (c.GPT || !g.Hybrid()) {
		other := map[bool]string{true: "an MBR", false: "a GPT"}[c.GPT]
		f.Link(0, "%s in sector 0 does not read %s: no BIOS boots with it", who, other)
		return false
	}
	choice := cmp.Or(c.Choice, "the active partition")
	if n, ok := c.Number(g.Sector0); ok {
		choice = fmt.Sprintf("partition %d", n)
	}
	if g.Hybrid() && !c.GPT && !c.BothTables {
		choice += " of the hybrid MBR"
	}
	over := ""
	if c.HandsOver {
		over = ", and passes its table entry on"
	}
	f.Link(0, "%s in sector 0 reads the boot sector of %s by %s%s", who, choice, address(c), over)
	return chosenAre(f, chosen(g), c)
}

// maxChosen limits the bootable partitions reported. An MBR has room for four.
const maxChosen = 16

// chosen returns the partitions from which the code in sector 0 can boot, at most maxChosen.
func chosen(g *boot.Guest) []boot.Partition {
	ps := slices.DeleteFunc(slices.Clone(g.Partitions), func(p boot.Partition) bool { return !g.Chooses(p) })
	return ps[:min(len(ps), maxChosen)]
}

// chosenAre adds a link to the boot path if no partition is bootable, or if several are and the code expects one. It
// reports whether any is.
func chosenAre(f *boot.Found, ps []boot.Partition, c *boot.Code) bool {
	switch {
	case len(ps) == 0:
		f.Link(0, "there is no such partition, so a BIOS does not boot from this disk")
	case len(ps) > 1 && !c.Many:
		var numbers []string
		for _, p := range ps {
			numbers = append(numbers, strconv.Itoa(p.Number))
		}
		f.Link(0, "partitions %s are all marked so, which most code treats as an error", strings.Join(numbers, ", "))
	}
	return len(ps) > 0
}

// systemFile is a file loaded by a boot sector.
type systemFile struct {
	mark, text string
	dos        bool // by the heads and sectors that the boot sector stores
}

// systemFiles lists the files that boot sectors of file systems load, by their name in the code: in a message, or as a
// folder entry of FAT. The names of Windows were seen in the test corpus, and mkfs.fat and mkntfs write the message.
// The other names come from the documentation of their systems.
var systemFiles = []systemFile{
	{"BOOTMGR", "loads BOOTMGR of Windows Vista or later", false},
	{"NTLDR", "loads NTLDR of Windows NT to 2003", false},
	{"IO      SYS", "loads IO.SYS of MS-DOS or Windows 9x", true},
	{"IBMBIO  COM", "loads IBMBIO.COM of PC DOS", true},
	{"KERNEL  SYS", "loads KERNEL.SYS of FreeDOS", true},
	{"SYS01475", "loads OS/2", true},
	{"FREELDR SYS", "loads FREELDR.SYS of ReactOS", false},
	{"not a bootable disk", "shows a message of the formatter: there is no loader", false},
}

// DOS finds the boot sectors of DOS and OS/2, which any loader's menu can start, and the boot sectors that the code in
// sector 0 chooses.
var DOS = boot.Finder{Name: "boot sectors of DOS", Find: boot.Everywhere(findDOS)}

func findDOS(g *boot.Guest, p boot.Partition, f *boot.Found) error {
	if p.Volume.Boot == nil || p.Len < 512 || p.End() > g.Disk.Size() {
		return nil
	}
	b, err := ondisk.Bytes(g.Disk, p.Off, 512)
	if err != nil {
		return err
	}
	ofDOS := signed(g, b) && slices.ContainsFunc(systemFiles, func(s systemFile) bool {
		return s.dos && bytes.Contains(b[endOfBPB:], []byte(s.mark))
	})
	if ofDOS || g.Chooses(p) {
		f.DOS = append(f.DOS, p.Number)
	}
	return nil
}

// bootSector adds the boot step of a partition's boot sector.
func bootSector(f *boot.Found, g *boot.Guest, p boot.Partition) error {
	if p.Len < 512 || p.End() > g.Disk.Size() {
		f.Link(p.Number, "partition %d has no boot sector inside of the disk", p.Number)
		return nil
	}
	b, err := ondisk.Bytes(g.Disk, p.Off, 512)
	if err != nil {
		return err
	}
	if described, err := g.Described(p, b); described || err != nil {
		return err
	}
	f.Link(p.Number, "the boot sector of partition %d (%s) %s", p.Number, content(p), sectorText(g, b, p))
	return nil
}

func content(p boot.Partition) string {
	if p.Kind == table.Extended {
		return "extended"
	}
	return string(p.Volume.Kind)
}

// endOfBPB is the end of the fields of every file system except exFAT; only code follows. Spec: fatgen103, "Extended
// BPB" of FAT32.
const endOfBPB = 90

func sectorText(g *boot.Guest, b []byte, p boot.Partition) string {
	if ondisk.IsZero(b[endOfBPB:510]) || !signed(g, b) ||
		p.Volume.Kind == volume.ExFAT && noExFATCode(b) {
		return "holds no code: the boot ends there"
	}
	for _, s := range systemFiles {
		if bytes.Contains(b, []byte(s.mark)) {
			return s.text
		}
	}
	if p.Volume.Kind == volume.Disklabel {
		return "holds the first stage of a BSD"
	}
	return "holds unknown code"
}

// address returns the form in which code names a sector to the BIOS.
func address(c *boot.Code) string {
	switch {
	case c.Address != "":
		return c.Address
	case c.ReadsCHS:
		return "cylinder, head and sector"
	}
	return "LBA"
}

// Sector0 reports the parts of sector 0's code that a move breaks.
var Sector0 = boot.Finder{Name: "boot code", Find: checkMBR}

func checkMBR(g *boot.Guest) (r boot.Found, err error) {
	name, err := encryptedBesides(g)
	if g.Code == boot.Unknown && name == "" && err == nil {
		r.Unbootable("boot-code", 0,
			"the boot code in sector 0 is unknown, and may not find its partition after a move", boot.WhenUnknown)
	}
	if g.BesideGPT && (g.Code.GPT || g.Code.BothTables) {
		r.Unbootable("boot-code", 0, "the boot code in sector 0 ("+g.Code.Name+") reads the GPT at LBA 1, but "+
			"systems use the MBR, which has no protective entry: the GPT keeps the old positions",
			"write a protective or hybrid MBR in the guest first (gdisk), and copy again")
	}
	return r, err
}

// BootSectors reports the parts of partition boot sectors that a move breaks.
var BootSectors = boot.Finder{Name: "boot sectors", Find: boot.Everywhere(checkVolume)}

func checkVolume(g *boot.Guest, p boot.Partition, r *boot.Found) error {
	if _, ok, err := g.Area(p); !ok {
		return err
	}
	b, err := ondisk.Bytes(g.Disk, p.Off, boot.AreaLen)
	if err != nil {
		return err
	}
	switch {
	case p.Kind == table.Extended:
		// Its first record has room for code: LILO and GRUB can be installed there.
		if p.Active && boot.Identify(g.Codes, b[:boot.CodeLen]) == boot.Unknown {
			text := fmt.Sprintf("the boot sector of the active partition %d holds unknown code", p.Number)
			r.Unbootable("boot-code", 0, text, boot.WhenUnknown)
		}
	case g.Loader(b[:boot.CodeLen]) != boot.Unknown:
		// Its Find reports it.
	case p.Volume.Boot != nil:
		// Its code finds the volume by the BIOS parameter block; other finders read the other positions of Windows.
	case p.Volume.Kind == volume.Disklabel:
		// boot1 of a BSD belongs to the label. Package layout refuses labels that store places, by type and label.
	case p.Volume.Kind == volume.ExFAT && noExFATCode(b):
	case signed(g, b) && (p.Active || !g.Code.Many && g.Chooses(p)): // the boot can run it
		unknownSector(r, g, p)
	}
	return nil
}

// signed reports whether a first sector counts as boot code. FreeBSD's pmbr requires no signature.
func signed(g *boot.Guest, b []byte) bool {
	return b[510] == 0x55 && b[511] == 0xaa || g.Code == boot.Named("freebsd-pmbr")
}

// noExFATCode reports whether the boot sector of an exFAT has no code: the specification requires halts then, and
// formatters write zeros. Spec: 3.1.15.
func noExFATCode(b []byte) bool { return len(bytes.Trim(b[120:510], "\x00\xf4")) == 0 }

// unknownSector reports an unknown boot sector. If code in sector 0 reads it, it may find its volume by a stored place,
// like the boot sector of OS/2. Without such code nothing boots it, unless it is a loader before a file system that has
// no code of its own.
func unknownSector(r *boot.Found, g *boot.Guest, p boot.Partition) {
	if p.Volume.Kind == volume.Unknown && g.Code == boot.Empty {
		r.Warn("boot-code", p.Number, "the active partition has a boot sector of an unknown kind: it moves unchanged",
			"")
		return
	}
	r.Unbootable("boot-code", p.Number, "the boot sector of the active partition holds unknown code",
		boot.WhenUnknown)
}

// HiddenSectors finds the u32 at 0x1c of a BIOS parameter block: the count of sectors before the volume, which boot
// code adds to every sector number. NTFS and FAT32 keep a copy of the boot sector.
var HiddenSectors = boot.Finder{Name: "hidden-sectors", Find: boot.Everywhere(findHidden)}

func findHidden(g *boot.Guest, p boot.Partition, f *boot.Found) error {
	kind, sector := p.Volume.Kind, g.Disk.SectorSize()
	var backup int64
	switch bpb := p.Volume.Boot; {
	case bpb != nil:
		kind, sector, backup = bpb.Kind, bpb.SectorSize, bpb.Backup
	case kind == volume.BitLocker:
		// The header before the encrypted volume is a boot sector. The volume's own boot sector cannot be written
		// without the key.
		b, err := ondisk.Bytes(g.Disk, p.Off, 512)
		if err != nil {
			return err
		}
		if n := int64(binary.LittleEndian.Uint16(b[0x0b:])); n == 512 || n == 4096 {
			sector = n
		}
		if backup, err = toGoBackup(g, p, b, sector); err != nil {
			return err
		}
	default:
		return nil
	}
	names, starts := []string{string(kind) + " hidden sectors"}, []int64{0}
	if backup > 0 {
		names, starts = append(names, string(kind)+" hidden sectors, backup boot sector"), append(starts, backup)
	}
	for i, name := range names {
		if err := f.HiddenSectors(g, p, name, starts[i]+volume.AtHidden, sector, i == 0); err != nil {
			return err
		}
	}
	return nil
}

// toGoBackup returns the place of the backup boot sector of BitLocker To Go in its partition, or 0 for any other
// volume. The FAT at the start of the volume names it, so that a Windows without BitLocker shows a program to read the
// volume. Spec: Microsoft FAT specification 1.03, BPB_BkBootSec.
func toGoBackup(g *boot.Guest, p boot.Partition, b []byte, sector int64) (int64, error) {
	const name, atBackup = "MSWIN4.1", 0x32
	at := int64(binary.LittleEndian.Uint16(b[atBackup:])) * sector
	if string(b[3:3+len(name)]) != name || at == 0 || at+512 > p.Len {
		return 0, nil
	}
	other, err := ondisk.Bytes(g.Disk, p.Off+at, 512)
	if err != nil || !bytes.Equal(b[:volume.AtHidden+4], other[:volume.AtHidden+4]) {
		return 0, err
	}
	return at, nil
}

// ExFATOffset finds the stored place of the partition in both boot regions of an exFAT. A reference spans its whole
// region, since the checksum in the last sector changes with the field.
var ExFATOffset = boot.Finder{Name: "exfat-partition-offset", Find: boot.Everywhere(findExFAT)}

func findExFAT(g *boot.Guest, p boot.Partition, f *boot.Found) error {
	if p.Volume.Kind != volume.ExFAT || p.Volume.Size == 0 { // broken
		return nil
	}
	shift, err := ondisk.Bytes(g.Disk, p.Off+volume.AtExFATSectorShift, 1)
	if err != nil {
		return err
	}
	sector := int64(1) << shift[0]
	length := volume.ExFATRegion * sector
	for i, kind := range []string{"exfat partition offset", "exfat partition offset, backup boot region"} {
		r := boot.Ref{Kind: kind, Partition: p.Number, Off: int64(i) * length, Encode: encodeExFAT(sector)}
		r.At = []disk.Range{{Off: p.Off + r.Off, Len: length}}
		if r.Raw, err = g.Read(r.At); err != nil {
			return err
		}
		stored := binary.LittleEndian.Uint64(r.Raw[volume.AtExFATOffset:])
		// 0 means an unknown place, and a region with a wrong checksum is invalid.
		if stored == 0 || !bytes.Equal(r.Raw[length-sector:], volume.ExFATChecksum(r.Raw)) {
			continue
		}
		r.Points = ondisk.I64(min(stored, ondisk.U64(math.MaxInt64/sector))) * sector
		f.OwnStart(r, p, i == 0)
	}
	return nil
}

// encodeExFAT encodes a byte offset as a count of sectors, and updates the checksum.
func encodeExFAT(sector int64) func([]byte, int64) ([]byte, error) {
	return func(raw []byte, to int64) ([]byte, error) {
		if to%sector != 0 {
			return nil, fmt.Errorf("offset %#x: %w: it is no multiple of the sectors of %d bytes", to, ondisk.ErrLimit,
				sector)
		}
		b := bytes.Clone(raw)
		binary.LittleEndian.PutUint64(b[volume.AtExFATOffset:], ondisk.U64(to/sector))
		copy(b[int64(len(b))-sector:], volume.ExFATChecksum(b))
		return b, nil
	}
}

// removable lists the loaders that firmware starts if none of its boot entries works, one for each machine type. Spec:
// UEFI 2.10, 3.5.1.1.
var removable = []string{"BOOTX64.EFI", "BOOTIA32.EFI", "BOOTAA64.EFI", "BOOTARM.EFI", "BOOTRISCV64.EFI"}

// Limits for an EFI system partition.
const (
	maxFolders = 64 // of \EFI
	maxLoaders = 8  // named in a report
)

// UEFI finds how UEFI firmware boots, and reports the positions in the firmware's memory.
var UEFI = boot.Finder{Name: "uefi", Find: boot.Everywhere(systemPartition)}

func systemPartition(g *boot.Guest, p boot.Partition, f *boot.Found) error {
	if !boot.IsESP(p) {
		return nil
	}
	l, err := startable(g, p)
	if err != nil && !ondisk.Understood(err) && !errors.Is(err, ondisk.ErrNoMatch) {
		return err
	}
	const starts = "UEFI firmware starts a loader from partition %d, the EFI system partition"
	switch {
	case errors.Is(err, ondisk.ErrNoMatch):
		f.Link(p.Number, starts+", whose files trueup cannot read", p.Number)
	case err != nil:
		f.Link(p.Number, starts+", whose files trueup cannot read: %v", p.Number, err)
	default:
		startedBy(f, l, p.Number)
	}
	entries(f, l, err == nil, p.Number)
	if err == nil {
		return nil
	}
	_, used, aerr := g.Area(p) // zeros mean an unformatted partition
	if used {
		g.Configured(boot.Config{
			Loader: fmt.Sprintf("the loader that UEFI firmware starts from partition %d", p.Number), Home: p.Number,
			Why: boot.WhyUnseen(p, err),
		})
	}
	return aerr
}

// efiLoaders are the programs on an EFI system partition that firmware can start.
type efiLoaders struct {
	fallback []string // at the removable path, which needs no boot entry
	named    []string // of systems, started only by a boot entry
	more     int      // loaders of systems missing from named
}

// startable finds the programs in their standard folders: \EFI\BOOT, one folder for each vendor, and
// \EFI\Microsoft\Boot.
func startable(g *boot.Guest, p boot.Partition) (l efiLoaders, err error) {
	files, err := g.Files(p)
	if err != nil {
		return l, err
	}
	folders, err := listed(files, "EFI")
	if err != nil {
		return l, err
	}
	for _, e := range folders[:min(len(folders), maxFolders)] {
		path := "EFI/" + e.Name
		if strings.EqualFold(e.Name, "Microsoft") {
			path += "/Boot"
		}
		if !e.Dir {
			continue
		}
		programs, err := listed(files, path)
		if err != nil {
			return l, err
		}
		l.add(path, programs)
	}
	return l, nil
}

// listed returns the entries of a folder, or none if it is absent.
func listed(files guestfile.FS, path string) ([]guestfile.Entry, error) {
	e, err := files.List(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return e, err
}

func (l *efiLoaders) add(folder string, programs []guestfile.Entry) {
	for _, e := range programs {
		name := `\` + strings.ReplaceAll(folder+"/"+e.Name, "/", `\`)
		named := func(n string) bool { return strings.EqualFold(n, e.Name) }
		switch {
		case e.Dir || !strings.EqualFold(name[max(0, len(name)-4):], ".efi"):
		case strings.EqualFold(folder, "EFI/BOOT"):
			if slices.ContainsFunc(removable, named) {
				l.fallback = append(l.fallback, name)
			}
		case len(l.named) == maxLoaders:
			l.more++
		default:
			l.named = append(l.named, name)
		}
	}
}

func startedBy(f *boot.Found, l efiLoaders, partition int) {
	names := strings.Join(l.named, ", ")
	if l.more > 0 {
		names += fmt.Sprintf(" and %d more", l.more)
	}
	if len(l.named) > 0 {
		f.Link(partition, "boot entries of UEFI firmware can name %s on partition %d, the EFI system partition",
			names, partition)
	}
	fallback := strings.Join(l.fallback, " or ")
	switch {
	case len(l.fallback) > 0 && len(l.named) > 0:
		f.Link(partition, "UEFI firmware without such an entry starts %s from partition %d", fallback, partition)
	case len(l.fallback) > 0:
		f.Link(partition, "UEFI firmware starts %s from partition %d, the EFI system partition", fallback, partition)
	case len(l.named) == 0:
		f.Link(partition,
			"partition %d, the EFI system partition, holds no loader where UEFI firmware looks for one", partition)
	}
}

// entries reports the partition positions in the firmware's boot entries: an entry stores the GUID, number, start and
// size of its partition. EDK2, the base of the firmware of most virtual machines, uses only the GUID of the usual short
// entry and boots a moved partition. It compares an entry with a full device path byte by byte (both measured with OVMF
// 2022.11), and other firmware may do so with every entry. A loader in \EFI\BOOT needs no entry. known reports whether
// the files could be read.
func entries(f *boot.Found, l efiLoaders, known bool, partition int) {
	const code, text = "efi-boot-entries", "boot entries in the firmware's memory (NVRAM, not on this disk) store " +
		"the start of the EFI system partition, and keep the old start"
	const anew = "if the machine does not boot from the copy, choose the loader's file in the firmware's menu, or " +
		"recreate the entry from a rescue system (efibootmgr, bcdboot)"
	if known && len(l.fallback) == 0 && len(l.named) > 0 {
		f.Warn(code, partition, text+", and there is no fallback loader in \\EFI\\BOOT", anew)
		return
	}
	remedy := anew
	if len(l.fallback) > 0 {
		remedy = fmt.Sprintf("if the machine does not boot from the copy, start %s in the firmware's menu, and let "+
			"its system recreate the entry", l.fallback[0])
	}
	f.Issues = append(f.Issues, ondisk.Issue{
		Code: code, Effect: ondisk.Note, OnMove: true, Partition: partition, Text: text,
		Remedy: remedy,
	})
}
