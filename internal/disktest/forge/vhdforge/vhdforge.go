// Package vhdforge forges VHD files.
package vhdforge

import (
	"encoding/binary"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/trueup/trueup/internal/disktest/forge"
)

// Places of the fields of a footer. Spec: Microsoft, Virtual Hard Disk Image Format Specification 1.0, "Hard Disk
// Footer Format".
const (
	Version         = 12
	DataOffset      = 16
	TimeStamp       = 24
	Creator         = 28
	vhdOriginalSize = 40
	CurrentSize     = 48
	Geometry        = 56
	Type            = 60
	vhdChecksum     = 64
	UniqueID        = 68
	SavedState      = 84
)

// Places of the fields of a dynamic header. Spec: the same, "Dynamic Disk Header Format".
const (
	TableOffset  = 16
	HeaderVer    = 24
	MaxEntries   = 28
	BlockSize    = 32
	vhdHeaderSum = 36
	ParentID     = 40
	ParentName   = 64
	Locators     = 576
)

const (
	vhdSector = 512
	vhdHeader = 1024
	vhdAbsent = 0xffffffff
)

// File is a valid file and where its parts lie, in bytes; a fixed one has only its footer.
type File struct {
	forge.Bytes
	Footer, Header, BAT int64
	Blocks              []int64 // where the bitmaps lie, 0 for a block that is not stored
}

// Layout describes the file that New makes. The zero value is a dynamic disk as Virtual PC writes it.
type Layout struct {
	Block     int64 // bytes, 2 MiB when 0
	Backwards bool  // the last block of the disk comes first in the file
	Cut       bool  // the last block of the disk ends where the disk does
	// Stored reports which sectors are in the file; nil for all of each block that is not zero. A sector that is not
	// has
	// garbage in its place.
	Stored func(sector int64) bool
	ID     byte // 16 of these are the unique id
	Parent *Parent
}

// Parent describes the parent in a differencing disk.
type Parent struct {
	ID                       byte
	Relative, Absolute, Name string // omitted when empty
}

// sum puts the one's complement of the sum of n bytes at off where it belongs. Spec: the same, "Checksum".
func (v *File) sum(off, n, at int64) {
	v.BE32(off+at, 0)
	var s uint32
	for _, b := range v.Bytes[off : off+n] {
		s += uint32(b)
	}
	v.BE32(off+at, ^s)
}

// Foot changes both footers, or the one of a fixed disk, and sums them again.
func (v *File) Foot(change func(off int64)) {
	places := []int64{v.Footer}
	if v.Header != 0 {
		places = append(places, 0)
	}
	for _, off := range places {
		change(off)
		v.sum(off, vhdSector, vhdChecksum)
	}
}

// Head changes the dynamic header and sums it again.
func (v *File) Head(change func(off int64)) {
	change(v.Header)
	v.sum(v.Header, vhdHeader, vhdHeaderSum)
}

// foot writes a footer. The geometry covers the size when that is a multiple of 17 * 4 sectors.
func (v *File) foot(off, size int64, kind uint32, data uint64, id byte) {
	v.Text(off, "conectix")
	v.BE32(off+8, 2)
	v.BE32(off+Version, 0x10000)
	v.BE64(off+DataOffset, data)
	v.BE32(off+TimeStamp, 0x12345678)
	v.Text(off+Creator, "vpc \x00\x05\x00\x03Wi2k")
	v.BE64(off+vhdOriginalSize, uint64(size))
	v.BE64(off+CurrentSize, uint64(size))
	v.BE16(off+Geometry, uint16(size/vhdSector/68))
	v.U8(off+Geometry+2, 4)
	v.U8(off+Geometry+3, 17)
	v.BE32(off+Type, kind)
	for i := range int64(16) {
		v.U8(off+UniqueID+i, id)
	}
	v.sum(off, vhdSector, vhdChecksum)
}

// NewFixed returns a disk with a footer after it.
func NewFixed(disk []byte) *File {
	v := &File{
		Bytes:  append(slices.Clone(forge.Bytes(disk)), make(forge.Bytes, vhdSector)...),
		Footer: int64(len(disk)),
	}
	v.foot(v.Footer, int64(len(disk)), 2, 1<<64-1, 1)
	return v
}

// New stores the blocks of a disk that are not zero, or that have a sector to store.
func New(disk []byte, l Layout) *File {
	if l.Block == 0 {
		l.Block = 2 << 20
	}
	kind := uint32(3)
	if l.Parent != nil {
		kind = 4
	}
	size := int64(len(disk))
	blocks := (size + l.Block - 1) / l.Block
	v := &File{Header: vhdSector, BAT: vhdSector + vhdHeader, Blocks: make([]int64, blocks)}
	v.Bytes = make(forge.Bytes, v.BAT+(4*blocks+vhdSector-1)/vhdSector*vhdSector)
	for at := v.BAT; at < int64(len(v.Bytes)); at += 4 {
		v.BE32(at, vhdAbsent)
	}
	v.Text(v.Header, "cxsparse")
	v.BE64(v.Header+8, 1<<64-1)
	v.BE64(v.Header+TableOffset, uint64(v.BAT))
	v.BE32(v.Header+HeaderVer, 0x10000)
	v.BE32(v.Header+MaxEntries, uint32(blocks))
	v.BE32(v.Header+BlockSize, uint32(l.Block))
	v.name(l.Parent)
	v.sum(v.Header, vhdHeader, vhdHeaderSum)
	for i := range blocks {
		if l.Backwards {
			i = blocks - 1 - i
		}
		v.addBlock(i, disk, l)
	}
	v.Footer = int64(len(v.Bytes))
	v.Bytes = append(v.Bytes, make(forge.Bytes, vhdSector)...)
	v.foot(v.Footer, size, kind, vhdSector, l.ID)
	v.foot(0, size, kind, vhdSector, l.ID)
	return v
}

// addBlock appends block i, unless it is zero.
func (v *File) addBlock(i int64, disk []byte, l Layout) {
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
	v.Blocks[i] = int64(len(v.Bytes))
	v.BE32(v.BAT+4*i, uint32(v.Blocks[i]/vhdSector))
	v.Bytes = append(append(v.Bytes, bitmap...), payload...)
}

// name writes the names of the parent: two locators in sectors of their own, and the one in the header.
func (v *File) name(p *Parent) {
	if p == nil {
		return
	}
	for i := range int64(16) {
		v.U8(v.Header+ParentID+i, p.ID)
	}
	for i, c := range utf16.Encode([]rune(p.Name)) {
		v.BE16(v.Header+ParentName+2*int64(i), c)
	}
	at := v.Header + Locators
	for _, l := range []struct{ code, text string }{{"W2ku", p.Absolute}, {"W2ru", p.Relative}} {
		if l.text == "" {
			continue
		}
		var b []byte
		for _, c := range utf16.Encode([]rune(l.text)) {
			b = binary.LittleEndian.AppendUint16(b, c)
		}
		place := len(v.Bytes)
		v.Bytes = append(v.Bytes, make(forge.Bytes, vhdSector)...)
		v.Put(int64(place), b)
		v.Text(at, l.code)
		v.BE32(at+4, vhdSector)
		v.BE32(at+8, uint32(len(b)))
		v.BE64(at+16, uint64(place))
		at += 24
	}
}
