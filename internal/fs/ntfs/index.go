package ntfs

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io/fs"
	"slices"
	"unicode/utf16"

	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// indexName is the name of the attributes of a file name index.
var indexName = utf16le("$I30")

// indexRootHead begins the value of $INDEX_ROOT. Spec: Linux-NTFS documentation, "$INDEX_ROOT".
type indexRootHead struct {
	Type      uint32 // attribute type of the keys
	Collation uint32
	BlockSize uint32 // bytes
	_         uint32
}

// indexHead follows indexRootHead in the root and the header of each block. Its offsets count from its own start.
type indexHead struct {
	Entries   uint32
	Used      uint32 // bytes
	Allocated uint32
	_         uint32
}

// indexBlockHeader begins a block of $INDEX_ALLOCATION. Spec: Linux-NTFS documentation, "$INDEX_ALLOCATION".
type indexBlockHeader struct {
	Magic [4]byte // "INDX"
	_     uint32  // fix-ups
	_     uint64
	VCN   int64
	Head  indexHead
}

const (
	collationFileName = 1

	indexRootSize  = 0x10
	indexHeadSize  = 0x10
	indexBlockHead = 0x18

	entrySize    = 0x10 // of an index entry without its key
	entrySubNode = 1
	entryLast    = 2

	keySize   = 0x42       // of a $FILE_NAME without its name
	keyFolder = 0x10000000 // the file has an index of names
)

// indexWalk walks the index of a folder, a B+ tree, in order. Names sort by the code units of their upper-case forms.
type indexWalk struct {
	fs      *fileSystem
	path    string
	at      int64           // offset of the folder's record in the volume, for errors
	blocks  *guestfile.File // nil if the root holds all entries
	block   int64           // bytes
	unit    int64           // bytes per unit of a block number
	want    []uint16        // upper-case name to find, nil for all names
	visited map[int64]bool
	stack   []frame
	names   int
}

// frame is a node on the path from the root to the current entry.
type frame struct {
	entries []byte // entries not visited yet
	below   bool   // the child node of the first entry is done
}

func (x *indexWalk) broken(field string, got, want any) error {
	return ondisk.Field(fmt.Sprintf("ntfs index of %.256q", "/"+x.path), field, x.at, got, want)
}

// names visits the names of a folder that equal want, ignoring case. A nil want matches all names.
func (node *node) names(want []uint16, visit func(*fileName) error) error {
	x, err := node.index(want)
	if err != nil {
		return err
	}
	return x.walk(visit)
}

// walk visits the names in order.
func (x *indexWalk) walk(visit func(*fileName) error) error {
	for len(x.stack) > 0 {
		name, err := x.step()
		if err != nil {
			return err
		}
		if name == nil || (len(name.name) == 1 && name.name[0] == '.') { // the root contains itself
			continue
		}
		if x.names++; x.names > guestfile.MaxEntries {
			return fmt.Errorf("folder %.256q: %w of %d names", x.path, ondisk.ErrLimit, guestfile.MaxEntries)
		}
		if err := visit(name); err != nil {
			return err
		}
	}
	return nil
}

// index starts a walk at the root.
func (node *node) index(want []uint16) (*indexWalk, error) {
	x := &indexWalk{fs: node.fs, path: node.path, at: node.rec.places[0].Off, want: want, visited: map[int64]bool{}}
	if !node.rec.dir() {
		return nil, fmt.Errorf("folder %.256q: %w", node.path, fs.ErrNotExist)
	}
	root := value{fs: node.fs}
	if err := node.read(attrIndexRoot, indexName, &root); err != nil {
		return nil, err
	}
	b, err := root.bytes("$INDEX_ROOT", maxRecord)
	if err != nil {
		return nil, err
	}
	if err := x.measure(b); err != nil {
		return nil, err
	}
	alloc := value{fs: node.fs}
	if err := node.read(attrIndexAlloc, indexName, &alloc); err != nil {
		return nil, err
	}
	if alloc.found {
		if x.blocks, err = alloc.file(node.path + ":$I30"); err != nil {
			return nil, err
		}
	}
	return x, x.push(b[indexRootSize:])
}

// measure decodes the block size and checks the key type in the value of $INDEX_ROOT.
func (x *indexWalk) measure(b []byte) error {
	if len(b) < indexRootSize+indexHeadSize {
		return x.broken("root", len(b), "32 bytes at least")
	}
	var r indexRootHead
	ondisk.Fill(b[:indexRootSize], binary.LittleEndian, &r)
	x.block = int64(r.BlockSize)
	switch {
	case r.Type != attrFileName || r.Collation != collationFileName:
		return x.broken("root", fmt.Sprintf("type %#x in order %d", r.Type, r.Collation), "names in the order of names")
	case x.block < stride || x.block > 64<<10 || !units.IsPowerOfTwo(x.block):
		return x.broken("block size", x.block, "a power of two from 512 to 65536")
	}
	x.unit = stride
	if x.fs.cluster <= x.block {
		x.unit = x.fs.cluster
	}
	return nil
}

// push enters the node at the start of b, which begins with an indexHead.
func (x *indexWalk) push(b []byte) error {
	var h indexHead
	ondisk.Fill(b[:indexHeadSize], binary.LittleEndian, &h)
	if h.Entries < indexHeadSize || h.Entries > h.Used || int64(h.Used) > int64(len(b)) {
		return x.broken("entries", fmt.Sprintf("bytes %d to %d", h.Entries, h.Used),
			fmt.Sprintf("some within %d bytes", len(b)))
	}
	if len(x.stack) == guestfile.MaxDepth {
		return fmt.Errorf("folder %.256q: %w of %d levels of its index", x.path, ondisk.ErrLimit, guestfile.MaxDepth)
	}
	x.stack = append(x.stack, frame{entries: b[h.Entries:h.Used]})
	return nil
}

// step visits the next entry, or descends to its child node. The name is nil if the step yields none.
func (x *indexWalk) step() (*fileName, error) {
	top := &x.stack[len(x.stack)-1]
	b := top.entries
	if len(b) < entrySize {
		return nil, x.broken("entries", "no last one", "one")
	}
	length, flags := int(binary.LittleEndian.Uint16(b[8:])), binary.LittleEndian.Uint16(b[12:])
	if length < entrySize || length > len(b) || length%8 != 0 {
		return nil, x.broken("entry length", length, fmt.Sprintf("a multiple of 8 from 16 to %d", len(b)))
	}
	e, last := b[:length], flags&entryLast != 0
	var name *fileName
	order := 1 // the last entry sorts behind all names
	if !last {
		var err error
		if name, err = x.name(e); err != nil {
			return nil, err
		}
		if order, err = x.compare(name); err != nil {
			return nil, err
		}
	}
	if flags&entrySubNode != 0 && !top.below && order >= 0 {
		if length < entrySize+8 {
			return nil, x.broken("entry length", length, "24 at least, with the node below")
		}
		top.below = true
		return nil, x.descend(binary.LittleEndian.Uint64(e[length-8:]))
	}
	top.entries, top.below = b[length:], false
	switch {
	case !last && order > 0: // all later entries, here and above, sort behind the name
		x.stack = nil
	case last:
		x.stack = x.stack[:len(x.stack)-1]
	case order == 0:
		return name, nil
	}
	return nil, nil //nolint:nilnil // no name at this step, as the comment on top promises
}

// compare compares a name with want, like cmp.Compare. It returns 0 if want is nil.
func (x *indexWalk) compare(n *fileName) (int, error) {
	if x.want == nil {
		return 0, nil
	}
	for i := range min(len(n.name), len(x.want)) {
		u, err := x.fs.upcase(n.name[i])
		if err != nil || u != x.want[i] {
			return cmp.Compare(u, x.want[i]), err
		}
	}
	return cmp.Compare(len(n.name), len(x.want)), nil
}

// descend enters an index block. A second visit of a block is an error.
func (x *indexWalk) descend(number uint64) error {
	blocks := int64(0)
	if x.blocks != nil {
		blocks = x.blocks.Size() / x.unit
	}
	if number >= ondisk.U64(blocks) || ondisk.I64(number)*x.unit > x.blocks.Size()-x.block {
		return x.broken("block", number, fmt.Sprintf("one within %d", blocks))
	}
	vcn := ondisk.I64(number)
	if x.visited[vcn] {
		return x.broken("block", vcn, "one that was not visited before")
	}
	x.visited[vcn] = true
	if err := x.fs.spend(x.block); err != nil {
		return err
	}
	raw := make([]byte, x.block)
	if err := ondisk.ReadFull(x.blocks, raw, vcn*x.unit); err != nil {
		return err
	}
	var h indexBlockHeader
	ondisk.Fill(raw[:indexBlockHead+indexHeadSize], binary.LittleEndian, &h)
	if string(h.Magic[:]) != "INDX" || h.VCN != vcn || !UndoFixups(raw, indexBlockHead+indexHeadSize) {
		return x.broken("block", fmt.Sprintf("%q with number %d", h.Magic, h.VCN),
			fmt.Sprintf("INDX with number %d and valid fix-ups", vcn))
	}
	return x.push(raw[indexBlockHead:])
}

// name decodes an entry: a reference, and a $FILE_NAME as the key.
func (x *indexWalk) name(e []byte) (*fileName, error) {
	key := int(binary.LittleEndian.Uint16(e[10:]))
	if key < keySize || entrySize+key > len(e) {
		return nil, x.broken("key length", key, fmt.Sprintf("66 to %d", len(e)-entrySize))
	}
	k := e[entrySize : entrySize+key]
	count := int(k[0x40])
	if count == 0 || keySize+2*count > len(k) {
		return nil, x.broken("name length", count, fmt.Sprintf("1 to %d", (len(k)-keySize)/2))
	}
	n := &fileName{
		ref: newRef(binary.LittleEndian.Uint64(e)), space: k[0x41], name: make([]uint16, count),
		dir: binary.LittleEndian.Uint32(k[0x38:])&keyFolder != 0,
	}
	if n.ref.sequence == 0 {
		return nil, x.broken("reference", fmt.Sprintf("record %d", n.ref.number), "one with a sequence number")
	}
	for i := range n.name {
		n.name[i] = binary.LittleEndian.Uint16(k[keySize+2*i:])
	}
	return n, nil
}

// spaceDOS is the namespace of a short name beside a long one. Spec: Linux-NTFS documentation, "$FILE_NAME".
const spaceDOS = 2

// fileName is a name in a folder.
type fileName struct {
	ref   ref
	name  []uint16
	space byte
	dir   bool
}

// text returns the name. NTFS allows unpaired surrogates, which become U+FFFD: such a file cannot be opened by name.
func (n *fileName) text() string { return string(utf16.Decode(n.name)) }

// upcaseTable is $UpCase: the upper-case form of each of 65,536 characters. It differs between versions of Windows, and
// decides which names are equal. Blocks are read on demand: most names need only the first.
type upcaseTable struct {
	file   ondisk.Source
	blocks [maxUpcase / upcaseBlock][]byte
}

// Sizes of $UpCase and of one read of it, in bytes.
const (
	maxUpcase   = 128 << 10
	upcaseBlock = 4 << 10
)

// findUpcase finds the upper-case table of the volume.
func (n *fileSystem) findUpcase() error {
	node, err := n.node(ref{number: upcaseRecord}, "$UpCase")
	if err != nil {
		return err
	}
	v := value{fs: n}
	if err := node.read(attrData, "", &v); err != nil {
		return err
	}
	if err := v.plain("$UpCase"); err != nil {
		return err
	}
	f, err := v.upTo("$UpCase", maxUpcase)
	if err != nil {
		return err
	}
	n.upper.file = f
	return n.spend(f.Size())
}

// upcase returns the upper-case form of a character. A character beyond the table is returned as is.
func (n *fileSystem) upcase(u uint16) (uint16, error) {
	const chars = upcaseBlock / 2
	t := &n.upper
	block, at := u/chars, 2*int(u%chars)
	if t.blocks[block] == nil {
		off := int64(block) * upcaseBlock
		b := make([]byte, max(0, min(upcaseBlock, t.file.Size()-off)))
		if err := ondisk.ReadFull(t.file, b, off); err != nil {
			return 0, err
		}
		t.blocks[block] = b
	}
	if b := t.blocks[block]; at+1 < len(b) {
		return binary.LittleEndian.Uint16(b[at:]), nil
	}
	return u, nil
}

// child finds a name in a folder. An exact match wins over names that differ by case alone, as POSIX programs create
// them.
func (node *node) child(name string) (*node, error) {
	path := name
	if node.path != "" {
		path = node.path + "/" + name
	}
	if !node.rec.dir() {
		return nil, fmt.Errorf("file %.256q: %w", path, fs.ErrNotExist)
	}
	want := utf16.Encode([]rune(name))
	upper := make([]uint16, len(want))
	for i, u := range want {
		var err error
		if upper[i], err = node.fs.upcase(u); err != nil {
			return nil, err
		}
	}
	var exact, folded *fileName
	rivals := false
	err := node.names(upper, func(n *fileName) error {
		switch {
		case slices.Equal(n.name, want):
			exact = n
		case folded == nil:
			folded = n
		case folded.ref != n.ref:
			rivals = true
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case exact != nil:
		folded = exact
	case rivals:
		return nil, fmt.Errorf("file %.256q: %w: several files have names that differ by case alone", path,
			ondisk.ErrUnsupported)
	case folded == nil:
		return nil, fmt.Errorf("file %.256q: %w", path, fs.ErrNotExist)
	}
	return node.fs.node(folded.ref, path[:len(path)-len(name)]+folded.text())
}
