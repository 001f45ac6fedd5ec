package linux

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/trueup/trueup/internal/ondisk"
)

// liloMode has the flags of an address: how it counts. Spec: LILO 24, src/lilo.h, src/geometry.c, geo_comp_addr.
type liloMode byte

const (
	liloLinear liloMode = 0x40 // 24 bits, of which the BIOS gets cylinder, head and sector
	liloLBA32  liloMode = 0x60 // 32 bits, the upper 8 in place of the count
	liloCount  liloMode = 0x20 // 24 bits, the upper 8 as in the last address of 32 bits
	liloArray  liloMode = 0x10 // counts from the start of a partition of an array
	liloModes           = 0x70

	liloDrives   = 0x8f // of the byte that has flags and drive
	liloDisk     = 0x80 // the first disk of the BIOS
	liloCylinder = 63 * 255
	liloReach    = 1024 * liloCylinder // sectors that a BIOS can reach by cylinder, head and sector
)

func (m liloMode) String() string {
	if m == liloLinear {
		return "by LBA of 24 bits"
	}
	return "by LBA"
}

// check refuses what is not one of the two modes that are rewritten, on the first disk.
func (m liloMode) check(drive byte) error {
	switch {
	case m&liloArray != 0:
		return errLiloRAID
	case m == 0:
		return liloErrorf("its addresses are cylinders, heads and sectors")
	case m != liloLinear && m != liloLBA32:
		return liloErrorf("its addresses have the unknown flags %#x", byte(m))
	case drive != liloDisk:
		return liloErrorf("its map is on BIOS drive %#x, which can be another disk", drive)
	}
	return nil
}

// liloAddr is an address of sectors. Spec: LILO 24, src/common.h, SECTOR_ADDR.
type liloAddr struct{ lba, sectors int64 }

// liloHigh holds bits 24 to 31 of the last address of 32 bits in a row of them.
type liloHigh struct {
	bits  int64
	known bool
}

// decode reads an address of 5 bytes.
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
		return a, liloErrorf("an address has the flags %#x, which do not fit %#x of the first stage", byte(flags),
			byte(mode))
	}
	switch {
	case b[2]&liloDrives != liloDisk:
		return a, mode.check(b[2] & liloDrives)
	case a.sectors == 0:
		return a, liloErrorf("the address of LBA %d has no sectors", a.lba)
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

// liloShift moves the addresses in a part of the map by sectors, in place.
type liloShift func(b []byte, by int64) error

// within returns an error for an address that the loader cannot read.
func (m *liloMap) within(a liloAddr) error {
	limit := int64(math.MaxUint32)
	if m.mode == liloLinear {
		// The last cylinders of a disk can be missing in what the BIOS reports.
		limit = min(liloReach, m.g.Disk.Size()/liloSector-2*liloCylinder)
	}
	if a.lba <= 0 || a.lba+a.sectors > limit {
		return fmt.Errorf("LBA %d, %d sectors: %w of LBA %d", a.lba, a.sectors, ondisk.ErrLimit, limit)
	}
	return nil
}

// encoder makes of a shift what a reference needs: the bytes for another place of the sector that lies at points.
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

// shiftNumbers moves LBAs of 32 bits.
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

// liloMover moves a row of addresses.
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

// shiftAt moves addresses at some places, each for itself.
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

// shiftPages moves the addresses in sectors of them.
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

// liloPage calls do for each address in a sector of them, and next for that of the next sector. Zeros end the row.
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

// sealed makes a shift that sets the checksum at a place, over all in front of it.
func (shift liloShift) sealed(at int64) liloShift {
	return func(b []byte, by int64) error {
		err := shift(b, by)
		binary.LittleEndian.PutUint32(b[at:], liloSum(b[:at]))
		return err
	}
}

// liloSum is CRC-32 with its bits in the order of the wire, as bzip2 has it. Spec: LILO 24, src/common.c, crc32.
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
