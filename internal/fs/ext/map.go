package ext

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// maxNodes limits the indirect blocks and extent blocks of one file: 65,536 map 256 GiB in pieces of 4 KiB.
const maxNodes = 1 << 16

// blockMap collects the runs of a file. Block numbers count from the start of the file, or from the start of the volume
// where the name is "at".
type blockMap struct {
	fs    *fileSystem
	inode *inode
	until int64 // size of the file in blocks
	next  int64 // first block of the file not mapped yet
	runs  []guestfile.Run
	seen  map[int64]bool // block numbers of nodes

	// all receives each run in place of runs, including blocks past the end of the file and unwritten extents.
	all func(guestfile.Run)
}

// treeNode is a block of the tree of extents, or an indirect block.
type treeNode struct {
	at    int64 // 0 in the inode
	level int   // 0 if its entries map blocks of the file
	first int64 // the node maps the blocks from first to end of the file
	end   int64
}

// blockRuns returns the runs of a file.
func (f *fileSystem) blockRuns(n *inode) ([]guestfile.Run, error) {
	m := &blockMap{fs: f, inode: n, until: (n.size + f.block - 1) / f.block, seen: map[int64]bool{}}
	if err := m.walk(); err != nil {
		return nil, err
	}
	return m.runs, m.disjoint()
}

// walk visits all nodes.
func (m *blockMap) walk() error {
	todo, err := m.roots()
	for err == nil && len(todo) > 0 {
		node := todo[len(todo)-1]
		var more []treeNode
		more, err = m.visit(node)
		todo = append(todo[:len(todo)-1], more...)
	}
	return err
}

// disjoint returns an error if a file uses a block twice, since a change of one part would change the other.
func (m *blockMap) disjoint() error {
	if err := m.fs.meter.Budget.Spend(guestfile.RunCost * int64(len(m.runs))); err != nil {
		return err
	}
	byPlace := slices.SortedFunc(slices.Values(m.runs), func(a, b guestfile.Run) int { return cmp.Compare(a.At, b.At) })
	for i := range byPlace[min(1, len(byPlace)):] {
		a, b := byPlace[i], byPlace[i+1]
		if a.At+a.Len > b.At {
			return m.broken(m.inode.at+atMap, "block", b.At/m.fs.block, "one that the file has only once")
		}
	}
	return nil
}

// roots returns the first nodes in reverse order.
func (m *blockMap) roots() ([]treeNode, error) {
	if !m.tree() {
		return m.direct()
	}
	depth := binary.LittleEndian.Uint16(m.inode.blockMap()[6:])
	return []treeNode{{level: int(depth), end: 1 << 32}}, nil
}

// tree reports whether extents map the file, rather than indirect blocks.
func (m *blockMap) tree() bool { return m.inode.flags()&flagExtents != 0 }

// visit reads a node and returns its children in reverse order.
func (m *blockMap) visit(node treeNode) ([]treeNode, error) {
	if node.at == 0 {
		return m.extents(node, m.inode.blockMap(), m.inode.at+atMap)
	}
	at := node.at * m.fs.block
	switch {
	case m.seen[node.at]:
		return nil, m.broken(at, "block", node.at, "one that the tree has not used yet")
	case len(m.seen) == maxNodes:
		return nil, fmt.Errorf("%s: %w of %d blocks that map others", m.inode.name(), ondisk.ErrLimit, maxNodes)
	}
	m.seen[node.at] = true
	raw := make([]byte, m.fs.block)
	if err := m.fs.read(raw, at); err != nil {
		return nil, err
	}
	if m.tree() {
		return m.extents(node, raw, at)
	}
	return m.indirect(node, raw, at)
}

func (m *blockMap) broken(off int64, field string, got, want any) error {
	return ondisk.Field(m.inode.name(), field, off, got, want)
}

// add adds n blocks of the file from block first. off is the byte offset of their entry in the volume.
func (m *blockMap) add(first, at, n, off int64) error {
	if !m.fs.holds(at, n) {
		return m.broken(off, "block", at, fmt.Sprintf("%d within the %d blocks of the volume", n, m.fs.blocks))
	}
	b := m.fs.block
	if m.all != nil {
		m.all(guestfile.Run{Off: first * b, Len: n * b, At: at * b})
		return nil
	}
	if n = min(n, m.until-first); n <= 0 {
		return nil // preallocated blocks past the end of the file
	}
	if k := len(m.runs) - 1; k >= 0 && m.runs[k].Off+m.runs[k].Len == first*b && m.runs[k].At+m.runs[k].Len == at*b {
		m.runs[k].Len += n * b
		return nil
	}
	if len(m.runs) == guestfile.MaxRuns {
		return fmt.Errorf("%s: %w of %d runs", m.inode.name(), ondisk.ErrLimit, guestfile.MaxRuns)
	}
	m.runs = append(m.runs, guestfile.Run{Off: first * b, Len: n * b, At: at * b})
	return nil
}

// direct maps the first twelve blocks of a file without extents. It returns its three indirect blocks in reverse order.
// Spec: Linux, Documentation/filesystems/ext4/blockmap.rst.
func (m *blockMap) direct() ([]treeNode, error) {
	const direct = 12
	raw, per := m.inode.blockMap(), m.fs.block/4
	if _, err := m.indirect(treeNode{end: direct}, raw[:direct*4], m.inode.at+atMap); err != nil {
		return nil, err
	}
	var out []treeNode
	first, span := int64(direct), per
	for i := range 3 {
		off := (direct + i) * 4
		at := int64(binary.LittleEndian.Uint32(raw[off:]))
		if at != 0 && first < m.until {
			if !m.fs.holds(at, 1) {
				return nil, m.broken(m.inode.at+atMap+int64(off), "indirect block", at,
					fmt.Sprintf("less than %d", m.fs.blocks))
			}
			out = append([]treeNode{{at: at, level: i, first: first, end: first + span}}, out...)
		}
		first, span = first+span, span*per
	}
	return out, nil
}

// indirect reads a block of block numbers. Number 0 is a hole.
func (m *blockMap) indirect(node treeNode, raw []byte, off int64) ([]treeNode, error) {
	var out []treeNode
	span := (node.end - node.first) / int64(len(raw)/4)
	for i := len(raw)/4 - 1; i >= 0 && node.level > 0; i-- {
		at, first := int64(binary.LittleEndian.Uint32(raw[4*i:])), node.first+int64(i)*span
		if at == 0 || first >= m.until {
			continue
		}
		if !m.fs.holds(at, 1) {
			return nil, m.broken(off+int64(4*i), "indirect block", at, fmt.Sprintf("less than %d", m.fs.blocks))
		}
		out = append(out, treeNode{at: at, level: node.level - 1, first: first, end: first + span})
	}
	for i := 0; i < len(raw)/4 && node.level == 0; i++ {
		if at := int64(binary.LittleEndian.Uint32(raw[4*i:])); at != 0 {
			if err := m.add(node.first+int64(i), at, 1, off+int64(4*i)); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// Spec: Linux, Documentation/filesystems/ext4/ifork.rst, "Extent Tree".
const (
	extExtentMagic = 0xf30a
	extMaxDepth    = 5
	extEntry       = 12    // bytes of a header, an index and an extent
	extInitLen     = 32768 // blocks; a longer extent is unwritten
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

// extents reads a node of the extent tree.
func (m *blockMap) extents(node treeNode, raw []byte, off int64) ([]treeNode, error) {
	var h extentHeader
	ondisk.Fill(raw, binary.LittleEndian, &h)
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

// extent adds an extent of a leaf.
func (m *blockMap) extent(node treeNode, raw []byte, off int64) error {
	var e extent
	ondisk.Fill(raw, binary.LittleEndian, &e)
	first, n := int64(e.Block), int64(e.Len)
	at := int64(e.StartHi)<<32 | int64(e.StartLo)
	empty := n > extInitLen // an unwritten extent: it reads as zeros
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

// index returns the children of an inner node in reverse order. Children are sorted, and each ends where the next
// begins.
func (m *blockMap) index(node treeNode, raw []byte, off int64) ([]treeNode, error) {
	var out []treeNode
	for ; len(raw) > 0; raw, off = raw[extEntry:], off+extEntry {
		var x extentIndex
		ondisk.Fill(raw, binary.LittleEndian, &x)
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
