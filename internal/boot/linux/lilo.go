package linux

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
)

// Lilo holds in its boot sector and in its map the absolute sectors of the map, of kernels and of initial RAM disks.
// Either all of it is understood, or nothing is rewritten.
var Lilo = &boot.Code{
	ID: "lilo", Name: "LILO", Absolute: true, AnyFlag: true, Picks: boot.None, Find: findLilo, Known: isLilo,
}

// liloMagic marks the stages, and ends the list of the sectors of the second one.
const liloMagic = "LILO"

func isLilo(code []byte) bool {
	return len(code) >= 10 && !LiloMBR.Known(code) && !LiloMBR2.Known(code) &&
		(string(code[6:10]) == liloMagic || string(code[2:6]) == liloMagic)
}

const runLilo = "go on with --allow-unbootable, and run lilo from a rescue system on the copy"

// liloError is why a LILO is not rewritten.
type liloError string

func (e liloError) Error() string { return string(e) }

func liloErrorf(format string, args ...any) error { return liloError(fmt.Sprintf(format, args...)) }

func findLilo(g *boot.Guest, c *boot.Code) (f boot.Found, err error) {
	followed := 0
	err = g.Homes(c, func(home boot.Partition, where string, code []byte) error {
		if followed++; followed > boot.MaxBootSectors && !g.Starts(home) {
			f.NotSeen(home.Number, c.Name+" in "+where,
				fmt.Sprintf("boot sectors of more than %d partitions hold one", boot.MaxBootSectors))
			return nil
		}
		return readLilo(&f, g, c, home, where, code)
	})
	return f, err
}

// readLilo follows a first stage, and adds references, or the reason why there are none.
func readLilo(f *boot.Found, g *boot.Guest, c *boot.Code, home boot.Partition, where string, code []byte) error {
	name, bad := liloVersion(code), liloError("")
	m, err := followLilo(g, home, code)
	switch {
	case err == nil:
		f.Refs = append(f.Refs, m.refs...)
		f.Link(home.Number, "%s in %s loads its second stage from %q of partition %d, %s", name, where, m.file.Path,
			m.home.Number, m.mode)
	case errors.As(err, &bad):
		f.Link(home.Number, "%s in %s loads a kernel by absolute sectors", name, where)
		text := fmt.Sprintf("%s in %s holds the absolute sectors of the kernel, and its map is not rewritten, since %s",
			name, where, bad)
		remedy := runLilo
		if m != nil && m.file != nil && m.file.Fixed != nil { // it waits for the replay of a journal
			remedy = "shut the guest down cleanly first, or " + runLilo
		}
		in := 0 // it concerns any move: kernels can lie in any partition
		if m != nil && errors.Is(err, m.far) {
			in = m.home.Number
		}
		f.Breaks(g, home, c.ID, in, text, remedy)
	default:
		return err
	}
	if m != nil {
		for _, link := range m.links {
			f.Link(m.home.Number, "%s", link)
		}
	}
	return nil
}

// liloVersion names a LILO by the word in its boot sector: "LILO 22.8". In front of that word stands the number of the
// stage, 1, until LILO 22.4. Spec: LILO 21, 22 and 24, common.h, BOOT_PARAMS_1.
func liloVersion(code []byte) string {
	if string(code[2:6]) == liloMagic {
		return "LILO (older than 21)"
	}
	version := binary.LittleEndian.Uint16(code[10:]) // the minor one stands in the high byte
	if version == liloStage1 {
		version = binary.LittleEndian.Uint16(code[12:])
	}
	if minor := version >> 8; minor != 0 {
		return fmt.Sprintf("LILO %d.%d", version&0xff, minor)
	}
	return fmt.Sprintf("LILO %d", version)
}

// Spec: LILO 24, src/common.h, BOOT_PARAMS_1; src/first.S; src/lilo.h.
const (
	liloSector   = 512 // the unit of all addresses
	liloStage1   = 1
	liloStage2   = 2
	liloMaxCode  = 0x1b6 // bytes of a first stage: serial number and table of the disk follow
	liloFlagRAID = 2     // one boot record of an array
	atLiloPlace  = 32    // of the sector that lists the second stage
)

// liloFirst begins the first stage of LILO 22.5.9 and later.
type liloFirst struct {
	CLI        byte
	Jump       [2]byte
	Stage      byte
	CodeLength uint16
	Magic      [4]byte
	Version    uint16
	MapStamp   uint32 // when the map was made
	RAIDOffset uint32 // added to every address
	TimeStamp  uint32
	MapSerial  uint32 // signature of the disk with the map
	Prompt     uint16 // flags
	Drive      byte   // of the BIOS
	Mode       liloMode
	Place      uint32 // LBA of the sector that lists the second stage
}

// liloReads are the instructions that read that sector, and those that read by such a list.
var liloReads = boot.Has(
	[]byte{0x8a, 0x76, 0x1f, 0xbe, 0x20, 0x00, 0xe8},             // mov dh,[1fh]; mov si,20h; call
	[]byte{0x66, 0x81, 0x7f, 0xfc, 'L', 'I', 'L', 'O'},           // cmp dword [bx-4],"LILO"
	[]byte{0x66, 0xad, 0x66, 0x09, 0xc0, 0x74},                   // lodsd; or eax,eax; jz
	[]byte{0x66, 0x03, 0x46, 0x10, 0xe8},                         // add eax,[10h]; call
	[]byte{0xbe, 0x06, 0x00, 0x89, 0xf7, 0xb9, 0x0a, 0x00, 0xb4}, // mov si,6; mov di,si; mov cx,10
)

// readLiloFirst decodes and checks a first stage, which is known by its magic. code holds at least the 440 bytes in
// front of a disk signature.
func readLiloFirst(code []byte) (*liloFirst, error) {
	s := &liloFirst{}
	if _, err := binary.Decode(code, binary.LittleEndian, s); err != nil {
		return nil, err
	}
	major, minor := s.Version&0xff, s.Version>>8
	switch {
	case s.Stage != liloStage1 || major < 22 || major > 24 || (major == 22 && minor < 6):
		return nil, liloErrorf("the layout of its map is not known, only that of 22.6 to 24")
	case s.CLI != 0xfa || int(s.CodeLength) > liloMaxCode || !liloReads(code[:liloMaxCode]):
		return nil, liloErrorf("its first stage is not that of 22.6 to 24")
	case s.RAIDOffset != 0 || s.Prompt&liloFlagRAID != 0:
		return nil, errLiloRAID
	}
	return s, s.Mode.check(s.Drive)
}

const errLiloRAID = liloError("its addresses count from the start of a partition of an array")

// followLilo reads what a first stage leads to. The map that it returns with an error has what was read of it.
func followLilo(g *boot.Guest, home boot.Partition, code []byte) (*liloMap, error) {
	one, err := readLiloFirst(code)
	if err != nil {
		return nil, err
	}
	if size := g.Disk.SectorSize(); size != liloSector {
		return nil, liloErrorf("it knows sectors of 512 bytes only, and the disk has sectors of %d", size)
	}
	place := int64(one.Place) * liloSector
	p, ok := g.Holding(place, liloSector)
	if !ok {
		return nil, liloErrorf("the list of its second stage is at LBA %d, in no partition", one.Place)
	}
	m := &liloMap{g: g, home: p, mode: one.Mode, seen: map[int64]bool{}}
	if err := m.open(place); err != nil {
		return m, err
	}
	m.add(boot.Ref{
		Kind: "LILO pointer to the list of its second stage", Partition: home.Number, Off: atLiloPlace,
		At: []disk.Range{{Off: home.Off + atLiloPlace, Len: 4}}, Raw: code[atLiloPlace : atLiloPlace+4],
		Points: place, Target: p.Number,
	}, m.shiftNumbers)
	if err := m.read(place, one); err != nil {
		return m, err
	}
	return m, m.far
}
