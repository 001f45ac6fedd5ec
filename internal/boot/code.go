// Package boot knows what boots a disk and which absolute positions a move of a partition would break.
package boot

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
)

// Code is the program in a boot sector, named by what it does.
type Code struct {
	ID       string // "windows-2000", stable, for JSON
	Name     string // for people
	ReadsCHS bool   // finds its partition by the CHS bytes of the table, on some machines at least
	// HandsOver tells that the boot sector gets the address of its entry of the table in DS:SI, by which a loader finds its place
	// without hidden sectors. False where that is not known.
	HandsOver bool
}

// Identify names the code of an MBR (440 bytes).
func Identify(code []byte) Code {
	if ondisk.IsZero(code) {
		return Empty
	}
	if c := loader(code); c != Unknown {
		return c
	}
	for _, s := range signatures {
		if containsAll(code, s.all) {
			return s.code
		}
	}
	return generic(code)
}

func containsAll(b []byte, subs [][]byte) bool {
	for _, s := range subs {
		if !bytes.Contains(b, s) {
			return false
		}
	}
	return true
}

// loader knows boot loaders that put the same code into an MBR and into the boot sector of a partition.
func loader(code []byte) Code {
	switch {
	case len(code) >= 10 && (string(code[6:10]) == "LILO" || string(code[2:6]) == "LILO"):
		return Lilo
	case !bytes.Contains(code, []byte("GRUB ")) || !bytes.Contains(code, []byte("Geom")):
		return Unknown
	case code[0x3e] == 3: // major version of stage1; boot.img of GRUB 2 has a BPB there
		return GrubLegacy
	}
	return Grub2
}

// generic recognises the shape that all standard MBR programs share: they refer to the table, at its own place or at
// that of their copy, and read one sector through INT 13h. Code of another shape is unknown.
func generic(code []byte) Code {
	int13 := []byte{0xcd, 0x13}
	if !refersToTable(code) || !bytes.Contains(code, int13) {
		return Unknown
	}
	// mov ax,0201h or mov ah,02h: a read by cylinder, head and sector.
	if bytes.Contains(code, []byte{0xb8, 0x01, 0x02}) || bytes.Contains(code, []byte{0xb4, 0x02}) {
		return GenericCHS
	}
	// mov ah,42h, mov ax,42xxh: a read by LBA.
	if bytes.Contains(code, []byte{0xb4, 0x42}) || bytes.Contains(code, []byte{0x00, 0x42}) {
		return GenericLBA
	}
	return Unknown
}

// refersToTable looks for a 16-bit move or addition of the table's offset: at 7c00h, at 600h, or within the sector.
func refersToTable(code []byte) bool {
	for i := 1; i+1 < len(code); i++ {
		v := binary.LittleEndian.Uint16(code[i:])
		if (v == 0x7dbe || v == 0x07be || v == 0x01be) && (code[i-1]&0xf8 == 0xb8 || code[i-1] == 0x05 || code[i-1]&0xf8 == 0xc0) {
			return true
		}
	}
	return false
}

// stage is something that a boot loader in sector 0 loads from a place that can move. Partition 0: no partition is known to hold it, so
// that any move may matter.
type stage struct {
	partition int
	text      string
}

// blockLists finds what a boot loader in the MBR reads from elsewhere than the gap behind it, which never moves.
func blockLists(d disk.Disk, c Code, code []byte, parts []Partition) ([]stage, error) {
	var sector uint64
	switch c {
	case Grub2:
		sector = binary.LittleEndian.Uint64(code[0x5c:]) // boot.img: LBA of core.img
	default:
		return nil, nil
	}
	k := keeper{size: d.Size(), sector: d.SectorSize(), parts: parts}
	s, known := k.stage(sector, 1, c.Name+" in the MBR loads its next stage from LBA %d")
	if !known {
		return []stage{s}, nil
	}
	next, err := ondisk.Bytes(d, ondisk.I64(sector)*d.SectorSize(), 512)
	if err != nil {
		return nil, err
	}
	out := badList(c, next, k)
	if s.text != "" {
		out = append([]stage{s}, out...)
	}
	return out, nil
}

// keeper knows what lies where.
type keeper struct {
	size, sector int64
	parts        []Partition
}

// stage judges n sectors from one on: an empty text means the gap in front of the first partition. known tells whether the sectors
// are in the gap or in one partition. format takes the LBA.
func (k keeper) stage(first, n uint64, format string) (s stage, known bool) {
	sectors := ondisk.U64(k.size / k.sector)
	gap := sectors
	inside := 0
	for _, p := range k.parts {
		from, to := ondisk.U64(p.Off/k.sector), min(ondisk.U64(p.End()/k.sector), sectors)
		gap = min(gap, from)
		if p.Kind != table.Extended && first >= from && first < to && n <= to-first {
			inside = p.Number
		}
	}
	text := fmt.Sprintf(format, first)
	switch {
	case first > 0 && first < gap && n <= gap-first:
		return stage{}, true
	case inside > 0:
		return stage{inside, fmt.Sprintf("%s, inside partition %d", text, inside)}, true
	}
	return stage{0, fmt.Sprintf("%s, outside of the gap in front of the first partition (LBA 1 to %d)", text, gap-1)}, false
}

// badList walks the block list at the end of the first sector of core.img: entries of 12 bytes, down from 0x1f4, with start and length in
// sectors (u64, u16) and a segment. A length of 0 ends it.
func badList(c Code, sector []byte, k keeper) []stage {
	const top, size = 0x1f4, 12
	var out []stage
	for at := top; at >= 0x100; at -= size {
		start, n := binary.LittleEndian.Uint64(sector[at:]), uint64(binary.LittleEndian.Uint16(sector[at+8:]))
		if n == 0 {
			return out
		}
		s, _ := k.stage(start, n, "the block list of "+c.Name+" names LBA %d")
		said := slices.ContainsFunc(out, func(o stage) bool { return o.partition == s.partition })
		if s.text != "" && !said {
			out = append(out, s)
		}
	}
	return append(out, stage{0, "the block list of " + c.Name + " has no end"})
}
