// This part of the package finds what lies between a partition and its file systems: arrays, volume groups, pools,
// caches and encryption. Swap belongs to it, since a swap area can lie on a logical volume.

package volume

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// lvm finds a physical volume of LVM2.
var lvm = Prober{
	Kinds: []Traits{{
		Kind: LVM2, Title: "LVM2", Precedence: 2, Data: "first extent of LVM2",
		Realign: "to align its extents, move them (pvmove) to a physical volume made by pvcreate --dataalignment 1m",
	}},
	Marks: []Mark{
		{Off: 0, Bytes: lvmMark},
		{Off: 512, Bytes: lvmMark},
		{Off: 1024, Bytes: lvmMark},
		{Off: 1536, Bytes: lvmMark},
	},
	Probe: probeLVM,
}

// lvmLabel stands in one of the first four sectors. Spec: LVM2, lib/label/label.h, struct label_header.
type lvmLabel struct {
	ID     [8]byte // "LABELONE"
	Sector uint64  // its own place
	CRC    uint32  // from the next field to the end of the sector
	Offset uint32  // of the PV header in the sector
	Type   [8]byte // "LVM2 001"
}

// lvmPV is the header of a physical volume. Two lists of lvmArea follow: data areas and metadata areas, each ended by
// zeros. Spec: LVM2, lib/format_text/layout.h, struct pv_header.
type lvmPV struct {
	UUID [32]byte
	Size uint64 // of the device in bytes
}

// lvmArea is a place on the device in bytes. Spec: LVM2, lib/format_text/layout.h, struct disk_locn.
type lvmArea struct{ Offset, Size uint64 }

// lvmMetadata is the head of a metadata area, one sector. Spec: LVM2, lib/format_text/layout.h, struct mda_header.
type lvmMetadata struct {
	Checksum uint32 // of the rest of the sector
	Magic    [16]byte
	Version  uint32
	Start    uint64 // its own place on the device
	Size     uint64 // of the area with this sector
	Text     lvmText
	_        [448]byte // the text to be, and unused places
}

// lvmText is the place of a text in the ring behind the head of its area. Spec: LVM2, lib/format_text/layout.h, struct
// raw_locn.
type lvmText struct {
	Offset   uint64 // from the start of the area
	Size     uint64
	Checksum uint32
	Flags    uint32 // 1: this area is not used
}

const lvmMark = "LABELONE"

const (
	lvmLabelWhat = "lvm label"
	lvmPVWhat    = "lvm physical volume header"
	lvmAreaWhat  = "lvm metadata area"
	lvmMagic     = " LVM2 x[5A%r0N*>"

	lvmSectors  = 4 // where a label can stand
	lvmMaxText  = 1 << 20
	lvmSector   = 512 // the unit of all that LVM stores, whatever the device has
	lvmMaxAreas = 8
)

// lvmCRC returns the checksum of all LVM structures.
func lvmCRC(b []byte) uint32 {
	const initial = 0xf597a6cf
	return ^crc32.Update(^uint32(initial), crc32.IEEETable, b)
}

func probeLVM(d disk.Disk) (*Volume, error) {
	b, err := ReadBlock(d, 0, lvmSectors*lvmSector)
	if err != nil {
		return nil, err
	}
	for i := range int64(lvmSectors) {
		sector := b[i*lvmSector : (i+1)*lvmSector]
		if string(sector[:8]) == lvmMark && string(sector[24:32]) == "LVM2 001" {
			return probePV(d, sector, i)
		}
	}
	return nil, ondisk.ErrNoMatch
}

// probePV reads a physical volume by its label, which stands in a sector.
func probePV(d disk.Disk, sector []byte, number int64) (*Volume, error) {
	var l lvmLabel
	var pv lvmPV
	ondisk.MustFill(sector, binary.LittleEndian, &l)
	at := number * lvmSector
	const fixed = 40 // the size of lvmPV
	switch sum := lvmCRC(sector[20:]); {
	case l.CRC != sum:
		return nil, ondisk.Field(lvmLabelWhat, "checksum", at+16, Hex(l.CRC), Hex(sum))
	case l.Sector != ondisk.U64(number):
		return nil, ondisk.Field(lvmLabelWhat, "sector", at+8, l.Sector, number)
	case l.Offset < 32 || l.Offset > lvmSector-fixed:
		return nil, ondisk.Field(lvmLabelWhat, "offset", at+20, l.Offset, fmt.Sprintf("32 to %d", lvmSector-fixed))
	}
	ondisk.MustFill(sector[l.Offset:], binary.LittleEndian, &pv)
	p := &physicalVolume{d: d, uuid: dashed(pv.UUID[:]), v: &Volume{Kind: LVM2}}
	p.v.UUID = p.uuid
	if pv.Size > math.MaxInt64 {
		return nil, ondisk.Field(lvmPVWhat, "device size", at+int64(l.Offset)+32, pv.Size, "less than 2^63")
	}
	if err := p.areas(sector[l.Offset+fixed:], at+int64(l.Offset)+fixed); err != nil {
		return nil, err
	}
	p.v.Size = ondisk.I64(pv.Size)
	if p.v.Size == 0 {
		p.v.Size = d.Size()
	}
	return p.v, p.readGroup()
}

// physicalVolume is the state of reading a physical volume.
type physicalVolume struct {
	d        disk.Disk
	v        *Volume
	uuid     string
	metadata []lvmArea
}

// areas reads the two lists behind the header, which stand at at.
func (p *physicalVolume) areas(b []byte, at int64) error {
	size := ondisk.U64(p.d.Size())
	lists := 0
	for i := 0; lists < 2 && len(b) >= 16; i, b, at = i+1, b[16:], at+16 {
		var a lvmArea
		ondisk.MustFill(b, binary.LittleEndian, &a)
		switch {
		case a.Offset == 0:
			lists++
		case a.Offset >= size || a.Size > size-a.Offset:
			return ondisk.Field(lvmPVWhat, "area", at, fmt.Sprintf("%d bytes at %#x", a.Size, a.Offset),
				fmt.Sprintf("a place within the %d bytes there are", size))
		case lists == 0 && i == 0:
			p.v.DataStart = ondisk.I64(a.Offset)
		case lists == 1 && len(p.metadata) < lvmMaxAreas:
			p.metadata = append(p.metadata, a)
		}
	}
	if lists < 2 {
		return ondisk.Field(lvmPVWhat, "areas", at, "no end", "a list that ends in its sector")
	}
	return nil
}

// readGroup reads the volume group from the first metadata area that has one. A broken area is a warning, since the
// volume moves without it.
func (p *physicalVolume) readGroup() error {
	var broken error
	for _, a := range p.metadata {
		text, err := p.readText(ondisk.I64(a.Offset))
		if err == nil && text != nil {
			var g *volumeGroup
			if g, err = parseGroup(text); err == nil {
				g.describe(p)
				return p.hibernated()
			}
			err = fmt.Errorf("text of the lvm metadata area at %#x: %w", a.Offset, err)
		}
		switch {
		case isBroken(err):
			broken = err
		case err != nil:
			return err
		}
	}
	if broken != nil {
		p.v.Note("lvm-metadata", ondisk.Warn,
			"the metadata of the LVM2 cannot be read (places count from its start): "+broken.Error(),
			"run vgck in the guest")
	}
	return nil
}

// readText reads the text of a metadata area; nil if absent.
func (p *physicalVolume) readText(at int64) ([]byte, error) {
	if at > p.d.Size()-lvmSector {
		return nil, ondisk.Field(lvmAreaWhat, "place", at, at, "a whole sector within the device")
	}
	var m lvmMetadata
	head, err := ondisk.Decode(p.d, at, &m)
	if err != nil {
		return nil, err
	}
	end := ondisk.U64(p.d.Size() - at)
	switch sum := lvmCRC(head[4:]); {
	case string(m.Magic[:]) != lvmMagic:
		return nil, ondisk.Field(lvmAreaWhat, "magic", at+4, m.Magic[:], fmt.Sprintf("%q", lvmMagic))
	case m.Checksum != sum:
		return nil, ondisk.Field(lvmAreaWhat, "checksum", at, Hex(m.Checksum), Hex(sum))
	case m.Version != 1:
		return nil, ondisk.Field(lvmAreaWhat, "version", at+20, m.Version, 1)
	case m.Start != ondisk.U64(at):
		return nil, ondisk.Field(lvmAreaWhat, "start", at+24, m.Start, at)
	case m.Size <= lvmSector || m.Size > end:
		return nil, ondisk.Field(lvmAreaWhat, "size", at+32, m.Size, fmt.Sprintf("%d to %d", lvmSector+1, end))
	}
	if m.Text.Offset == 0 || m.Text.Flags&1 != 0 {
		return nil, nil
	}
	return p.ring(at, m)
}

// ring reads a text that may continue behind the head of its area when it reaches the end.
func (p *physicalVolume) ring(at int64, m lvmMetadata) ([]byte, error) {
	t := m.Text
	switch {
	case t.Offset < lvmSector || t.Offset >= m.Size:
		return nil, ondisk.Field(lvmAreaWhat, "text offset", at+40, t.Offset,
			fmt.Sprintf("%d to %d", lvmSector, m.Size-1))
	case t.Size == 0 || t.Size > lvmMaxText || t.Size > m.Size-lvmSector:
		return nil, ondisk.Field(lvmAreaWhat, "text size", at+48, t.Size,
			fmt.Sprintf("1 to %d", min(lvmMaxText, m.Size-lvmSector)))
	}
	first := min(t.Size, m.Size-t.Offset)
	text, err := ondisk.Bytes(p.d, at+ondisk.I64(t.Offset), ondisk.I64(first))
	if err != nil {
		return nil, err
	}
	rest, err := ondisk.Bytes(p.d, at+lvmSector, ondisk.I64(t.Size-first))
	if err != nil {
		return nil, err
	}
	text = append(text, rest...)
	if sum := lvmCRC(text); sum != t.Checksum {
		return nil, ondisk.Field(lvmAreaWhat, "text checksum", at+56, Hex(t.Checksum), Hex(sum))
	}
	return bytes.TrimRight(text, "\x00"), nil
}

// dashed formats an identifier as LVM does: groups of 6, 4, 4, 4, 4, 4 and 6 characters.
func dashed(id []byte) string {
	var groups []string
	for _, n := range []int{6, 4, 4, 4, 4, 4, 6} {
		groups = append(groups, string(id[:n]))
		id = id[n:]
	}
	return plainID(strings.Join(groups, "-"))
}

// isBroken reports whether a structure is malformed or too large, and not an unreadable disk.
func isBroken(err error) bool {
	return errors.Is(err, ondisk.ErrFormat) || errors.Is(err, ondisk.ErrLimit)
}

// plainID replaces characters that no identifier has, so that reports can print it.
func plainID(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case '0' <= r && r <= '9', 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', r == '-', r == ':':
			return r
		}
		return '-'
	}, s)
}
