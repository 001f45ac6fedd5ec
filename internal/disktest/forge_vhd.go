package disktest

import (
	"encoding/binary"
	"slices"
	"strings"
	"unicode/utf16"
)

// Places of the fields of a footer. Spec: Microsoft, Virtual Hard Disk Image Format Specification 1.0, "Hard Disk
// Footer Format".
const (
	VHDVersion      = 12
	VHDDataOffset   = 16
	VHDTimeStamp    = 24
	VHDCreator      = 28
	VHDOriginalSize = 40
	VHDCurrentSize  = 48
	VHDGeometry     = 56
	VHDType         = 60
	VHDChecksum     = 64
	VHDUniqueID     = 68
	VHDSavedState   = 84
)

// Places of the fields of a dynamic header. Spec: the same, "Dynamic Disk Header Format".
const (
	VHDTableOffset = 16
	VHDHeaderVer   = 24
	VHDMaxEntries  = 28
	VHDBlockSize   = 32
	VHDHeaderSum   = 36
	VHDParentID    = 40
	VHDParentName  = 64
	VHDLocators    = 576
)

const (
	vhdSector = 512
	vhdHeader = 1024
	vhdAbsent = 0xffffffff
)

// VHD is a valid file and where its parts lie, in bytes; a fixed one has only its footer.
type VHD struct {
	Forged
	Footer, Header, BAT int64
	Blocks              []int64 // where the bitmaps lie, 0 for a block that is not stored
}

// VHDLayout describes the file that ForgeVHD makes. The zero value is a dynamic disk as Virtual PC writes it.
type VHDLayout struct {
	Block     int64 // bytes, 2 MiB when 0
	Backwards bool  // the last block of the disk comes first in the file
	Cut       bool  // the last block of the disk ends where the disk does
	// Stored reports which sectors are in the file; nil for all of each block that is not zero. A sector that is not has
	// garbage in its place.
	Stored func(sector int64) bool
	ID     byte // 16 of these are the unique id
	Parent *VHDParent
}

// VHDParent describes the parent in a differencing disk.
type VHDParent struct {
	ID                       byte
	Relative, Absolute, Name string // left out when empty
}

// BE16 sets two bytes. The format is big-endian, unlike what Forged writes.
func (v *VHD) BE16(off int64, n uint16) { binary.BigEndian.PutUint16(v.Forged[off:], n) }

// BE32 sets four bytes.
func (v *VHD) BE32(off int64, n uint32) { binary.BigEndian.PutUint32(v.Forged[off:], n) }

// BE64 sets eight bytes.
func (v *VHD) BE64(off int64, n uint64) { binary.BigEndian.PutUint64(v.Forged[off:], n) }

// sum puts the one's complement of the sum of n bytes at off where it belongs. Spec: the same, "Checksum".
func (v *VHD) sum(off, n, at int64) {
	v.BE32(off+at, 0)
	var s uint32
	for _, b := range v.Forged[off : off+n] {
		s += uint32(b)
	}
	v.BE32(off+at, ^s)
}

// Foot changes both footers, or the one of a fixed disk, and sums them again.
func (v *VHD) Foot(change func(off int64)) {
	places := []int64{v.Footer}
	if v.Header != 0 {
		places = append(places, 0)
	}
	for _, off := range places {
		change(off)
		v.sum(off, vhdSector, VHDChecksum)
	}
}

// Head changes the dynamic header and sums it again.
func (v *VHD) Head(change func(off int64)) {
	change(v.Header)
	v.sum(v.Header, vhdHeader, VHDHeaderSum)
}

// foot writes a footer. The geometry covers the size when that is a multiple of 17 * 4 sectors.
func (v *VHD) foot(off, size int64, kind uint32, data uint64, id byte) {
	v.Text(off, "conectix")
	v.BE32(off+8, 2)
	v.BE32(off+VHDVersion, 0x10000)
	v.BE64(off+VHDDataOffset, data)
	v.BE32(off+VHDTimeStamp, 0x12345678)
	v.Text(off+VHDCreator, "vpc \x00\x05\x00\x03Wi2k")
	v.BE64(off+VHDOriginalSize, uint64(size))
	v.BE64(off+VHDCurrentSize, uint64(size))
	v.BE16(off+VHDGeometry, uint16(size/vhdSector/68))
	v.U8(off+VHDGeometry+2, 4)
	v.U8(off+VHDGeometry+3, 17)
	v.BE32(off+VHDType, kind)
	for i := range int64(16) {
		v.U8(off+VHDUniqueID+i, id)
	}
	v.sum(off, vhdSector, VHDChecksum)
}

// ForgeFixedVHD returns a disk with a footer behind it.
func ForgeFixedVHD(disk []byte) *VHD {
	v := &VHD{Forged: append(slices.Clone(Forged(disk)), make(Forged, vhdSector)...), Footer: int64(len(disk))}
	v.foot(v.Footer, int64(len(disk)), 2, 1<<64-1, 1)
	return v
}

// ForgeVHD stores the blocks of a disk that are not zero, or that have a sector to store.
func ForgeVHD(disk []byte, l VHDLayout) *VHD {
	if l.Block == 0 {
		l.Block = 2 << 20
	}
	kind := uint32(3)
	if l.Parent != nil {
		kind = 4
	}
	size := int64(len(disk))
	blocks := (size + l.Block - 1) / l.Block
	v := &VHD{Header: vhdSector, BAT: vhdSector + vhdHeader, Blocks: make([]int64, blocks)}
	v.Forged = make(Forged, v.BAT+(4*blocks+vhdSector-1)/vhdSector*vhdSector)
	for at := v.BAT; at < int64(len(v.Forged)); at += 4 {
		v.BE32(at, vhdAbsent)
	}
	v.Text(v.Header, "cxsparse")
	v.BE64(v.Header+8, 1<<64-1)
	v.BE64(v.Header+VHDTableOffset, uint64(v.BAT))
	v.BE32(v.Header+VHDHeaderVer, 0x10000)
	v.BE32(v.Header+VHDMaxEntries, uint32(blocks))
	v.BE32(v.Header+VHDBlockSize, uint32(l.Block))
	v.name(l.Parent)
	v.sum(v.Header, vhdHeader, VHDHeaderSum)
	for i := range blocks {
		if l.Backwards {
			i = blocks - 1 - i
		}
		v.addBlock(i, disk, l)
	}
	v.Footer = int64(len(v.Forged))
	v.Forged = append(v.Forged, make(Forged, vhdSector)...)
	v.foot(v.Footer, size, kind, vhdSector, l.ID)
	v.foot(0, size, kind, vhdSector, l.ID)
	return v
}

// addBlock stores block i behind what is there, if there is anything to store of it.
func (v *VHD) addBlock(i int64, disk []byte, l VHDLayout) {
	data := disk[i*l.Block : min((i+1)*l.Block, int64(len(disk)))]
	if l.Stored == nil && strings.Trim(string(data), "\x00") == "" {
		return
	}
	bitmap := make([]byte, (l.Block/vhdSector/8+vhdSector-1)/vhdSector*vhdSector)
	payload := slices.Repeat([]byte{0xaa}, int(l.Block))
	any := false
	for s := range int64(len(data)) / vhdSector {
		if l.Stored == nil || l.Stored(i*l.Block/vhdSector+s) {
			any = true
			bitmap[s/8] |= 0x80 >> (s % 8)
			copy(payload[s*vhdSector:], data[s*vhdSector:(s+1)*vhdSector])
		}
	}
	if !any {
		return
	}
	if l.Cut {
		payload = payload[:len(data)]
	}
	v.Blocks[i] = int64(len(v.Forged))
	v.BE32(v.BAT+4*i, uint32(v.Blocks[i]/vhdSector))
	v.Forged = append(append(v.Forged, bitmap...), payload...)
}

// name writes the names of the parent: two locators in sectors of their own, and the one in the header.
func (v *VHD) name(p *VHDParent) {
	if p == nil {
		return
	}
	for i := range int64(16) {
		v.U8(v.Header+VHDParentID+i, p.ID)
	}
	for i, c := range utf16.Encode([]rune(p.Name)) {
		v.BE16(v.Header+VHDParentName+2*int64(i), c)
	}
	at := v.Header + VHDLocators
	for _, l := range []struct{ code, text string }{{"W2ku", p.Absolute}, {"W2ru", p.Relative}} {
		if l.text == "" {
			continue
		}
		var b []byte
		for _, c := range utf16.Encode([]rune(l.text)) {
			b = binary.LittleEndian.AppendUint16(b, c)
		}
		place := len(v.Forged)
		v.Forged = append(v.Forged, make(Forged, vhdSector)...)
		v.Put(int64(place), b)
		v.Text(at, l.code)
		v.BE32(at+4, vhdSector)
		v.BE32(at+8, uint32(len(b)))
		v.BE64(at+16, uint64(place))
		at += 24
	}
}
