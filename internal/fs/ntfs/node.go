package ntfs

import (
	"encoding/binary"
	"fmt"
	"unicode/utf16"

	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

const (
	maxAttrList  = 1 << 20 // bytes
	maxAttrParts = 1 << 12 // records that the runs of one value are in: 65,536 runs need about 1,300
)

// node is a file or a folder: its base record, and the attribute list if it has other records.
type node struct {
	fs   *fileSystem
	path string
	rec  *record
	list []byte // nil: the record has all
}

// node reads the base record of a reference in a folder.
func (n *fileSystem) node(ref ref, path string) (*node, error) {
	rec, err := n.load(ref)
	if err != nil {
		return nil, err
	}
	if rec.Base != 0 {
		return nil, rec.broken(0x20, "base record", rec.Base, "none")
	}
	node := &node{fs: n, path: path, rec: rec}
	list := value{fs: n}
	if err := node.own(attrList, func(name string) bool { return name == "" }, list.add); err != nil || !list.found {
		return node, err
	}
	if node.list, err = list.bytes("$ATTRIBUTE_LIST", maxAttrList); err != nil {
		return nil, err
	}
	return node, nil
}

// bytes reads a value of at most limit bytes.
func (v *value) bytes(what string, limit int64) ([]byte, error) {
	f, err := v.upTo(what, limit)
	if err != nil {
		return nil, err
	}
	if err := v.fs.spend(f.Size()); err != nil {
		return nil, err
	}
	b := make([]byte, f.Size())
	return b, ondisk.ReadFull(f, b, 0)
}

// upTo returns a value as a file of at most limit bytes.
func (v *value) upTo(what string, limit int64) (*guestfile.File, error) {
	f, err := v.file(what)
	if err == nil && f.Size() > limit {
		err = fmt.Errorf("ntfs %s of %d bytes: %w of %d", what, f.Size(), ondisk.ErrLimit, limit)
	}
	return f, err
}

// own visits the attributes of a kind that the base record has, by their names.
func (node *node) own(kind uint32, wants func(name string) bool, visit func(*record, *attr) error) error {
	for i := range node.rec.attrs {
		if a := &node.rec.attrs[i]; a.Type == kind && wants(a.name) {
			if err := visit(node.rec, a); err != nil {
				return err
			}
		}
	}
	return nil
}

// each visits the attributes of a kind that the file has, by their names, in the order of its list.
func (node *node) each(kind uint32, wants func(name string) bool, visit func(*record, *attr) error) error {
	if node.list == nil {
		return node.own(kind, wants, visit)
	}
	var rec *record
	for b := node.list; len(b) > 0; {
		e, err := node.listed(b)
		if err != nil {
			return err
		}
		b = b[e.length:]
		if e.kind != kind || !wants(e.name) {
			continue
		}
		if rec == nil || rec.number != e.ref.number || rec.Sequence != e.ref.sequence {
			if rec, err = node.extension(e.ref); err != nil {
				return err
			}
		}
		a, err := rec.named(&e)
		if err == nil {
			err = visit(rec, a)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// read assembles a value. v.found reports whether there is one. The name is in UTF-16.
func (node *node) read(kind uint32, name string, v *value) error {
	parts := 0
	wants := func(n string) bool { return n == name }
	return node.each(kind, wants, func(rec *record, a *attr) error {
		if parts++; parts > maxAttrParts {
			return fmt.Errorf("file %.256q: %w of %d records", node.path, ondisk.ErrLimit, maxAttrParts)
		}
		return v.add(rec, a)
	})
}

// listed is an entry of an attribute list. Spec: Linux-NTFS documentation, "$ATTRIBUTE_LIST".
type listed struct {
	kind   uint32
	length int
	name   string // UTF-16
	ref    ref
	id     uint16
}

const listedSize = 0x1a // of an entry, without its name

// listed decodes the entry at the start of b.
func (node *node) listed(b []byte) (e listed, err error) {
	broken := func(got any) error {
		return node.rec.broken(0, "attribute list", got, fmt.Sprintf("an entry of 26 to %d bytes", len(b)))
	}
	if len(b) < listedSize {
		return e, broken(len(b))
	}
	e.kind, e.length = binary.LittleEndian.Uint32(b), int(binary.LittleEndian.Uint16(b[4:]))
	if e.length < listedSize || e.length > len(b) {
		return e, broken(e.length)
	}
	if from, n := int(b[7]), 2*int(b[6]); n > 0 {
		if from+n > e.length {
			return e, broken(from + n)
		}
		e.name = string(b[from : from+n])
	}
	e.ref = newRef(binary.LittleEndian.Uint64(b[0x10:]))
	e.id = binary.LittleEndian.Uint16(b[0x18:])
	return e, nil
}

// extension loads a record of the list. Attribute lists in it are ignored, so that lists cannot nest.
func (node *node) extension(ref ref) (*record, error) {
	if ref.number == node.rec.number {
		if ref.sequence != node.rec.Sequence {
			return nil, node.rec.broken(0x10, "sequence number", node.rec.Sequence,
				fmt.Sprintf("%d as in the attribute list", ref.sequence))
		}
		return node.rec, nil
	}
	rec, err := node.fs.load(ref)
	if err != nil {
		return nil, err
	}
	if base := newRef(rec.Base); rec.Base == 0 || base.number != node.rec.number || base.sequence != node.rec.Sequence {
		return nil, rec.broken(0x20, "base record", fmt.Sprintf("%#x", rec.Base),
			fmt.Sprintf("record %d", node.rec.number))
	}
	return rec, nil
}

// named returns the attribute that an entry of the list names.
func (r *record) named(e *listed) (*attr, error) {
	for i := range r.attrs {
		if a := &r.attrs[i]; a.Type == e.kind && a.ID == e.id && a.name == e.name {
			return a, nil
		}
	}
	return nil, r.broken(int64(r.AttrOffset), "attributes",
		fmt.Sprintf("none of type %#x with number %d", e.kind, e.id), "the one that the attribute list names")
}

// passable refuses files that stand for others: links, mount points, files that WOF compressed or deduplication
// removed.
func (node *node) passable() error {
	v := value{fs: node.fs}
	if err := node.read(attrReparse, "", &v); err != nil || !v.found {
		return err
	}
	tag := "an unknown tag"
	if b, err := v.bytes("$REPARSE_POINT", maxReparse); err != nil {
		return err
	} else if len(b) >= 4 {
		tag = reparseTag(binary.LittleEndian.Uint32(b))
	}
	return fmt.Errorf("file %.256q: %w: it is a reparse point (%s)", node.path, ondisk.ErrUnsupported, tag)
}

const maxReparse = 16 << 10 // bytes. Spec: MS-FSCC 2.1.2

// reparseTag names a kind of reparse points. Spec: MS-FSCC 2.1.2.1.
func reparseTag(tag uint32) string {
	switch tag {
	case 0xa0000003:
		return "mount point or junction"
	case 0xa000000c:
		return "symbolic link"
	case 0x80000013:
		return "deduplicated"
	case 0x80000017:
		return "compressed by WOF"
	}
	return fmt.Sprintf("tag %#08x", tag)
}

// utf16le encodes a text as NTFS stores it.
func utf16le(s string) string {
	var b []byte
	for _, u := range utf16.Encode([]rune(s)) {
		b = binary.LittleEndian.AppendUint16(b, u)
	}
	return string(b)
}
