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
