package linux

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/ondisk"
)

// Spec: GRUB 0.97, stage1/stage1.h, stage1/stage1.S.
const (
	atStage1Fields = 0x3e
	atStage1Sector = 0x44
	bootedDrive    = 0xff // whatever disk the BIOS booted
	firstDrive     = 0x80
)

// stage1 is what the installer fills into a boot sector.
type stage1 struct {
	Major, Minor byte   // of the interface between the stages
	Drive        byte   // of the BIOS
	ForceLBA     byte   // do not ask the BIOS whether it reads by LBA
	Address      uint16 // where the next stage is loaded
	Sector       uint32 // LBA of its first sector
	Segment      uint16 // of Address
}

// All versions of the interface 3.2 load the sector that the field names and jump to the address in the field.
var (
	readsSector = []byte{0x66, 0x8b, 0x1e, 0x44, 0x7c} // mov ebx,[7c44h]
	jumpsOn     = []byte{0xff, 0x26, 0x42, 0x7c}       // jmp [7c42h]
)

// readStage1 decodes and checks a stage1. code holds at least the 440 bytes in front of a disk signature.
func readStage1(code []byte) (*stage1, error) {
	var s stage1
	if err := ondisk.Fill(code[atStage1Fields:atStage1Fields+binary.Size(s)], binary.LittleEndian, &s); err != nil {
		return nil, err
	}
	switch {
	case s.Major != 3 || s.Minor != 2:
		return nil, unsoundf("its stage1 has the interface %d.%d, and only 3.2 is known", s.Major, s.Minor)
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
	atStageList    = 0x1f8 // of the first sector: entries stand one in front of the other, downwards
	stageListEnd   = 0x138 // the code of that sector stands in front of this
	stageEntry     = 8
	highestAddress = 0xa0000 // there memory ends
	paragraph      = 16
	wholeDisk      = 0xff // no partition
)

// stageBlocks is an entry of a block list.
type stageBlocks struct {
	Start   uint32 // LBA
	Sectors uint16 // 0 ends the list
	Segment uint16 // where they are loaded
}

// stageHead begins the second sector of stage1.5 and of stage2.
type stageHead struct {
	Jump         [5]byte // far, to the code
	_            byte
	Major, Minor byte
	Partition    [4]byte // that it was installed from; [2] counts the partitions of the table from 0
	SavedEntry   uint32
	ID           byte // 0: stage2; else the file system that a stage1.5 reads
	ForceLBA     byte
	Text         [494]byte // version, NUL; then the menu of stage2, or what a stage1.5 opens; NUL
}

// stage15Kinds are the file systems by ID.
var stage15Kinds = []string{"", "ffs", "e2fs", "fat", "minix", "reiserfs", "vstafs", "jfs", "xfs", "iso9660", "ufs2"}

// legacyStage is a stage1.5 or stage2 that was found and is sound.
type legacyStage struct {
	head    stageHead
	list    []stageBlocks
	version string
	slot    byte   // partition of the table from which config is opened, from 0
	config  string // path of the next file
	menu    string // path of the menu that a stage1.5 passes on; empty: that of stage2
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

// readStage reads and checks what a stage1 loads. All of it must lie in one place, at.
func readStage(g *boot.Guest, at legacyHome, one *stage1) (*legacyStage, error) {
	first, err := ondisk.Bytes(g.Disk, int64(one.Sector)*legacySector, legacySector)
	if err != nil {
		return nil, err
	}
	if !isStage(first, one.Address) {
		return nil, unsoundf("LBA %d in %s holds no stage of GRUB legacy", one.Sector, at.name)
	}
	s := &legacyStage{}
	if s.list, err = readStageList(first, one.Address); err != nil {
		return nil, err
	}
	if err := s.inOnePlace(g, at, stageAt(one.Address)); err != nil {
		return nil, err
	}
	second, err := ondisk.Bytes(g.Disk, int64(s.list[0].Start)*legacySector, legacySector)
	if err != nil {
		return nil, err
	}
	return s, s.readHead(second, one)
}

// inOnePlace requires the block list to lie in the place of the first sector. Only a refusal looks for the actual one:
// tables are long.
func (s *legacyStage) inOnePlace(g *boot.Guest, at legacyHome, name string) error {
	for _, e := range s.list {
		if at.holds(int64(e.Start), int64(e.Sectors)) {
			continue
		}
		now, err := legacyHolding(g, int64(e.Start), int64(e.Sectors), "a piece of its "+name)
		if err != nil {
			return err
		}
		return unsoundf("its %s begins in %s, and a piece of it lies in %s", name, at.name, now.name)
	}
	return nil
}

// stageAt names a stage by the address it is loaded to.
func stageAt(address uint16) string {
	if address == stage2Address {
		return "stage2"
	}
	return "stage1.5"
}

// isStage reports the first sector of a stage by its code: it points to the list at its address in memory, and jumps to
// the second sector.
func isStage(sector []byte, address uint16) bool {
	list := binary.LittleEndian.AppendUint16([]byte{0xbf}, address+atStageList)                // mov di,list
	jump := append(binary.LittleEndian.AppendUint16([]byte{0xea}, address+legacySector), 0, 0) // jmp 0:second sector
	return bytes.Contains(sector[:atStageList], list) && bytes.Contains(sector[:atStageList], jump)
}

// readStageList decodes the block list. Its segments prove that it is one: each entry is loaded behind the one before.
func readStageList(sector []byte, address uint16) ([]stageBlocks, error) {
	var list []stageBlocks
	to := int64(address) + legacySector
	for at := atStageList; at >= stageListEnd; at -= stageEntry {
		var e stageBlocks
		if err := ondisk.Fill(sector[at:at+stageEntry], binary.LittleEndian, &e); err != nil {
			return nil, err
		}
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
		if to += int64(e.Sectors) * legacySector; to > highestAddress {
			return nil, unsoundf("the block list of its %s has %d sectors in entry %d, more than memory has room for",
				stageAt(address), e.Sectors, len(list)+1)
		}
		list = append(list, e)
	}
	return nil, unsoundf("the block list of its %s has no end", stageAt(address))
}

// readHead decodes and checks the second sector.
func (s *legacyStage) readHead(sector []byte, one *stage1) error {
	if err := ondisk.Fill(sector, binary.LittleEndian, &s.head); err != nil {
		return err
	}
	h, name := &s.head, stageAt(one.Address)
	version, rest, _ := bytes.Cut(h.Text[:], []byte{0}) // one without an end is too long
	switch {
	case h.Jump[0] != 0xea || h.Jump[3] != 0 || h.Jump[4] != 0 || h.Major != one.Major || h.Minor != one.Minor:
		return unsoundf("LBA %d does not hold the second sector of its %s", s.list[0].Start, name)
	case (h.ID == 0) != (one.Address == stage2Address) || int(h.ID) >= len(stage15Kinds):
		return unsoundf("its %s says that it is stage %d, which does not belong to %#x", name, h.ID, one.Address)
	case !bytes.HasPrefix(version, []byte("0.9")) || len(version) > 16 || !isPrintable(version):
		return unsoundf("the version of its %s is %.16q, and 0.9x is known", name, version)
	}
	s.version = string(version)
	return s.readConfig(rest, name)
}

// readConfig decodes the name of the next file. stage2 has a text such as "/boot/grub/menu.lst" or
// "(hd0,1)/grub/menu.lst"; stage1.5 has a device in 4 bytes, then the path of stage2, and a path of the menu behind a
// space.
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
		// A list of blocks, "63+1" or "(hd0)63+1": it can count from the start of the disk.
		return unsoundf("its %s opens a list of blocks, %.64q, and no file", name, path)
	}
	s.config = path
	return nil
}

// slotOf decodes the partition of a device, "(hd0,1"; one of another disk than the first is no partition here.
func slotOf(device string) byte {
	slot, ok := strings.CutPrefix(device, "(hd0,")
	n, err := strconv.ParseUint(slot, 10, 8)
	if !ok || err != nil {
		return wholeDisk
	}
	return byte(n)
}

func isPrintable(b []byte) bool {
	for _, c := range b {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
}
