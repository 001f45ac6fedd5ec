// Package vhdxforge forges VHDX files and their logs.
package vhdxforge

import (
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/trueup/trueup/internal/disktest/forge"
)

// Places in a VHDX. Spec: [MS-VHDX] 2.2, 2.6.1 and 2.3.1.
const (
	Header1  = 64 << 10
	Header2  = 128 << 10
	Regions1 = 192 << 10
	Regions2 = 256 << 10

	// Fields of a header, from its start.
	Sequence    = 8
	DataWrite   = 32
	vhdxLogGUID = 48
	LogVersion  = 64
	Version     = 66
	LogLength   = 68
	LogOffset   = 72

	vhdxHeader = 4 << 10
	vhdxTable  = 64 << 10
	vhdxSector = 4 << 10
	vhdxMiB    = 1 << 20
)

// States of a BAT entry. Spec: 2.5.1.
const (
	NotPresent = 0
	Undefined  = 1
	Zero       = 2
	Unmapped   = 3
	Present    = 6
	Partial    = 7
)

// GUIDs in the notation of the specification.
const (
	RegionBAT      = "2DC27766-F623-4200-9D64-115E9BFD4A08"
	RegionMetadata = "8B7CA206-4790-4B9A-B8FE-575F050F886E"

	Parameters  = "CAA16737-FA36-4D43-B3B6-33F0AA44E76B"
	DiskSize    = "2FA54224-CD1B-4876-B211-5DBED83BF4B8"
	vhdxDiskID  = "BECA12AB-B2E6-4523-93EF-C309E000C746"
	Logical     = "8141BF1D-A96F-4709-BA47-F233A8FAAB5F"
	Physical    = "CDA348C7-445D-4471-9CC9-E9885251C556"
	vhdxLocator = "A8D35F2D-B30B-454D-ABF7-D3D84834AB0C"
)

// GUID returns the 16 bytes of a GUID's text: its first three groups are little-endian.
func GUID(text string) []byte {
	b, err := hex.DecodeString(strings.NewReplacer("-", "", "{", "", "}", "").Replace(text))
	if err != nil || len(b) != 16 {
		panic("disktest: " + text + " is no GUID")
	}
	slices.Reverse(b[0:4])
	slices.Reverse(b[4:6])
	slices.Reverse(b[6:8])
	return b
}

// Layout describes the file that New makes. The zero value is a dynamic disk with blocks of 1 MiB and sectors
// of 512 bytes.
type Layout struct {
	Size      int64 // of the disk, bytes
	Block     int64 // bytes
	Logical   int64 // bytes
	Fixed     bool
	DataWrite string            // GUID; empty for DataWriteGUID
	Parent    map[string]string // keys of the parent locator; nil for a disk without a parent
	LogMiB    int64             // 0 for 1 MiB
}

// GUIDs of a forged disk.
const (
	DataWriteGUID = "5d0f8e1c-0001-4a00-8000-0123456789ab"
	DiskIDGUID    = "6c1b2a3d-77aa-4bbb-9ccc-ddeeff001122"
)

// File is a valid file and where its parts lie, in bytes: header section, log, metadata, BAT, blocks.
type File struct {
	forge.Bytes
	Layout
	Log, Metadata, BAT, Blocks int64
	items                      map[string]int64 // place of each metadata item
}

// New makes a disk without a block.
func New(l Layout) *File {
	l.Block, l.Logical, l.LogMiB = max(l.Block, vhdxMiB), max(l.Logical, 512), max(l.LogMiB, 1)
	if l.DataWrite == "" {
		l.DataWrite = DataWriteGUID
	}
	v := &File{Layout: l, Log: vhdxMiB, items: map[string]int64{}}
	v.Metadata = v.Log + l.LogMiB*vhdxMiB
	v.BAT = v.Metadata + vhdxMiB
	blocks := (l.Size + l.Block - 1) / l.Block
	chunks := (blocks + v.Ratio() - 1) / v.Ratio()
	v.Blocks = v.BAT + (8*chunks*(v.Ratio()+1)+vhdxMiB-1)/vhdxMiB*vhdxMiB
	v.Bytes = make(forge.Bytes, v.Blocks)
	v.Text(0, "vhdxfile")
	v.Put(8, utf16LE("forged"))
	for i, at := range []int64{Header1, Header2} {
		v.Text(at, "head")
		v.U64(at+Sequence, uint64(7+i))
		v.Put(at+DataWrite, GUID(l.DataWrite))
		v.U16(at+Version, 1)
		v.U32(at+LogLength, uint32(l.LogMiB*vhdxMiB))
		v.U64(at+LogOffset, uint64(v.Log))
	}
	v.SetRegions(
		Region{RegionBAT, uint64(v.BAT), uint32(v.Blocks - v.BAT), 1},
		Region{RegionMetadata, uint64(v.Metadata), vhdxMiB, 1},
	)
	v.forgeMetadata()
	v.Seal()
	return v
}

// Region is an entry of the region table. Spec: 2.2.3.2.
type Region struct {
	GUID     string
	Off      uint64
	Len      uint32
	Required uint32
}

// SetRegions writes both region tables, without their checksums.
func (v *File) SetRegions(regions ...Region) {
	for _, at := range []int64{Regions1, Regions2} {
		clear(v.Bytes[at : at+vhdxTable])
		v.Text(at, "regi")
		v.U32(at+8, uint32(len(regions)))
		for i, r := range regions {
			e := at + 16 + 32*int64(i)
			v.Put(e, GUID(r.GUID))
			v.U64(e+16, r.Off)
			v.U32(e+24, r.Len)
			v.U32(e+28, r.Required)
		}
	}
}

// forgeMetadata writes table and items. Spec: 2.6.
func (v *File) forgeMetadata() {
	le := binary.LittleEndian
	flags := uint32(0)
	if v.Fixed {
		flags |= 1
	}
	if v.Parent != nil {
		flags |= 2
	}
	v.Text(v.Metadata, "metadata")
	v.AddItem(Parameters, 4, le.AppendUint32(le.AppendUint32(nil, uint32(v.Block)), flags))
	v.AddItem(DiskSize, 6, le.AppendUint64(nil, uint64(v.Size)))
	v.AddItem(vhdxDiskID, 6, GUID(DiskIDGUID))
	v.AddItem(Logical, 6, le.AppendUint32(nil, uint32(v.Logical)))
	v.AddItem(Physical, 6, le.AppendUint32(nil, 4096))
	if v.Parent != nil {
		v.AddItem(vhdxLocator, 4, vhdxLocatorItem(v.Parent))
	}
}

// vhdxLocatorItem returns a parent locator with the keys in alphabetical order. Spec: 2.6.2.6.
func vhdxLocatorItem(pairs map[string]string) []byte {
	le := binary.LittleEndian
	keys := []string{}
	for k := range pairs {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	item := GUID("B04AEFB7-D19E-4A81-B789-25B8E9445913")
	item = le.AppendUint16(le.AppendUint16(item, 0), uint16(len(keys)))
	var texts []byte
	for _, k := range keys {
		key, value := utf16LE(k), utf16LE(pairs[k])
		at := 20 + 12*len(keys) + len(texts)
		item = le.AppendUint32(le.AppendUint32(item, uint32(at)), uint32(at+len(key)))
		item = le.AppendUint16(le.AppendUint16(item, uint16(len(key))), uint16(len(value)))
		texts = append(append(texts, key...), value...)
	}
	return append(item, texts...)
}

// AddItem appends an item to the metadata.
func (v *File) AddItem(id string, flags uint32, value []byte) {
	n := int64(binary.LittleEndian.Uint16(v.Bytes[v.Metadata+10:]))
	off := int64(vhdxTable) + 4096*n
	v.U16(v.Metadata+10, uint16(n+1))
	e := v.ItemEntry(n)
	v.Put(e, GUID(id))
	v.U32(e+16, uint32(off))
	v.U32(e+20, uint32(len(value)))
	v.U32(e+24, flags)
	v.Put(v.Metadata+off, value)
	v.items[id] = v.Metadata + off
}

// ItemEntry returns the place of entry n of the metadata table.
func (v *File) ItemEntry(n int64) int64 { return v.Metadata + 32 + 32*n }

// Item returns the place of the value of an item.
func (v *File) Item(id string) int64 { return v.items[id] }

// Ratio returns how many payload blocks a sector bitmap block serves. Spec: 2.4.
func (v *File) Ratio() int64 { return 1 << 23 * v.Logical / v.Block }

// Entry returns the offset of the BAT entry of a payload block, BitmapEntry that of the sector bitmap of a chunk. Spec:
// 2.5.
func (v *File) Entry(block int64) int64 { return v.BAT + 8*(block+block/v.Ratio()) }

// BitmapEntry returns the place of the BAT entry of a sector bitmap.
func (v *File) BitmapEntry(chunk int64) int64 {
	return v.BAT + 8*(chunk*(v.Ratio()+1)+v.Ratio())
}

// SetEntry writes a BAT entry.
func (v *File) SetEntry(at int64, state uint64, off int64) {
	v.U64(at, state|uint64(off/vhdxMiB)<<20)
}

// AddBlock appends data as a payload block, and returns its offset.
func (v *File) AddBlock(block int64, state uint64, data []byte) int64 {
	at := v.grow(v.Block)
	v.Put(at, data)
	v.SetEntry(v.Entry(block), state, at)
	return at
}

// AddBitmap stores the sector bitmap of a chunk: which sectors of it are present.
func (v *File) AddBitmap(chunk int64, present func(sector int64) bool) int64 {
	at := v.grow(vhdxMiB)
	for s := range min(int64(1<<23), v.Size/v.Logical-chunk<<23) {
		if present(chunk<<23 + s) {
			v.Bytes[at+s/8] |= 1 << (s % 8)
		}
	}
	v.SetEntry(v.BitmapEntry(chunk), Present, at)
	return at
}

func (v *File) grow(n int64) int64 {
	at := int64(len(v.Bytes))
	v.Bytes = append(v.Bytes, make([]byte, n)...)
	return at
}

// Fill stores the blocks of a disk that are not zero.
func (v *File) Fill(disk []byte) *File {
	for i := int64(0); i*v.Block < int64(len(disk)); i++ {
		data := disk[i*v.Block : min((i+1)*v.Block, int64(len(disk)))]
		if v.Fixed || slices.ContainsFunc(data, func(b byte) bool { return b != 0 }) {
			v.AddBlock(i, Present, data)
		}
	}
	return v
}

// Seal computes the checksums of both headers and both region tables.
func (v *File) Seal() *File {
	for _, at := range []int64{Header1, Header2} {
		SealAt(v.Bytes, at, vhdxHeader)
	}
	for _, at := range []int64{Regions1, Regions2} {
		SealAt(v.Bytes, at, vhdxTable)
	}
	return v
}

// SealAt computes the CRC-32C of a structure that has it in bytes 4 to 7.
func SealAt(f forge.Bytes, at, n int64) {
	f.U32(at+4, 0)
	f.U32(at+4, crc32.Checksum(f[at:at+n], crc32.MakeTable(crc32.Castagnoli)))
}

func utf16LE(s string) []byte {
	var b []byte
	for _, u := range utf16.Encode([]rune(s)) {
		b = binary.LittleEndian.AppendUint16(b, u)
	}
	return b
}

// AddData stores a text as the first block.
func (v *File) AddData(text string) *File {
	v.AddBlock(0, Present, []byte(text))
	return v
}
