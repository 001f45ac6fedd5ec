package disktest

import (
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"slices"
	"strings"
	"unicode/utf16"
)

// Places in a VHDX. Spec: [MS-VHDX] 2.2, 2.6.1 and 2.3.1.
const (
	VHDXHeader1  = 64 << 10
	VHDXHeader2  = 128 << 10
	VHDXRegions1 = 192 << 10
	VHDXRegions2 = 256 << 10

	// Fields of a header, from its start.
	VHDXSequence   = 8
	VHDXDataWrite  = 32
	VHDXLogGUID    = 48
	VHDXLogVersion = 64
	VHDXVersion    = 66
	VHDXLogLength  = 68
	VHDXLogOffset  = 72

	vhdxHeader = 4 << 10
	vhdxTable  = 64 << 10
	vhdxSector = 4 << 10
	vhdxMiB    = 1 << 20
)

// States of a BAT entry. Spec: 2.5.1.
const (
	VHDXNotPresent = 0
	VHDXUndefined  = 1
	VHDXZero       = 2
	VHDXUnmapped   = 3
	VHDXPresent    = 6
	VHDXPartial    = 7
)

// GUIDs of the specification, as their text stands there.
const (
	VHDXRegionBAT      = "2DC27766-F623-4200-9D64-115E9BFD4A08"
	VHDXRegionMetadata = "8B7CA206-4790-4B9A-B8FE-575F050F886E"

	VHDXParameters = "CAA16737-FA36-4D43-B3B6-33F0AA44E76B"
	VHDXDiskSize   = "2FA54224-CD1B-4876-B211-5DBED83BF4B8"
	VHDXDiskID     = "BECA12AB-B2E6-4523-93EF-C309E000C746"
	VHDXLogical    = "8141BF1D-A96F-4709-BA47-F233A8FAAB5F"
	VHDXPhysical   = "CDA348C7-445D-4471-9CC9-E9885251C556"
	VHDXLocator    = "A8D35F2D-B30B-454D-ABF7-D3D84834AB0C"
)

// VHDXGUID returns the 16 bytes of a GUID's text: its first three groups are little-endian.
func VHDXGUID(text string) []byte {
	b, err := hex.DecodeString(strings.NewReplacer("-", "", "{", "", "}", "").Replace(text))
	if err != nil || len(b) != 16 {
		panic("disktest: " + text + " is no GUID")
	}
	slices.Reverse(b[0:4])
	slices.Reverse(b[4:6])
	slices.Reverse(b[6:8])
	return b
}

// VHDXLayout describes the file that ForgeVHDX makes. The zero value is a dynamic disk with blocks of 1 MiB and sectors
// of 512 bytes.
type VHDXLayout struct {
	Size      int64 // of the disk, bytes
	Block     int64 // bytes
	Logical   int64 // bytes
	Fixed     bool
	DataWrite string            // GUID; empty for VHDXDataWriteGUID
	Parent    map[string]string // keys of the parent locator; nil for a disk that stands alone
	LogMiB    int64             // 0 for 1 MiB
}

// GUIDs of a forged disk.
const (
	VHDXDataWriteGUID = "5d0f8e1c-0001-4a00-8000-0123456789ab"
	VHDXDiskIDGUID    = "6c1b2a3d-77aa-4bbb-9ccc-ddeeff001122"
)

// VHDX is a valid file and where its parts lie, in bytes: header section, log, metadata, BAT, blocks.
type VHDX struct {
	Forged
	VHDXLayout
	Log, Metadata, BAT, Blocks int64
	items                      map[string]int64 // place of each metadata item
}

// ForgeVHDX makes a disk without a block.
func ForgeVHDX(l VHDXLayout) *VHDX {
	l.Block, l.Logical, l.LogMiB = max(l.Block, vhdxMiB), max(l.Logical, 512), max(l.LogMiB, 1)
	if l.DataWrite == "" {
		l.DataWrite = VHDXDataWriteGUID
	}
	v := &VHDX{VHDXLayout: l, Log: vhdxMiB, items: map[string]int64{}}
	v.Metadata = v.Log + l.LogMiB*vhdxMiB
	v.BAT = v.Metadata + vhdxMiB
	blocks := (l.Size + l.Block - 1) / l.Block
	chunks := (blocks + v.Ratio() - 1) / v.Ratio()
	v.Blocks = v.BAT + (8*chunks*(v.Ratio()+1)+vhdxMiB-1)/vhdxMiB*vhdxMiB
	v.Forged = make(Forged, v.Blocks)
	v.Text(0, "vhdxfile")
	v.Put(8, utf16LE("forged"))
	for i, at := range []int64{VHDXHeader1, VHDXHeader2} {
		v.Text(at, "head")
		v.U64(at+VHDXSequence, uint64(7+i))
		v.Put(at+VHDXDataWrite, VHDXGUID(l.DataWrite))
		v.U16(at+VHDXVersion, 1)
		v.U32(at+VHDXLogLength, uint32(l.LogMiB*vhdxMiB))
		v.U64(at+VHDXLogOffset, uint64(v.Log))
	}
	v.SetRegions(
		VHDXRegion{VHDXRegionBAT, uint64(v.BAT), uint32(v.Blocks - v.BAT), 1},
		VHDXRegion{VHDXRegionMetadata, uint64(v.Metadata), vhdxMiB, 1},
	)
	v.forgeMetadata()
	v.Seal()
	return v
}

// VHDXRegion is an entry of the region table. Spec: 2.2.3.2.
type VHDXRegion struct {
	GUID     string
	Off      uint64
	Len      uint32
	Required uint32
}

// SetRegions writes both region tables, without their checksums.
func (v *VHDX) SetRegions(regions ...VHDXRegion) {
	for _, at := range []int64{VHDXRegions1, VHDXRegions2} {
		clear(v.Forged[at : at+vhdxTable])
		v.Text(at, "regi")
		v.U32(at+8, uint32(len(regions)))
		for i, r := range regions {
			e := at + 16 + 32*int64(i)
			v.Put(e, VHDXGUID(r.GUID))
			v.U64(e+16, r.Off)
			v.U32(e+24, r.Len)
			v.U32(e+28, r.Required)
		}
	}
}

// forgeMetadata writes table and items. Spec: 2.6.
func (v *VHDX) forgeMetadata() {
	le := binary.LittleEndian
	flags := uint32(0)
	if v.Fixed {
		flags |= 1
	}
	if v.Parent != nil {
		flags |= 2
	}
	v.Text(v.Metadata, "metadata")
	v.AddItem(VHDXParameters, 4, le.AppendUint32(le.AppendUint32(nil, uint32(v.Block)), flags))
	v.AddItem(VHDXDiskSize, 6, le.AppendUint64(nil, uint64(v.Size)))
	v.AddItem(VHDXDiskID, 6, VHDXGUID(VHDXDiskIDGUID))
	v.AddItem(VHDXLogical, 6, le.AppendUint32(nil, uint32(v.Logical)))
	v.AddItem(VHDXPhysical, 6, le.AppendUint32(nil, 4096))
	if v.Parent != nil {
		v.AddItem(VHDXLocator, 4, VHDXLocatorItem(v.Parent))
	}
}

// VHDXLocatorItem returns a parent locator with the keys in alphabetical order. Spec: 2.6.2.6.
func VHDXLocatorItem(pairs map[string]string) []byte {
	le := binary.LittleEndian
	keys := []string{}
	for k := range pairs {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	item := VHDXGUID("B04AEFB7-D19E-4A81-B789-25B8E9445913")
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
func (v *VHDX) AddItem(id string, flags uint32, value []byte) {
	n := int64(binary.LittleEndian.Uint16(v.Forged[v.Metadata+10:]))
	off := int64(vhdxTable) + 4096*n
	v.U16(v.Metadata+10, uint16(n+1))
	e := v.ItemEntry(n)
	v.Put(e, VHDXGUID(id))
	v.U32(e+16, uint32(off))
	v.U32(e+20, uint32(len(value)))
	v.U32(e+24, flags)
	v.Put(v.Metadata+off, value)
	v.items[id] = v.Metadata + off
}

// ItemEntry returns the place of entry n of the metadata table.
func (v *VHDX) ItemEntry(n int64) int64 { return v.Metadata + 32 + 32*n }

// Item returns the place of the value of an item.
func (v *VHDX) Item(id string) int64 { return v.items[id] }

// Ratio returns how many payload blocks a sector bitmap block serves. Spec: 2.4.
func (v *VHDX) Ratio() int64 { return 1 << 23 * v.Logical / v.Block }

// Entry returns the place of the BAT entry of a payload block, BitmapEntry that of the sector bitmap of a chunk. Spec:
// 2.5.
func (v *VHDX) Entry(block int64) int64 { return v.BAT + 8*(block+block/v.Ratio()) }

// BitmapEntry returns the place of the BAT entry of a sector bitmap.
func (v *VHDX) BitmapEntry(chunk int64) int64 {
	return v.BAT + 8*(chunk*(v.Ratio()+1)+v.Ratio())
}

// SetEntry writes a BAT entry.
func (v *VHDX) SetEntry(at int64, state uint64, off int64) {
	v.U64(at, state|uint64(off/vhdxMiB)<<20)
}

// AddBlock stores data as a payload block behind what is there, and gives its place.
func (v *VHDX) AddBlock(block int64, state uint64, data []byte) int64 {
	at := v.grow(v.Block)
	v.Put(at, data)
	v.SetEntry(v.Entry(block), state, at)
	return at
}

// AddBitmap stores the sector bitmap of a chunk: which sectors of it are present.
func (v *VHDX) AddBitmap(chunk int64, present func(sector int64) bool) int64 {
	at := v.grow(vhdxMiB)
	for s := range min(int64(1<<23), v.Size/v.Logical-chunk<<23) {
		if present(chunk<<23 + s) {
			v.Forged[at+s/8] |= 1 << (s % 8)
		}
	}
	v.SetEntry(v.BitmapEntry(chunk), VHDXPresent, at)
	return at
}

func (v *VHDX) grow(n int64) int64 {
	at := int64(len(v.Forged))
	v.Forged = append(v.Forged, make([]byte, n)...)
	return at
}

// Fill stores the blocks of a disk that are not zero.
func (v *VHDX) Fill(disk []byte) *VHDX {
	for i := int64(0); i*v.Block < int64(len(disk)); i++ {
		data := disk[i*v.Block : min((i+1)*v.Block, int64(len(disk)))]
		if v.Fixed || slices.ContainsFunc(data, func(b byte) bool { return b != 0 }) {
			v.AddBlock(i, VHDXPresent, data)
		}
	}
	return v
}

// Seal computes the checksums of both headers and both region tables.
func (v *VHDX) Seal() *VHDX {
	for _, at := range []int64{VHDXHeader1, VHDXHeader2} {
		v.SealAt(at, vhdxHeader)
	}
	for _, at := range []int64{VHDXRegions1, VHDXRegions2} {
		v.SealAt(at, vhdxTable)
	}
	return v
}

// SealAt computes the CRC-32C of a structure that has it in bytes 4 to 7.
func (f Forged) SealAt(at, n int64) {
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
func (v *VHDX) AddData(text string) *VHDX {
	v.AddBlock(0, VHDXPresent, []byte(text))
	return v
}
