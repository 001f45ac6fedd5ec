package hive

import (
	"fmt"
	"io/fs"
	"iter"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

const (
	valueCompressed = 1       // flag: the name has a byte for each character
	inlineData      = 1 << 31 // bit of the data's size: they are in the field of their offset
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
	Name string // empty: the default value
	Type uint32 // REG_SZ is 1, REG_BINARY 3, REG_DWORD 4
	Size int64  // bytes

	hive *Hive
	cell cell
	node valueNode
}

// Values walks the values of k in stored order. It goes on behind an ErrFormat that concerns only one of them.
func (k *Key) Values() iter.Seq2[*Value, error] {
	return func(yield func(*Value, error) bool) {
		if k.node.Values == 0 || k.node.Flags&keyPredefined != 0 {
			return
		}
		l, err := k.hive.valueList(k.node)
		if err != nil {
			yield(nil, fmt.Errorf("values of %.256q: %w", k.Name, err))
			return
		}
		for off, err := range k.hive.offsets(l) {
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

// valueList finds the list of a key that has values. Spec: "Key values list".
func (h *Hive) valueList(node keyNode) (list, error) {
	const what = "list of values"
	c, err := h.cell(node.ValueList, what)
	if err != nil {
		return list{}, err
	}
	if int64(node.Values) > c.n/4 {
		return list{}, tooMany(what, c, int64(node.Values), c.n/4)
	}
	return list{at: c.at, count: int64(node.Values), stride: 4}, nil
}

// Value finds the value of that name, without regard to case; the empty name is the default value. fs.ErrNotExist if
// absent.
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
	if v.Name, err = h.name(c, what, valueNodeSize, int64(n.NameLength), n.Flags&valueCompressed != 0); err != nil {
		return nil, err
	}
	return v, nil
}

// Data reads all bytes; ErrLimit above 1 MiB.
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

// Where returns the places of bytes [off, off+n) of the data in the file, in order; several if they lie in several
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
	segmentSize = 16344 // bytes of data in each segment but the last; shorter data are never parted
	bigMinor    = 4     // hives of version 1.3 have no parted data
)

// bigData is the cell that names the segments of long data. Spec: "Big data".
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

// big finds the segments if c is the record of divided data. It returns nil if c holds the data themselves: other
// programs than Windows store long data in one piece.
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
	at, err := h.cell(b.List, what)
	if err != nil {
		return nil, err
	}
	if int64(b.Count) > at.n/4 {
		return nil, tooMany(what, at, int64(b.Count), at.n/4)
	}
	return &segments{v.Size, list{at: at.at, count: int64(b.Count), stride: 4}}, nil
}

// where returns the places of bytes of the data.
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
