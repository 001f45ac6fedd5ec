package linux

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// Legacy is stage1 of GRUB 0.9x, in the MBR or in the boot sector of a partition. It stores the number of the first
// sector of stage1.5 or stage2, which lists the rest. Unless all of it is understood, nothing is rewritten.
var Legacy = &boot.Code{
	ID: "grub-legacy", Name: "GRUB legacy", Absolute: true, AnyFlag: true, Picks: boot.None, Find: findGrubLegacy,
	Known: func(code []byte) bool { return isGrub(code) && code[atGrubVersion] == legacyVersion },
}

// unsound is the reason why a loader is not rewritten. partition is the one whose move matters; 0 means any.
type unsound struct {
	text      string
	partition int
}

func (u unsound) Error() string { return u.text }

func unsoundf(format string, args ...any) error { return unsound{text: fmt.Sprintf(format, args...)} }

func findGrubLegacy(g *boot.Guest, c *boot.Code) (f boot.Found, err error) {
	err = eachHome(g, c, &f, func(home boot.Partition, where string, code []byte) error {
		return readLegacy(&f, g, c, home, where, code)
	})
	return f, err
}

// readLegacy follows a stage1 and adds its references, or the reason why there are none.
func readLegacy(f *boot.Found, g *boot.Guest, c *boot.Code, home boot.Partition, where string, code []byte) error {
	found, config, err := followLegacy(g, home, where, code)
	if bad := (unsound{}); errors.As(err, &bad) {
		f.Link(home.Number, "GRUB legacy in %s", where)
		f.Breaks(g, home, c.ID, bad.partition, fmt.Sprintf("GRUB legacy in %s: %s", where, bad.text), boot.InstallAgain)
		return nil
	}
	if f.Add(found); err == nil && g.Starts(home) {
		g.Configured(config)
	}
	return err
}

func followLegacy(g *boot.Guest, home boot.Partition, where string, code []byte) (
	f boot.Found, config boot.Config, err error,
) {
	one, err := readStage1(code)
	if err != nil {
		return f, config, err
	}
	if size := g.Disk.SectorSize(); size != grubSector {
		return f, config, unsoundf("it supports only sectors of 512 bytes, but the disk has sectors of %d", size)
	}
	at, err := legacyHolding(g, one.Sector, 1, "its next stage")
	if err != nil {
		return f, config, err
	}
	two, err := readStage(g, at, one)
	if err != nil {
		return f, config, err
	}
	refer := func(kind string, stored boot.Partition, place int64, sector uint32) {
		if at.Number == 0 {
			return // a number in the gap stays valid
		}
		f.Refs = append(f.Refs, boot.Ref{
			Kind: kind, Partition: stored.Number, Off: place - stored.Off, At: []disk.Range{{Off: place, Len: 4}},
			Raw: binary.LittleEndian.AppendUint32(nil, sector), Points: int64(sector) * grubSector, Target: at.Number,
			Encode: boot.EncodeSectors(grubSector),
		})
	}
	refer("GRUB legacy stage1 pointer to "+two.short(), home, home.Off+atStage1Sector, one.Sector)
	for i, e := range two.list {
		refer(fmt.Sprintf("GRUB legacy %s block list entry %d", two.short(), i+1), at,
			int64(one.Sector)*grubSector+atStageList-int64(i)*stageEntry, e.Start)
	}
	config = two.link(&f, g, home, where, at, one)
	return f, config, nil
}

// legacyHolding finds the container of sectors: one partition, or the gap before all, with number 0. what names the
// sectors in the error for any other place.
func legacyHolding(g *boot.Guest, first uint32, sectors uint16, what string) (boot.Partition, error) {
	z := zoneOf(g, uint64(first), uint64(sectors))
	switch {
	case !z.known:
		return z.Partition, unsoundf("%s is at LBA %d, %d sectors long, %s", what, first, sectors, z.text)
	case z.Number != 0 && (z.Volume.Kind == volume.VTOC || z.Type == 0xbe || z.Type == 0xbf):
		// illumos stores sector numbers in the slices too.
		const solaris = "%s is at LBA %d, in partition %d of Solaris, which stores absolute positions itself"
		return z.Partition, unsound{fmt.Sprintf(solaris, what, first, z.Number), z.Number}
	}
	return z.Partition, nil
}

// containerName names the container of sectors.
func containerName(p boot.Partition) string {
	if p.Number == 0 {
		return "the gap"
	}
	return fmt.Sprintf("partition %d", p.Number)
}

// link adds the next boot steps, and returns where the loader looks for its menu.
func (s *legacyStage) link(
	f *boot.Found, g *boot.Guest, home boot.Partition, where string, at boot.Partition, one *stage1,
) boot.Config {
	f.Link(home.Number, "GRUB legacy in %s loads %s from LBA %d, in %s", where, s.name(), one.Sector, containerName(at))
	number := int(s.slot) + 1
	known := s.slot != wholeDisk && g.Numbered(number).Number != 0
	config := boot.Config{
		Loader: "GRUB legacy in " + where, Syntax: boot.GRUBLegacy, Home: number,
		Paths: []string{strings.TrimPrefix(s.config, "/")},
	}
	switch {
	case s.menu != "":
		config.Paths[0] = strings.TrimPrefix(s.menu, "/")
	case s.head.ID != 0: // it opens stage2, whose own menu path is not read
		config.Paths = legacyMenus
	}
	switch {
	case at.Number != 0 && (!known || number == at.Number):
		config.Home = at.Number
		f.Link(at.Number, "%s of GRUB legacy opens %s by its name", s.short(), s.config)
		return config
	case at.Number != 0:
		f.Link(at.Number, "%s of GRUB legacy runs", s.short())
	}
	if known {
		f.Link(number, "%s of GRUB legacy opens %s in partition %d by its name", s.short(), s.config, number)
	} else {
		config.Home, config.Anywhere, config.Paths = 0, true, legacyMenus
	}
	return config
}

// legacyMenus are the usual paths of the menu. Spec: GRUB 0.97, configure.ac and stage2/asm.S, config_file; Red Hat
// names it grub.conf.
var legacyMenus = []string{"boot/grub/menu.lst", "grub/menu.lst", "boot/grub/grub.conf", "grub/grub.conf"}

// Spec: GRUB 0.97, stage1/stage1.h, stage1/stage1.S.
const (
	atStage1Fields = 0x3e
	atStage1Sector = 0x44
	bootedDrive    = 0xff // the disk that the BIOS booted
	firstDrive     = 0x80
)

// stage1 holds the fields that the installer writes into a boot sector.
type stage1 struct {
	Major, Minor byte   // of the interface between the stages
	Drive        byte   // of the BIOS
	ForceLBA     byte   // skip the BIOS test for LBA reads
	Address      uint16 // load address of the next stage
	Sector       uint32 // LBA of the next stage's first sector
	Segment      uint16 // of Address
}

// All versions of the interface 3.2 load the sector in this field and jump to the address in the field.
var (
	readsSector = []byte{0x66, 0x8b, 0x1e, 0x44, 0x7c} // mov ebx,[7c44h]
	jumpsOn     = []byte{0xff, 0x26, 0x42, 0x7c}       // jmp [7c42h]
)

// readStage1 decodes and checks a stage1. code holds at least the 440 bytes before a disk signature.
func readStage1(code []byte) (*stage1, error) {
	var s stage1
	ondisk.Fill(code[atStage1Fields:atStage1Fields+binary.Size(s)], binary.LittleEndian, &s)
	switch {
	case s.Major != 3 || s.Minor != 2:
		return nil, unsoundf("its stage1 has the interface %d.%d, and trueup supports only 3.2", s.Major, s.Minor)
	case code[0] != 0xeb || !bytes.Contains(code, readsSector) || !bytes.Contains(code, jumpsOn):
		return nil, unsoundf("its stage1 is not that of GRUB 0.9x")
	case s.Drive != bootedDrive && s.Drive != firstDrive:
		return nil, unsoundf("it reads its next stage from BIOS drive %#x, which can be another disk", s.Drive)
	case (s.Address != stage15Address && s.Address != stage2Address) || s.Segment != s.Address>>4:
		return nil, unsoundf("it loads its next stage to %#x (segment %#x), and stages are known at 0x2000 and 0x8000",
			s.Address, s.Segment)
	}
	return &s, nil
}

// Spec: stage2/start.S, stage2/asm.S, stage2/shared.h.
const (
	stage15Address = 0x2000
	stage2Address  = 0x8000
	atStageList    = 0x1f8 // of the first sector: entries grow downwards
	stageListEnd   = 0x138 // the code of that sector ends here
	stageEntry     = 8
	highestAddress = 0xa0000 // end of conventional memory
	paragraph      = 16
	wholeDisk      = 0xff // no partition
)

// stageBlocks is an entry of a block list.
type stageBlocks struct {
	Start   uint32 // LBA
	Sectors uint16 // 0 ends the list
	Segment uint16 // load address
}

// stageHead begins the second sector of stage1.5 and of stage2.
type stageHead struct {
	Jump         [5]byte // far, to the code
	_            byte
	Major, Minor byte
	Partition    [4]byte // installed from; [2] is its index in the table, from 0
	SavedEntry   uint32
	ID           byte // 0 for stage2, otherwise the file system of a stage1.5
	ForceLBA     byte
	Text         [494]byte // version, NUL; then the menu of stage2, or the file of stage1.5; NUL
}

// stage15Kinds lists the file systems by ID.
var stage15Kinds = []string{"", "ffs", "e2fs", "fat", "minix", "reiserfs", "vstafs", "jfs", "xfs", "iso9660", "ufs2"}

// legacyStage is a verified stage1.5 or stage2.
type legacyStage struct {
	head    stageHead
	list    []stageBlocks
	version string
	slot    byte   // partition with config: its index in the table, from 0
	config  string // path of the next file
	menu    string // path of the menu passed by a stage1.5; empty for stage2's default
}

func (s *legacyStage) short() string {
	if s.head.ID == 0 {
		return "stage2"
	}
	return "stage1.5"
}

func (s *legacyStage) name() string {
	if s.head.ID == 0 {
		return "stage2 " + s.version
	}
	return "stage1.5 " + s.version + " (" + stage15Kinds[s.head.ID] + ")"
}

// readStage reads and checks the stage that stage1 loads. All of it must lie in one place, at.
func readStage(g *boot.Guest, at boot.Partition, one *stage1) (*legacyStage, error) {
	first, err := ondisk.Bytes(g.Disk, int64(one.Sector)*grubSector, grubSector)
	if err != nil {
		return nil, err
	}
	if !isStage(first, one.Address) {
		return nil, unsoundf("LBA %d in %s holds no stage of GRUB legacy", one.Sector, containerName(at))
	}
	s, name := &legacyStage{}, stageAt(one.Address)
	if s.list, err = readStageList(first, one.Address); err != nil {
		return nil, err
	}
	for _, e := range s.list {
		now, err := legacyHolding(g, e.Start, e.Sectors, "a piece of its "+name)
		if err == nil && now.Number != at.Number {
			err = unsoundf("its %s begins in %s, and a piece of it lies in %s", name, containerName(at),
				containerName(now))
		}
		if err != nil {
			return nil, err
		}
	}
	second, err := ondisk.Bytes(g.Disk, int64(s.list[0].Start)*grubSector, grubSector)
	if err != nil {
		return nil, err
	}
	return s, s.readHead(second, one)
}

// stageAt names a stage by its load address.
func stageAt(address uint16) string {
	if address == stage2Address {
		return "stage2"
	}
	return "stage1.5"
}

// isStage recognizes the first sector of a stage by its code: it points to the list at its address in memory, and jumps
// to the second sector.
func isStage(sector []byte, address uint16) bool {
	list := binary.LittleEndian.AppendUint16([]byte{0xbf}, address+atStageList)              // mov di,list
	jump := append(binary.LittleEndian.AppendUint16([]byte{0xea}, address+grubSector), 0, 0) // jmp 0:second sector
	return bytes.Contains(sector[:atStageList], list) && bytes.Contains(sector[:atStageList], jump)
}

// readStageList decodes the block list. Its segments verify it: each entry is loaded right after the previous one.
func readStageList(sector []byte, address uint16) ([]stageBlocks, error) {
	var list []stageBlocks
	to := int64(address) + grubSector
	for at := atStageList; at >= stageListEnd; at -= stageEntry {
		var e stageBlocks
		ondisk.Fill(sector[at:at+stageEntry], binary.LittleEndian, &e)
		if e.Sectors == 0 {
			if len(list) == 0 {
				return nil, unsoundf("the block list of its %s is empty", stageAt(address))
			}
			return list, nil
		}
		if int64(e.Segment)*paragraph != to {
			return nil, unsoundf("entry %d of the block list of its %s is loaded to segment %#x, and %#x would be next",
				len(list)+1, stageAt(address), e.Segment, to/paragraph)
		}
		if to += int64(e.Sectors) * grubSector; to > highestAddress {
			return nil, unsoundf("the block list of its %s has %d sectors in entry %d, more than memory has room for",
				stageAt(address), e.Sectors, len(list)+1)
		}
		list = append(list, e)
	}
	return nil, unsoundf("the block list of its %s has no end", stageAt(address))
}

// readHead decodes and checks the second sector.
func (s *legacyStage) readHead(sector []byte, one *stage1) error {
	ondisk.Fill(sector, binary.LittleEndian, &s.head)
	h, name := &s.head, stageAt(one.Address)
	version, rest, _ := bytes.Cut(h.Text[:], []byte{0}) // without an end it is too long
	switch {
	case h.Jump[0] != 0xea || h.Jump[3] != 0 || h.Jump[4] != 0 || h.Major != one.Major || h.Minor != one.Minor:
		return unsoundf("LBA %d does not hold the second sector of its %s", s.list[0].Start, name)
	case (h.ID == 0) != (one.Address == stage2Address) || int(h.ID) >= len(stage15Kinds):
		return unsoundf("its %s is marked as stage %d, which does not fit the address %#x", name, h.ID, one.Address)
	case !bytes.HasPrefix(version, []byte("0.9")) || len(version) > 16 || !isPrintable(version):
		return unsoundf("the version of its %s is %.16q, and trueup supports only 0.9x", name, version)
	}
	s.version = string(version)
	return s.readConfig(rest, name)
}

// readConfig decodes the name of the next file. stage2 has a text such as "/boot/grub/menu.lst" or
// "(hd0,1)/grub/menu.lst". stage1.5 has a 4-byte device, then the path of stage2, and after a space the path of the
// menu.
func (s *legacyStage) readConfig(b []byte, name string) error {
	s.slot = s.head.Partition[2]
	if s.head.ID != 0 {
		s.slot, b = b[2], b[4:]
	}
	text, _, ok := bytes.Cut(b, []byte{0})
	if !ok || !isPrintable(text) {
		return unsoundf("the file that its %s opens has no name", name)
	}
	path, menu, _ := strings.Cut(string(text), " ")
	if strings.HasPrefix(menu, "/") {
		s.menu = menu
	}
	if device, file, ok := strings.Cut(path, ")"); ok && strings.HasPrefix(device, "(") {
		path, s.slot = file, slotOf(device)
	}
	if !strings.HasPrefix(path, "/") {
		// A block list, "63+1" or "(hd0)63+1", can count from the start of the disk.
		return unsoundf("its %s opens a list of blocks, %.64q, and no file", name, path)
	}
	s.config = path
	return nil
}

// slotOf decodes the partition of a device, "(hd0,1". It returns wholeDisk for any disk but the first.
func slotOf(device string) byte {
	slot, ok := strings.CutPrefix(device, "(hd0,")
	n, err := strconv.ParseUint(slot, 10, 8)
	if !ok || err != nil {
		return wholeDisk
	}
	return byte(n)
}

func isPrintable(b []byte) bool {
	return !slices.ContainsFunc(b, func(c byte) bool { return c < ' ' || c > '~' })
}
