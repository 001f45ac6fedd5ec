package ntfs

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unicode/utf16"

	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

const (
	maxAttrList  = 1 << 20 // bytes
	maxAttrParts = 1 << 12 // parts of one value; 65,536 runs need about 1,300
)

// node is a file or a folder: its base record, and the attribute list if it has other records.
type node struct {
	fs   *fileSystem
	path string
	rec  *record
	list []byte // nil without $ATTRIBUTE_LIST
}

// node reads the base record of a file or folder by its reference.
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

// own visits the attributes of a type in the base record, filtered by name.
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

// each visits the attributes of a type in all records of the file, filtered by name, in the order of the attribute
// list.
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
		if rec, err = node.extension(e.ref, rec); err != nil {
			return err
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

// read assembles the value of an attribute. v.found reports whether the attribute exists. The name is in UTF-16.
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

// extension loads a record of the attribute list, if it is not the last one loaded. Attribute lists in that record are
// ignored, so that lists cannot nest.
func (node *node) extension(ref ref, last *record) (*record, error) {
	if last != nil && last.number == ref.number && last.Sequence == ref.sequence {
		return last, nil
	}
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

// passable returns an error for reparse points: links, mount points, files compressed by WOF or replaced by
// deduplication.
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

// reparseTag returns the name of a reparse tag. Spec: MS-FSCC 2.1.2.1.
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

// utf16le encodes a string in UTF-16, little-endian, as NTFS stores names.
func utf16le(s string) string {
	var b []byte
	for _, u := range utf16.Encode([]rune(s)) {
		b = binary.LittleEndian.AppendUint16(b, u)
	}
	return string(b)
}

// extent is a decoded element of a run list, in clusters.
type extent struct {
	length int64
	start  int64 // extentHole for a hole
}

const extentHole = -1

var errRunList = errors.New("broken run list")

// runList decodes the runs of an attribute, and calls add for each. The first byte of a run holds the sizes of its
// length (low half) and start (high half). A start is relative to the previous start. A zero byte ends the list. Spec:
// Linux-NTFS documentation, "Data Runs".
func runList(b []byte, clusters int64, add func(extent) error) error {
	last := int64(0)
	for len(b) > 0 && b[0] != 0 {
		n, m := int(b[0]&15), int(b[0]>>4)
		if n == 0 || n > 8 || m > 8 || 1+n+m > len(b) {
			return fmt.Errorf("%w: header %#02x, with %d bytes behind it", errRunList, b[0], len(b)-1)
		}
		e := extent{length: signed(b[1 : 1+n]), start: extentHole}
		if e.length <= 0 {
			return fmt.Errorf("%w: %d clusters", errRunList, e.length)
		}
		if m > 0 {
			delta := signed(b[1+n : 1+n+m])
			if delta < -last || delta >= clusters-last || e.length > clusters-last-delta {
				return fmt.Errorf("%w: %d clusters from cluster %d%+d of %d", errRunList, e.length, last, delta,
					clusters)
			}
			last += delta
			e.start = last
		}
		if err := add(e); err != nil {
			return err
		}
		b = b[1+n+m:]
	}
	return nil
}

// eachRun calls add for each run of an attribute.
func (r *record) eachRun(a *attr, clusters int64, add func(extent) error) error {
	err := runList(a.runs, clusters, add)
	if errors.Is(err, errRunList) {
		return r.broken(a.at+int64(a.RunOffset), "runs", err.Error(), "a run list")
	}
	return err
}

// signed decodes a little-endian number of 1 to 8 bytes.
func signed(b []byte) int64 {
	n := int64(int8(b[len(b)-1])) //nolint:gosec // the byte with the sign
	for _, c := range slices.Backward(b[:len(b)-1]) {
		n = n<<8 | int64(c)
	}
	return n
}

// value is the value of an attribute, assembled from its parts.
type value struct {
	fs      *fileSystem
	growing bool // the value is the MFT: its first runs locate the records with the others

	found       bool
	at          int64 // offset of its last part in the volume, for errors
	resident    bool
	flags       uint16
	size        int64
	initialised int64
	clusters    int64           // decoded so far, which is also the lowest VCN of the next part
	runs        []guestfile.Run // sorted by Off, without holes; they may extend past size
}

// add adds the next part of the value, an attribute of rec.
func (v *value) add(rec *record, a *attr) error {
	switch {
	case v.found && (v.resident || a.NonResident == 0):
		return rec.broken(a.at, "attribute", fmt.Sprintf("%#x again", a.Type), "one value")
	case a.LowestVCN != v.clusters:
		return rec.broken(a.at+0x10, "lowest cluster", a.LowestVCN, fmt.Sprintf("%d, which comes next", v.clusters))
	}
	v.flags |= a.Flags
	v.at = rec.places[0].Off + a.at
	if a.NonResident == 0 {
		v.found, v.resident, v.size = true, true, int64(a.residentHead.Size)
		v.initialised = v.size
		v.runs = rec.where(a.at+int64(a.Offset), v.size)
		return nil
	}
	if !v.found {
		v.found, v.size, v.initialised = true, a.nonResidentHead.Size, a.Initialised
	}
	if err := rec.eachRun(a, v.fs.clusters, v.extend); err != nil {
		return err
	}
	if v.clusters != a.HighestVCN+1 && (v.clusters != 0 || a.HighestVCN != 0) {
		return rec.broken(a.at+0x18, "highest cluster", a.HighestVCN,
			fmt.Sprintf("%d, as there are runs", v.clusters-1))
	}
	if !v.growing {
		return nil
	}
	if err := v.fs.budget.Work.Spend(guestfile.RunCost * int64(len(v.runs))); err != nil {
		return err
	}
	var err error // the MFT up to its last known run
	v.fs.mft, err = guestfile.NewFile(v.fs.volume, "$MFT", min(v.initialised, v.clusters*v.fs.cluster), v.runs)
	return err
}

// extend appends a run.
func (v *value) extend(e extent) error {
	if e.length > v.fs.vcnLimit()-v.clusters {
		return fmt.Errorf("%w: %d clusters behind %d", errRunList, e.length, v.clusters)
	}
	if e.start != extentHole {
		if len(v.runs) == guestfile.MaxRuns {
			return fmt.Errorf("ntfs file: %w of %d runs", ondisk.ErrLimit, guestfile.MaxRuns)
		}
		v.runs = append(v.runs, guestfile.Run{
			Off: v.clusters * v.fs.cluster, Len: e.length * v.fs.cluster,
			At: e.start * v.fs.cluster,
		})
	}
	v.clusters += e.length
	return nil
}

// plain returns an error for a file without unnamed data, and for encrypted or compressed data, which is not stored as
// the file reads.
func (v *value) plain(path string) error {
	switch {
	case !v.found:
		return fmt.Errorf("file %.256q: %w: it has no unnamed data", path, ondisk.ErrUnsupported)
	case v.flags&attrEncrypted != 0:
		return fmt.Errorf("file %.256q: %w: it is encrypted", path, ondisk.ErrUnsupported)
	case v.flags&attrCompressed != 0 && !v.resident:
		return fmt.Errorf("file %.256q: %w: it is compressed", path, ondisk.ErrUnsupported)
	}
	return nil
}

// file returns the value as a file, after checking its sizes and runs.
func (v *value) file(path string) (*guestfile.File, error) {
	broken := func(field string, got, want any) error {
		return ondisk.Field(fmt.Sprintf("ntfs file %.256q", path), field, v.at, got, want)
	}
	switch {
	case !v.found:
		return nil, broken("attributes", "none", "one with the value")
	case !v.resident && v.size > v.clusters*v.fs.cluster:
		return nil, broken("size", v.size, fmt.Sprintf("at most the %d clusters of its runs", v.clusters))
	}
	if err := v.fs.budget.Work.Spend(guestfile.RunCost * int64(len(v.runs))); err != nil {
		return nil, err
	}
	byPlace := slices.SortedFunc(slices.Values(v.runs), func(a, b guestfile.Run) int { return cmp.Compare(a.At, b.At) })
	for i := 1; i < len(byPlace); i++ {
		if a, b := byPlace[i-1], byPlace[i]; a.At+a.Len > b.At {
			return nil, broken("runs", fmt.Sprintf("bytes %d and %d both at %#x", a.Off+b.At-a.At, b.Off, b.At),
				"a place of its own for each byte")
		}
	}
	var runs []guestfile.Run
	for _, r := range v.runs {
		if r.Len = min(r.Len, v.initialised-r.Off); r.Len > 0 {
			runs = append(runs, r)
		}
	}
	return guestfile.NewFile(v.fs.volume, path, v.size, runs)
}
