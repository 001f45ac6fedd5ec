package ext

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/ondisk"
)

// Spec: Linux, Documentation/filesystems/ext4/ifork.rst, "Extent Tree".
const (
	extExtentMagic = 0xf30a
	extMaxDepth    = 5
	extEntry       = 12    // bytes of the header, of an index and of an extent
	extInitLen     = 32768 // blocks; above, an extent is not initialised
)

// extentHeader begins every node.
type extentHeader struct {
	Magic      uint16
	Entries    uint16
	Max        uint16
	Depth      uint16
	Generation uint32
}

// extentIndex points to a node.
type extentIndex struct {
	Block  uint32 // of the file
	LeafLo uint32
	LeafHi uint16
	_      uint16
}

// extent is a run of blocks of the file.
type extent struct {
	Block   uint32 // of the file
	Len     uint16
	StartHi uint16
	StartLo uint32
}

// extents reads a node of the tree.
func (m *blockMap) extents(node treeNode, raw []byte, off int64) ([]treeNode, error) {
	var h extentHeader
	ondisk.MustFill(raw, binary.LittleEndian, &h)
	most := len(raw)/extEntry - 1
	switch {
	case h.Magic != extExtentMagic:
		return nil, m.broken(off, "magic of the extents", fmt.Sprintf("%#04x", h.Magic), "0xf30a")
	case int(h.Max) > most || h.Max == 0:
		return nil, m.broken(off+4, "room for extents", h.Max, fmt.Sprintf("1 to %d", most))
	case h.Entries > h.Max:
		return nil, m.broken(off+2, "extents", h.Entries, fmt.Sprintf("at most %d", h.Max))
	case int(h.Depth) != node.level:
		return nil, m.broken(off+6, "depth of the tree", h.Depth, node.level)
	case node.level > extMaxDepth:
		return nil, m.broken(off+6, "depth of the tree", h.Depth, fmt.Sprintf("at most %d", extMaxDepth))
	}
	raw = raw[extEntry : extEntry+int(h.Entries)*extEntry]
	if node.level > 0 {
		return m.index(node, raw, off+extEntry)
	}
	for ; len(raw) > 0; raw, off = raw[extEntry:], off+extEntry {
		if err := m.extent(node, raw, off+extEntry); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// extent adds a leaf.
func (m *blockMap) extent(node treeNode, raw []byte, off int64) error {
	var e extent
	ondisk.MustFill(raw, binary.LittleEndian, &e)
	first, n := int64(e.Block), int64(e.Len)
	at := int64(e.StartHi)<<32 | int64(e.StartLo)
	empty := n > extInitLen // its blocks are taken but not written: it reads as zeros
	if empty {
		n -= extInitLen
	}
	if first < max(m.next, node.first) || first+n > node.end || n == 0 {
		return m.broken(off, "extent", fmt.Sprintf("of %d blocks from %d", n, first),
			fmt.Sprintf("one from %d to %d", max(m.next, node.first), node.end))
	}
	m.next = first + n
	if !empty || m.all != nil {
		return m.add(first, at, n, off)
	}
	return nil
}

// index returns the children of an inner node, the last one first. Their blocks are in order, and each ends where the
// next begins.
func (m *blockMap) index(node treeNode, raw []byte, off int64) ([]treeNode, error) {
	var out []treeNode
	for ; len(raw) > 0; raw, off = raw[extEntry:], off+extEntry {
		var x extentIndex
		ondisk.MustFill(raw, binary.LittleEndian, &x)
		child := treeNode{
			at: int64(x.LeafHi)<<32 | int64(x.LeafLo), level: node.level - 1, first: int64(x.Block), end: node.end,
		}
		least := node.first
		if k := len(out) - 1; k >= 0 {
			least, out[k].end = out[k].first+1, child.first
		}
		switch {
		case child.first < least || child.first >= node.end:
			return nil, m.broken(off, "first block of an index", child.first,
				fmt.Sprintf("%d to %d", least, node.end-1))
		case !m.fs.holds(child.at, 1):
			return nil, m.broken(off+4, "block of an index", child.at, fmt.Sprintf("less than %d", m.fs.blocks))
		}
		out = append(out, child)
	}
	slices.Reverse(out)
	return out, nil
}
