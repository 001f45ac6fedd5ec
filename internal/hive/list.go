package hive

import (
	"fmt"
	"iter"

	"github.com/trueup/trueup/internal/ondisk"
)

// listHeader begins each list of subkeys. Spec: "Index leaf" and what follows it.
type listHeader struct {
	Signature [2]byte
	Count     uint16
}

const listHeaderSize = 4

// strides are the sizes of elements in bytes; each begins with an offset, and hints for a search may follow.
var strides = map[string]int64{"li": 4, "lf": 8, "lh": 8, "ri": 4}

// list is a list of offsets.
type list struct {
	at     int64 // of the first, in the file
	count  int64
	stride int64 // bytes
	root   bool  // of lists
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

// offsets walks the elements of a list. It ends with the first error.
func (h *Hive) offsets(l list) iter.Seq2[uint32, error] {
	return func(yield func(uint32, error) bool) {
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

// subkeyOffsets walks the offsets of keys in a list, or in the lists of a root of lists. It ends with the first error.
func (h *Hive) subkeyOffsets(off uint32) iter.Seq2[uint32, error] {
	return func(yield func(uint32, error) bool) {
		l, err := h.list(off)
		if err != nil {
			yield(0, err)
			return
		}
		if !l.root {
			h.offsets(l)(yield)
			return
		}
		for off, err := range h.offsets(l) {
			leaf, err := h.leaf(off, err)
			if err != nil {
				yield(0, err)
				return
			}
			for off, err := range h.offsets(leaf) {
				if !yield(off, err) || err != nil {
					return
				}
			}
		}
	}
}

// leaf reads a list that a root of lists names. A root below a root is not allowed (spec: "Index root", note 1), so a
// walk comes to an end.
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
