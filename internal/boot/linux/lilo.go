package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// Lilo stores in its boot sector and in its map the absolute sectors of the map, of kernels and of initial RAM disks.
// Unless all of it is understood, nothing is rewritten.
var Lilo = &boot.Code{
	ID: "lilo", Name: "LILO", Absolute: true, AnyFlag: true, Picks: boot.None, Find: findLilo, Known: isLilo,
}

// liloMagic marks the stages, and ends the sector list of the second one.
const liloMagic = "LILO"

func isLilo(code []byte) bool {
	return len(code) >= 10 && !boot.Named("lilo-mbr").Known(code) && !boot.Named("lilo-mbr-ext").Known(code) &&
		(string(code[6:10]) == liloMagic || string(code[2:6]) == liloMagic)
}

const runLilo = "use --allow-unbootable, and run lilo on the copy from a rescue system"

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

// readLilo follows a first stage and adds its references, or the reason why there are none.
func readLilo(f *boot.Found, g *boot.Guest, c *boot.Code, home boot.Partition, where string, code []byte) error {
	name, bad := liloVersion(code), unsound{}
	m, err := followLilo(g, home, code)
	switch {
	case err == nil:
		f.Refs = append(f.Refs, m.refs...)
		f.Link(home.Number, "%s in %s loads its second stage from %q of partition %d, %s", name, where, m.file.Path,
			m.home.Number, m.mode)
	case errors.As(err, &bad):
		f.Link(home.Number, "%s in %s loads a kernel by absolute sectors", name, where)
		text := fmt.Sprintf("%s in %s holds the absolute sectors of the kernel, and trueup cannot rewrite its map, "+
			"since %s", name, where, bad.text)
		remedy := runLilo
		if m != nil && m.file != nil && m.file.Fixed != nil { // the replay of a journal is pending
			remedy = "shut the guest down cleanly first, or " + runLilo
		}
		in := 0 // any move: kernels can lie in any partition
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

// liloVersion names a LILO by the version word in its boot sector: "LILO 22.8". Until LILO 22.4 the stage number, 1,
// precedes it. Spec: LILO 21, 22 and 24, common.h, BOOT_PARAMS_1.
func liloVersion(code []byte) string {
	if string(code[2:6]) == liloMagic {
		return "LILO (older than 21)"
	}
	version := binary.LittleEndian.Uint16(code[10:]) // the high byte is the minor version
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
	liloSector   = 512 // unit of all addresses
	liloStage1   = 1
	liloStage2   = 2
	liloMaxCode  = 0x1b6 // bytes of a first stage: serial number and table of the disk follow
	liloFlagRAID = 2     // one boot record of an array
	atLiloPlace  = 32    // offset of liloFirst.Place
)

// liloFirst begins the first stage of LILO 22.5.9 and later.
type liloFirst struct {
	CLI        byte
	Jump       [2]byte
	Stage      byte
	CodeLength uint16
	Magic      [4]byte
	Version    uint16
	MapStamp   uint32 // time stamp of the map
	RAIDOffset uint32 // added to every address
	TimeStamp  uint32
	MapSerial  uint32 // signature of the disk with the map
	Prompt     uint16 // flags
	Drive      byte   // of the BIOS
	Mode       liloMode
	Place      uint32 // LBA of the sector that lists the second stage
}

// liloReads are the instructions that read the sector in Place, and then the sectors in its list.
var liloReads = boot.Like(
	"8a761f be2000 e8",      // mov dh,[1fh]; mov si,20h; call
	"66817ffc 'LILO'",       // cmp dword [bx-4],"LILO"
	"66ad 6609c0 74",        // lodsd; or eax,eax; jz
	"66034610 e8",           // add eax,[10h]; call
	"be0600 89f7 b90a00 b4", // mov si,6; mov di,si; mov cx,10
)

// readLiloFirst decodes and checks a first stage with the magic. code holds at least the 440 bytes before a disk
// signature.
func readLiloFirst(code []byte) (*liloFirst, error) {
	s := &liloFirst{}
	ondisk.Fill(code, binary.LittleEndian, s)
	major, minor := s.Version&0xff, s.Version>>8
	switch {
	case s.Stage != liloStage1 || major < 22 || major > 24 || (major == 22 && minor < 6):
		return nil, unsoundf("the layout of its map is not that of 22.6 to 24")
	case s.CLI != 0xfa || int(s.CodeLength) > liloMaxCode || !liloReads(code[:liloMaxCode]):
		return nil, unsoundf("its first stage is not that of 22.6 to 24")
	case s.RAIDOffset != 0 || s.Prompt&liloFlagRAID != 0:
		return nil, errLiloRAID
	}
	return s, s.Mode.check(s.Drive)
}

var errLiloRAID = unsoundf("its addresses count from the start of a partition of an array")

// followLilo reads the map of a first stage. On an error, the returned map holds the part read so far.
func followLilo(g *boot.Guest, home boot.Partition, code []byte) (*liloMap, error) {
	one, err := readLiloFirst(code)
	if err != nil {
		return nil, err
	}
	if size := g.Disk.SectorSize(); size != liloSector {
		return nil, unsoundf("it supports only sectors of 512 bytes, but the disk has sectors of %d", size)
	}
	place := int64(one.Place) * liloSector
	p, ok := g.Holding(place, liloSector)
	if !ok {
		return nil, unsoundf("the list of its second stage is at LBA %d, in no partition", one.Place)
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

// liloMode holds the address flags, which select the kind of address. Spec: LILO 24, src/lilo.h, src/geometry.c,
// geo_comp_addr.
type liloMode byte

const (
	liloLinear liloMode = 0x40 // 24 bits, converted for the BIOS to cylinder, head and sector
	liloLBA32  liloMode = 0x60 // 32 bits, the upper 8 in place of the count
	liloCount  liloMode = 0x20 // 24 bits, the upper 8 as in the previous 32-bit address
	liloArray  liloMode = 0x10 // counts from the start of an array's partition
	liloModes           = 0x70

	liloDrives   = 0x8f // mask of the drive in the byte of flags and drive
	liloDisk     = 0x80 // the first disk of the BIOS
	liloCylinder = 63 * 255
	liloReach    = 1024 * liloCylinder // sectors reachable by cylinder, head and sector
)

func (m liloMode) String() string {
	if m == liloLinear {
		return "by LBA of 24 bits"
	}
	return "by LBA"
}

// check returns an error unless the mode is one of the two supported ones, on the first disk.
func (m liloMode) check(drive byte) error {
	switch {
	case m&liloArray != 0:
		return errLiloRAID
	case m == 0:
		return unsoundf("its addresses are cylinders, heads and sectors")
	case m != liloLinear && m != liloLBA32:
		return unsoundf("its addresses have the unknown flags %#x", byte(m))
	case drive != liloDisk:
		return unsoundf("its map is on BIOS drive %#x, which can be another disk", drive)
	}
	return nil
}

// liloAddr is an address of sectors. Spec: LILO 24, src/common.h, SECTOR_ADDR.
type liloAddr struct{ lba, sectors int64 }

// liloHigh holds bits 24 to 31 of the last 32-bit address in a row of addresses.
type liloHigh struct {
	bits  int64
	known bool
}

// decode decodes an address of 5 bytes.
func (h *liloHigh) decode(b []byte, mode liloMode) (a liloAddr, err error) {
	low := int64(b[0]) | int64(b[1])<<8 | int64(b[3])<<16
	flags := liloMode(b[2] & liloModes)
	a = liloAddr{low, int64(b[4])}
	switch {
	case flags == mode && mode == liloLBA32:
		h.bits, h.known = int64(b[4])<<24, true
		a = liloAddr{h.bits | low, 1}
	case flags == liloCount && mode == liloLBA32 && h.known:
		a.lba |= h.bits
	case flags&liloArray != 0:
		return a, errLiloRAID
	case flags != mode:
		return a, unsoundf("an address has the flags %#x, which do not fit %#x of the first stage", byte(flags),
			byte(mode))
	}
	switch {
	case b[2]&liloDrives != liloDisk:
		return a, mode.check(b[2] & liloDrives)
	case a.sectors == 0:
		return a, unsoundf("the address of LBA %d has no sectors", a.lba)
	}
	return a, nil
}

// encode writes another LBA over an address that decode has read.
func (h *liloHigh) encode(b []byte, a liloAddr) error {
	high := a.lba &^ 0xffffff
	lba := binary.LittleEndian.AppendUint32(nil, ondisk.U32(a.lba))
	if liloMode(b[2]&liloModes) == liloLBA32 {
		h.bits, b[4] = high, lba[3]
	}
	if high != h.bits || (a.lba+a.sectors-1)&^0xffffff != high {
		return fmt.Errorf("LBA %d, %d sectors: %w of 24 bits", a.lba, a.sectors, ondisk.ErrLimit)
	}
	b[0], b[1], b[3] = lba[0], lba[1], lba[2]
	return nil
}

// liloShift moves the addresses in a part of the map by a number of sectors, in place.
type liloShift func(b []byte, by int64) error

// within returns an error for an address out of the loader's reach.
func (m *liloMap) within(a liloAddr) error {
	limit := int64(math.MaxUint32)
	if m.mode == liloLinear {
		// The BIOS may report fewer cylinders than the disk has.
		limit = min(liloReach, m.g.Disk.Size()/liloSector-2*liloCylinder)
	}
	if a.lba <= 0 || a.lba+a.sectors > limit {
		return fmt.Errorf("LBA %d, %d sectors: %w of LBA %d", a.lba, a.sectors, ondisk.ErrLimit, limit)
	}
	return nil
}

// encoder turns a shift into the Encode function of a reference to the sector at points.
func (m *liloMap) encoder(points int64, shift liloShift) func([]byte, int64) ([]byte, error) {
	return func(raw []byte, to int64) ([]byte, error) {
		out := slices.Clone(raw)
		if to == points {
			return out, nil
		}
		if (to-points)%liloSector != 0 {
			return nil, fmt.Errorf("offset %#x: %w to whole sectors of %d bytes", to, ondisk.ErrLimit, liloSector)
		}
		return out, shift(out, (to-points)/liloSector)
	}
}

// shiftNumbers moves 32-bit LBAs.
func (m *liloMap) shiftNumbers(b []byte, by int64) error {
	for at := 0; at < len(b); at += 4 {
		lba := int64(binary.LittleEndian.Uint32(b[at:])) + by
		if err := m.within(liloAddr{lba, 1}); err != nil {
			return err
		}
		binary.LittleEndian.PutUint32(b[at:], ondisk.U32(lba))
	}
	return nil
}

// liloMover moves the addresses of a row.
type liloMover struct {
	m        *liloMap
	by       int64
	was, now liloHigh
}

func (v *liloMover) move(b []byte) error {
	a, err := v.was.decode(b, v.m.mode)
	if err != nil {
		return err
	}
	a.lba += v.by
	if err := v.m.within(a); err != nil {
		return err
	}
	return v.now.encode(b, a)
}

// shiftAt returns a function that moves the addresses at some offsets, each independently.
func (m *liloMap) shiftAt(places ...int64) liloShift {
	return func(b []byte, by int64) error {
		for _, at := range places {
			if err := (&liloMover{m: m, by: by}).move(b[at:]); err != nil {
				return err
			}
		}
		return nil
	}
}

// shiftPages moves the addresses in whole sectors of addresses.
func (m *liloMap) shiftPages(b []byte, by int64) error {
	row := &liloMover{m: m, by: by}
	for ; len(b) > 0; b = b[liloSector:] {
		_, err := liloPage(b[:liloSector], row.move, (&liloMover{m: m, by: by}).move)
		if err != nil {
			return err
		}
	}
	return nil
}

// liloPage calls do for each address in a sector, and next for the link to the next sector. Zeros end the row.
func liloPage(page []byte, do, next func([]byte) error) (more bool, err error) {
	for at := 0; at <= liloLink; at += liloAddrLen {
		addr := page[at : at+liloAddrLen]
		switch {
		case ondisk.IsZero(addr[:4]):
			return false, nil
		case at == liloLink:
			return true, next(addr)
		}
		if err := do(addr); err != nil {
			return false, err
		}
	}
	return false, nil
}

// sealed wraps a shift to update the checksum at an offset, over all bytes before it.
func (shift liloShift) sealed(at int64) liloShift {
	return func(b []byte, by int64) error {
		err := shift(b, by)
		binary.LittleEndian.PutUint32(b[at:], liloSum(b[:at]))
		return err
	}
}

// liloSum returns the CRC-32 with the bits in wire order, as in bzip2. Spec: LILO 24, src/common.c, crc32.
func liloSum(b []byte) uint32 {
	const polynomial = 0x04c11db7
	sum := ^uint32(0)
	for _, c := range b {
		sum ^= uint32(c) << 24
		for range 8 {
			carry := sum >> 31
			sum = sum<<1 ^ carry*polynomial
		}
	}
	return ^sum
}
