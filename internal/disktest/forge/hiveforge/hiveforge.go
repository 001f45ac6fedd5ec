// Package hiveforge forges registry hives and their logs.
package hiveforge

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/trueup/trueup/internal/disktest/forge"
)

// Offsets in the base block of a registry hive, and sizes for truncation. Spec: "Windows registry file format
// specification".
const (
	Sequence1      = 4
	Sequence2      = 8
	Minor          = 24
	FileType       = 28
	RootCell       = 36
	BinsSize       = 40
	Checksum       = 508
	Bins           = 4096  // offset of the bins, and their unit
	hiveSegment    = 16344 // bytes of long data in each of their segments
	hiveBinHeader  = 32
	hiveNone       = 0xffffffff
	hiveLeafOfRoot = 3 // keys in a leaf below a root of lists: fewer than Windows takes, so that few keys have several
)

// Key is a key of a forged hive.
type Key struct {
	Name   string
	Keys   []Key
	Values []Value
	// kind of the list of Keys: li, lf, lh, or ri for a root of lists; empty: that of Windows of this version
	List string
	Wide bool // the name is UTF-16 even where it need not be
}

// Value is a value of a forged hive.
type Value struct {
	Name string // empty: the default value
	Type uint32
	Data []byte
	Wide bool
}

// New builds a clean registry hive of version 1.minor.
func New(minor uint32, root Key) forge.Bytes {
	f := &builder{out: make(forge.Bytes, Bins), minor: minor}
	f.security = f.cell(make([]byte, 16+20))
	at := f.key(&root, hiveNone, 0x2c) // the root of a hive, which cannot be deleted, with a name of bytes
	f.put(f.security, 0, []byte("sk"))
	f.put32(f.security, 4, f.security) // alone in the ring of security cells
	f.put32(f.security, 8, f.security)
	f.put32(f.security, 12, f.keys)
	f.put32(f.security, 16, 0x80000001) // a descriptor of version 1, which refers to itself and allows all
	f.put32(f.security, 20, 20)
	f.fill()
	out := f.out
	out.Text(0, "regf")
	out.U32(Sequence1, 7)
	out.U32(Sequence2, 7)
	out.U64(12, 131_000_000_000_000_000)
	out.U32(20, 1)
	out.U32(Minor, minor)
	out.U32(32, 1)
	out.U32(RootCell, at)
	out.U32(BinsSize, uint32(len(out)-Bins))
	out.U32(44, 1)
	out.Put(48, wide("forged"))
	Seal(out)
	return out
}

// Seal sets the checksum of the base block.
func Seal(f forge.Bytes) {
	sum := uint32(0)
	for i := 0; i < Checksum; i += 4 {
		sum ^= binary.LittleEndian.Uint32(f[i:])
	}
	switch sum {
	case 0:
		sum = 1
	case 0xffffffff:
		sum = 0xfffffffe
	}
	f.U32(Checksum, sum)
}

type builder struct {
	out      forge.Bytes
	room     int // bytes that are left in the last bin
	minor    uint32
	security uint32
	keys     uint32
}

// cell stores data in a new cell and gives its offset.
func (f *builder) cell(data []byte) uint32 {
	size := (4 + len(data) + 7) &^ 7
	if size > f.room {
		f.fill()
		f.newBin((hiveBinHeader + size + Bins - 1) / Bins * Bins)
	}
	at := len(f.out) - f.room
	f.out.U32(int64(at), uint32(-size))
	f.out.Put(int64(at)+4, data)
	f.room -= size
	return uint32(at - Bins)
}

// fill makes a free cell of the rest of the last bin.
func (f *builder) fill() {
	if f.room > 0 {
		f.out.U32(int64(len(f.out)-f.room), uint32(f.room))
		f.room = 0
	}
}

func (f *builder) newBin(size int) {
	at := len(f.out)
	f.out = append(f.out, make(forge.Bytes, size)...)
	f.out.Text(int64(at), "hbin")
	f.out.U32(int64(at)+4, uint32(at-Bins))
	f.out.U32(int64(at)+8, uint32(size))
	f.room = size - hiveBinHeader
}

// put writes into a cell that exists.
func (f *builder) put(cell uint32, off int64, b []byte) {
	f.out.Put(Bins+4+int64(cell)+off, b)
}

func (f *builder) put32(cell uint32, off int64, v uint32) {
	f.out.U32(Bins+4+int64(cell)+off, v)
}

// key stores a key and all below it.
func (f *builder) key(k *Key, parent uint32, flags uint16) uint32 {
	f.keys++
	name, compressed := hiveName(k.Name, k.Wide)
	if !compressed {
		flags &^= 0x20
	}
	node := make(forge.Bytes, 76+len(name))
	node.Text(0, "nk")
	node.U16(2, flags)
	node.U64(4, 131_000_000_000_000_000)
	node.U32(16, parent)
	node.U32(20, uint32(len(k.Keys)))
	for _, none := range []int64{28, 32, 40, 48} {
		node.U32(none, hiveNone)
	}
	node.U32(36, uint32(len(k.Values)))
	node.U32(44, f.security)
	node.U16(72, uint16(len(name)))
	node.Put(76, name)
	k.largest(node)
	at := f.cell(node)
	if len(k.Values) > 0 {
		f.put32(at, 40, f.values(k.Values))
	}
	if len(k.Keys) > 0 {
		f.put32(at, 28, f.subkeys(k, at))
	}
	return at
}

// largest fills the fields from which readers size their buffers.
func (k *Key) largest(node forge.Bytes) {
	key, value, data := 0, 0, 0
	for _, s := range k.Keys {
		key = max(key, len(wide(s.Name)))
	}
	for _, v := range k.Values {
		value, data = max(value, len(wide(v.Name))), max(data, len(v.Data))
	}
	node.U32(52, uint32(key))
	node.U32(60, uint32(value))
	node.U32(64, uint32(data))
}

// subkeys stores the subkeys of a key, in Windows' order, and their list.
func (f *builder) subkeys(k *Key, parent uint32) uint32 {
	keys := slices.SortedFunc(slices.Values(k.Keys), func(a, b Key) int {
		return cmp.Compare(strings.ToUpper(a.Name), strings.ToUpper(b.Name))
	})
	offsets := make([]uint32, len(keys))
	for i := range keys {
		offsets[i] = f.key(&keys[i], parent, 0x20)
	}
	kind := k.List
	if kind == "" {
		kind = f.leafKind()
	}
	if kind != "ri" {
		return f.leaf(kind, keys, offsets)
	}
	var leaves []uint32
	for i := 0; i < len(keys); i += hiveLeafOfRoot {
		end := min(i+hiveLeafOfRoot, len(keys))
		leaves = append(leaves, f.leaf(f.leafKind(), keys[i:end], offsets[i:end]))
	}
	return f.leaf("ri", nil, leaves)
}

// leafKind returns the kind of list that Windows uses: hashes since XP.
func (f *builder) leafKind() string {
	if f.minor >= 5 {
		return "lh"
	}
	return "lf"
}

func (f *builder) leaf(kind string, keys []Key, offsets []uint32) uint32 {
	out := append([]byte(kind), byte(len(offsets)), byte(len(offsets)>>8))
	for i, off := range offsets {
		out = binary.LittleEndian.AppendUint32(out, off)
		switch kind {
		case "lf":
			hint := make([]byte, 4)
			copy(hint, keys[i].Name)
			out = append(out, hint...)
		case "lh":
			hash := uint32(0)
			for _, c := range utf16.Encode([]rune(strings.ToUpper(keys[i].Name))) {
				hash = 37*hash + uint32(c)
			}
			out = binary.LittleEndian.AppendUint32(out, hash)
		}
	}
	return f.cell(out)
}

func (f *builder) values(values []Value) uint32 {
	var out []byte
	for i := range values {
		out = binary.LittleEndian.AppendUint32(out, f.value(&values[i]))
	}
	return f.cell(out)
}

func (f *builder) value(v *Value) uint32 {
	name, compressed := hiveName(v.Name, v.Wide)
	node := make(forge.Bytes, 20+len(name))
	node.Text(0, "vk")
	node.U16(2, uint16(len(name)))
	node.U32(4, uint32(len(v.Data)))
	node.U32(12, v.Type)
	if compressed {
		node.U16(16, 1)
	}
	node.Put(20, name)
	switch {
	case len(v.Data) <= 4:
		node.U32(4, uint32(len(v.Data))|1<<31)
		node.Put(8, v.Data)
	case len(v.Data) > hiveSegment && f.minor >= 4:
		node.U32(8, f.bigData(v.Data))
	default:
		node.U32(8, f.cell(v.Data))
	}
	return f.cell(node)
}

// bigData stores data in segments, as Windows does since XP.
func (f *builder) bigData(data []byte) uint32 {
	var segments []byte
	count := 0
	for part := range slices.Chunk(data, hiveSegment) {
		spare := make([]byte, len(part)+4) // hivex does not treat the last 4 bytes of a cell as data
		copy(spare, part)
		segments = binary.LittleEndian.AppendUint32(segments, f.cell(spare))
		count++
	}
	out := append([]byte("db"), byte(count), byte(count>>8))
	return f.cell(binary.LittleEndian.AppendUint32(out, f.cell(segments)))
}

// hiveName returns a name in its stored encoding, and whether each character is one byte.
func hiveName(name string, asWide bool) (raw []byte, compressed bool) {
	for _, r := range name {
		if asWide || r > 0xff {
			return wide(name), false
		}
		raw = append(raw, byte(r))
	}
	return raw, true
}

// wide returns a text in UTF-16LE.
func wide(s string) (out []byte) {
	for _, c := range utf16.Encode([]rune(s)) {
		out = binary.LittleEndian.AppendUint16(out, c)
	}
	return out
}
