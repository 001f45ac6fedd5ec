package hive

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"unicode"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// Flags of a key node. Spec: "Key node".
const (
	keyCompressed = 0x20 // one byte per character in the name
	keyPredefined = 0x40 // a predefined handle, stored in the fields of the value list
)

// keyNode begins the cell of a key; its name follows. Spec: "Key node".
type keyNode struct {
	Signature    [2]byte // "nk"
	Flags        uint16
	LastWritten  uint64
	_            uint32
	Parent       uint32
	Subkeys      uint32
	_            uint32 // volatile subkeys, which are not in the file
	SubkeyList   uint32
	_            uint32
	Values       uint32
	ValueList    uint32
	Security     uint32
	Class        uint32
	_            [20]byte // the largest names and data below, and a scratch field
	NameLength   uint16   // bytes
	ClassNameLen uint16
}

const keyNodeSize = 76

// Key is a key of the registry.
type Key struct {
	Name string

	hive  *Hive
	off   uint32
	depth int // steps from the root
	node  keyNode
}

// root returns the root key. Its name has no meaning.
func (h *Hive) root() (*Key, error) { return h.key(h.base.RootCell) }

// Key finds the key at a path of names, ignoring case. It returns fs.ErrNotExist if the key is absent.
func (h *Hive) Key(path ...string) (*Key, error) {
	k, err := h.root()
	for _, name := range path {
		if err != nil {
			return nil, err
		}
		k, err = k.Subkey(name)
	}
	return k, err
}

// Subkey finds the subkey of k with a name, ignoring case. It returns fs.ErrNotExist if the subkey is absent.
func (k *Key) Subkey(name string) (*Key, error) {
	found, err := find(k.Subkeys(), func(c *Key) bool { return sameName(c.Name, name) })
	if err != nil {
		return nil, fmt.Errorf("registry key %.256q below %.256q: %w", name, k.Name, err)
	}
	return found, nil
}

// find returns the first wanted element. It skips a broken element, but returns its error if no wanted element follows:
// the broken one may have been wanted.
func find[T any](all iter.Seq2[T, error], wanted func(T) bool) (T, error) {
	var none T
	missing := fs.ErrNotExist
	for v, err := range all {
		switch {
		case err != nil && !errors.Is(err, ondisk.ErrFormat):
			return none, err
		case err != nil:
			if errors.Is(missing, fs.ErrNotExist) {
				missing = err
			}
		case wanted(v):
			return v, nil
		}
	}
	return none, missing
}

// key reads the node at an offset of the hive.
func (h *Hive) key(off uint32) (*Key, error) {
	const what = "registry key"
	c, err := h.cell(off, what)
	if err != nil {
		return nil, err
	}
	k := &Key{hive: h, off: off}
	if err := h.decode(c, what, &k.node); err != nil {
		return nil, err
	}
	if string(k.node.Signature[:]) != "nk" {
		return nil, ondisk.Field(what, "signature", c.at, k.node.Signature[:], "nk")
	}
	k.Name, err = h.name(c, what, keyNodeSize, int64(k.node.NameLength), k.node.Flags&keyCompressed != 0)
	return k, err
}

// Subkeys walks the direct subkeys of k in stored order. It continues after an ErrFormat that concerns a single subkey.
func (k *Key) Subkeys() iter.Seq2[*Key, error] {
	return func(yield func(*Key, error) bool) {
		if k.node.Subkeys == 0 {
			return
		}
		seen := int64(0)
		for off, err := range k.hive.subkeyOffsets(k.node.SubkeyList) {
			if err != nil {
				yield(nil, fmt.Errorf("subkeys of %.256q: %w", k.Name, err))
				return
			}
			if seen++; seen > int64(k.node.Subkeys) {
				break
			}
			if !yield(k.child(off)) {
				return
			}
		}
		if seen != int64(k.node.Subkeys) {
			yield(nil, ondisk.Field("registry key", "number of subkeys", baseSize+int64(k.off), k.node.Subkeys,
				"as many as are in its lists"))
		}
	}
}

// child reads a subkey of k. Each key stores its parent, so no path can reach a key twice. The parent of the root is
// never checked, so the root needs a check of its own.
func (k *Key) child(off uint32) (*Key, error) {
	if k.depth == maxDepth {
		return nil, fmt.Errorf("registry key below %.256q: %w of %d keys inside of each other", k.Name, ondisk.ErrLimit,
			maxDepth)
	}
	c, err := k.hive.key(off)
	if err != nil {
		return nil, err
	}
	if c.node.Parent != k.off || off == k.hive.base.RootCell {
		return nil, ondisk.Field("registry key", "parent", baseSize+int64(off), fmt.Sprintf("%#x", c.node.Parent),
			fmt.Sprintf("%#x, whose subkey it is", k.off))
	}
	c.depth = k.depth + 1
	return c, nil
}

// name reads n bytes from off of a cell. A compressed name has one byte per character, ASCII in the spec and Latin-1 in
// Windows; any other is UTF-16LE.
func (h *Hive) name(c cell, what string, off, n int64, compressed bool) (string, error) {
	if n > c.n-off || (!compressed && n%2 != 0) {
		return "", ondisk.Field(what, "name length", c.at, n, fmt.Sprintf("at most %d, and even for UTF-16", c.n-off))
	}
	if err := h.spend(n); err != nil {
		return "", err
	}
	b, err := h.bytes(c, off, n)
	if err != nil {
		return "", err
	}
	if compressed {
		return latin1(b), nil
	}
	return ondisk.UTF16(b, binary.LittleEndian), nil
}

func latin1(b []byte) string {
	if !slices.ContainsFunc(b, func(c byte) bool { return c >= 0x80 }) {
		return string(b)
	}
	runes := make([]rune, len(b))
	for i, c := range b {
		runes[i] = rune(c)
	}
	return string(runes)
}

// sameName compares names as Windows does: character by character in upper case.
func sameName(a, b string) bool {
	return slices.EqualFunc([]rune(a), []rune(b), func(x, y rune) bool { return x == y || upper(x) == upper(y) })
}

// upper is unicode.ToUpper, except for characters such as U+017F (long s) that become an ASCII letter there. The table
// of Windows keeps them.
func upper(r rune) rune {
	if u := unicode.ToUpper(r); r < 0x80 || u >= 0x80 {
		return u
	}
	return r
}

// listHeader begins each list of subkeys. Spec: "Index leaf" and following sections.
type listHeader struct {
	Signature [2]byte
	Count     uint16
}

const listHeaderSize = 4

// strides are the element sizes in bytes; each element begins with an offset, and hints for a search may follow.
var strides = map[string]int64{"li": 4, "lf": 8, "lh": 8, "ri": 4}

// list is a list of offsets.
type list struct {
	at     int64 // of the first element, in the file
	count  int64
	stride int64 // bytes
	root   bool  // a list of lists
}

// list reads the header of a list of subkeys.
func (h *Hive) list(off uint32) (list, error) {
	const what = "list of subkeys"
	c, err := h.cell(off, what)
	if err != nil {
		return list{}, err
	}
	var head listHeader
	if err := h.decode(c, what, &head); err != nil {
		return list{}, err
	}
	sig := string(head.Signature[:])
	l := list{c.at + listHeaderSize, int64(head.Count), strides[sig], sig == "ri"}
	switch {
	case l.stride == 0:
		return list{}, ondisk.Field(what, "signature", c.at, head.Signature[:], "lf, lh, li or ri")
	case l.count > (c.n-listHeaderSize)/l.stride:
		return list{}, tooMany(what, c, l.count, (c.n-listHeaderSize)/l.stride)
	}
	return l, nil
}

func tooMany(what string, c cell, got, most int64) error {
	return ondisk.Field(what, "number of elements", c.at, got,
		fmt.Sprintf("at most %d, for which its cell has room", most))
}

// offsets walks the elements of a list, if it could be read. It ends with the first error.
func (h *Hive) offsets(l list, err error) iter.Seq2[uint32, error] {
	return func(yield func(uint32, error) bool) {
		if err != nil {
			yield(0, err)
			return
		}
		for i := range l.count {
			err := h.spend(0)
			off := uint32(0)
			if err == nil {
				off, err = h.u32(l.at + i*l.stride)
			}
			if !yield(off, err) || err != nil {
				return
			}
		}
	}
}

// subkeyOffsets walks the key offsets in a list, or in the lists of an index root. It ends with the first error.
func (h *Hive) subkeyOffsets(off uint32) iter.Seq2[uint32, error] {
	l, err := h.list(off)
	if !l.root {
		return h.offsets(l, err)
	}
	return func(yield func(uint32, error) bool) {
		for off, err := range h.offsets(l, err) {
			for off, err := range h.offsets(h.leaf(off, err)) {
				if !yield(off, err) || err != nil {
					return
				}
			}
		}
	}
}

// leaf reads a list named in an index root. A root below a root is not allowed (spec: "Index root", note 1), so a walk
// always ends.
func (h *Hive) leaf(off uint32, err error) (list, error) {
	if err != nil {
		return list{}, err
	}
	l, err := h.list(off)
	if err == nil && l.root {
		err = ondisk.Field("list of subkeys", "signature", l.at-listHeaderSize, "ri", "lf, lh or li below ri")
	}
	return l, err
}

const (
	valueCompressed = 1       // flag: one byte per character in the name
	inlineData      = 1 << 31 // bit of DataSize: the data are in the DataOffset field
	inlineMost      = 4       // bytes
	inlineAt        = 8       // of DataOffset in the node
	valueNodeSize   = 20
)

// valueNode begins the cell of a value; its name follows. Spec: "Key value".
type valueNode struct {
	Signature  [2]byte // "vk"
	NameLength uint16  // bytes
	DataSize   uint32  // bytes, and inlineData
	DataOffset uint32
	Type       uint32
	Flags      uint16
	_          uint16
}

// Value is a value of a key.
type Value struct {
	Name string // empty for the default value
	Type uint32 // REG_SZ is 1, REG_BINARY 3, REG_DWORD 4
	Size int64  // bytes

	hive *Hive
	cell cell
	node valueNode
}

// Values walks the values of k in stored order. It continues after an ErrFormat that concerns a single value.
func (k *Key) Values() iter.Seq2[*Value, error] {
	return func(yield func(*Value, error) bool) {
		if k.node.Values == 0 || k.node.Flags&keyPredefined != 0 {
			return
		}
		l, err := k.hive.offsetList(k.node.ValueList, "list of values", int64(k.node.Values))
		for off, err := range k.hive.offsets(l, err) {
			if err != nil {
				yield(nil, fmt.Errorf("values of %.256q: %w", k.Name, err))
				return
			}
			if !yield(k.hive.value(off)) {
				return
			}
		}
	}
}

// offsetList finds a list of count offsets without a header: the values of a key, or segments. Spec: "Key values list".
func (h *Hive) offsetList(off uint32, what string, count int64) (list, error) {
	c, err := h.cell(off, what)
	if err != nil {
		return list{}, err
	}
	if count > c.n/4 {
		return list{}, tooMany(what, c, count, c.n/4)
	}
	return list{at: c.at, count: count, stride: 4}, nil
}

// Value finds the value with a name, ignoring case; the empty name is the default value. It returns fs.ErrNotExist if
// the value is absent.
func (k *Key) Value(name string) (*Value, error) {
	found, err := find(k.Values(), func(v *Value) bool { return sameName(v.Name, name) })
	if err != nil {
		return nil, fmt.Errorf("registry value %.256q of key %.256q: %w", name, k.Name, err)
	}
	return found, nil
}

// value reads the node at an offset of the hive.
func (h *Hive) value(off uint32) (*Value, error) {
	const what = "registry value"
	c, err := h.cell(off, what)
	if err != nil {
		return nil, err
	}
	v := &Value{hive: h, cell: c}
	if err := h.decode(c, what, &v.node); err != nil {
		return nil, err
	}
	n := &v.node
	v.Type, v.Size = n.Type, int64(n.DataSize&^inlineData)
	most := max(h.end-baseSize, 0)
	if n.DataSize&inlineData != 0 {
		most = inlineMost
	}
	switch {
	case string(n.Signature[:]) != "vk":
		return nil, ondisk.Field(what, "signature", c.at, n.Signature[:], "vk")
	case v.Size > most:
		return nil, ondisk.Field(what, "data size", c.at, v.Size, fmt.Sprintf("at most %d", most))
	}
	v.Name, err = h.name(c, what, valueNodeSize, int64(n.NameLength), n.Flags&valueCompressed != 0)
	return v, err
}

// Data reads the whole value. It returns ErrLimit above 1 MiB.
func (v *Value) Data() ([]byte, error) {
	if v.Size > maxData {
		return nil, fmt.Errorf("registry value %.256q of %d bytes: %w of %d bytes", v.Name, v.Size, ondisk.ErrLimit,
			maxData)
	}
	if v.Size == 0 {
		return []byte{}, nil
	}
	if err := v.hive.spend(v.Size); err != nil {
		return nil, err
	}
	places, err := v.Where(0, v.Size)
	if err != nil {
		return nil, err
	}
	out := make([]byte, v.Size)
	rest := out
	for _, r := range places {
		if err := v.hive.read(rest[:r.Len], r.Off); err != nil {
			return nil, err
		}
		rest = rest[r.Len:]
	}
	return out, nil
}

// Where returns the ranges of bytes [off, off+n) of the data in the file, in order. There are several if the data span
// cells.
func (v *Value) Where(off, n int64) ([]disk.Range, error) {
	if off < 0 || n <= 0 || off > v.Size || n > v.Size-off {
		return nil, fmt.Errorf("registry value %.256q: bytes %d to %d: %w: it has %d", v.Name, off, off+n-1,
			fs.ErrInvalid, v.Size)
	}
	if v.node.DataSize&inlineData != 0 {
		return []disk.Range{{Off: v.cell.at + inlineAt + off, Len: n}}, nil
	}
	c, err := v.hive.cell(v.node.DataOffset, "data of a registry value")
	if err != nil {
		return nil, err
	}
	big, err := v.big(c)
	switch {
	case err != nil:
		return nil, err
	case big != nil:
		return big.where(v.hive, off, n)
	case v.Size > c.n:
		return nil, ondisk.Field("data of a registry value", "size", c.at, v.Size,
			fmt.Sprintf("at most %d, the size of its cell", c.n))
	}
	return []disk.Range{{Off: c.at + off, Len: n}}, nil
}

const (
	segmentSize = 16344 // bytes of data in each segment but the last; shorter data are never split
	bigMinor    = 4     // hives of version 1.3 have no segments
)

// bigData is the cell that lists the segments of long data. Spec: "Big data".
type bigData struct {
	Signature [2]byte // "db"
	Count     uint16
	List      uint32
}

// segments are the cells of one value.
type segments struct {
	size int64 // of the data
	list list
}

// big finds the segments if c is a big data record. It returns nil if c holds the data themselves: programs other than
// Windows store long data in one piece.
func (v *Value) big(c cell) (*segments, error) {
	const what = "big data of a registry value"
	h := v.hive
	if v.Size <= segmentSize || h.base.Minor < bigMinor {
		return nil, nil //nolint:nilnil // not parted, which is no error
	}
	var b bigData
	if err := h.decode(c, what, &b); err != nil {
		return nil, err
	}
	if string(b.Signature[:]) != "db" {
		return nil, nil //nolint:nilnil // not parted
	}
	if want := (v.Size + segmentSize - 1) / segmentSize; int64(b.Count) != want {
		return nil, ondisk.Field(what, "number of segments", c.at, b.Count, want)
	}
	l, err := h.offsetList(b.List, what, int64(b.Count))
	return &segments{v.Size, l}, err
}

// where returns the ranges of bytes of the data.
func (s *segments) where(h *Hive, off, n int64) ([]disk.Range, error) {
	var out []disk.Range
	for n > 0 {
		i, skip := off/segmentSize, off%segmentSize
		c, err := s.segment(h, i)
		if err != nil {
			return nil, err
		}
		part := min(n, segmentSize-skip)
		out = append(out, disk.Range{Off: c.at + skip, Len: part})
		off, n = off+part, n-part
	}
	return out, nil
}

// segment finds the cell of segment i, and checks its size.
func (s *segments) segment(h *Hive, i int64) (cell, error) {
	const what = "segment of big data of a registry value"
	if err := h.spend(0); err != nil {
		return cell{}, err
	}
	off, err := h.u32(s.list.at + i*s.list.stride)
	if err != nil {
		return cell{}, err
	}
	c, err := h.cell(off, what)
	if err != nil {
		return cell{}, err
	}
	if want := min(segmentSize, s.size-i*segmentSize); c.n < want {
		return cell{}, ondisk.Field(what, "cell size", c.at, c.n, want)
	}
	return c, nil
}
