package vmdk

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Bounds of a descriptor. A real one has some 30 lines.
const (
	maxText    = 1 << 20 // bytes
	maxLine    = 4096    // bytes
	maxExtents = 4096
	maxLines   = 2 * maxExtents // a line takes more memory than its two bytes of file
)

const what = "vmdk descriptor"

// line is one line of a descriptor. Lines are kept as they are: what we do not know goes into a copy unchanged.
type line struct {
	no   int // from 1
	text string
	key  string // lower case; empty for comments, blank lines and extents
	val  string // unquoted
	ext  *extent
}

// extent is one extent line: `RW 4192256 FLAT "disk-flat.vmdk" 0`. Spec: VMware Virtual Disk Format 1.1, "The Extent
// Description".
type extent struct {
	line   int
	access string // RW, RDONLY, NOACCESS
	size   int64  // bytes
	kind   string // FLAT, SPARSE, ZERO, VMFS, …
	name   string // in UTF-8
	stored string // the bytes of the name in the descriptor
	off    int64  // bytes, in the file
}

// descriptor is the text that lists what a VMDK is made of.
type descriptor struct {
	lines   []line
	extents []*extent
	crlf    bool
	charset string // of the text; empty for UTF-8
}

// parseDescriptor reads the text of a descriptor file, or of an embedded one (padded with zero bytes).
func parseDescriptor(text []byte) (*descriptor, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("%s of %d bytes: %w of %d bytes", what, len(text), ondisk.ErrLimit, maxText)
	}
	if bytes.HasPrefix(text, []byte("\xff\xfe")) || bytes.HasPrefix(text, []byte("\xfe\xff")) {
		return nil, ondisk.Field(what, "byte order mark", 0, text[:2], "UTF-8 text, not UTF-16")
	}
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	text, err := cutPadding(text)
	if err != nil {
		return nil, err
	}
	d := &descriptor{crlf: bytes.Contains(text, []byte("\r\n"))}
	for i, s := range strings.Split(string(text), "\n") {
		if err := d.add(i+1, strings.TrimSuffix(s, "\r")); err != nil {
			return nil, err
		}
	}
	d.charset, _ = d.get("encoding")
	for _, e := range d.extents {
		e.name = ondisk.DecodeText(d.charset, e.stored)
	}
	return d, d.checkOnce()
}

// maxStale is how many characters a rewritten CID can be shorter than the old one: qemu-img writes it without leading
// zeros.
const maxStale = 7

// cutPadding ends the text at its first zero byte. Behind it may stand zeros, or what qemu-img 7.2 leaves of a text
// that it replaced by a shorter one: the last bytes of the very same text.
func cutPadding(text []byte) ([]byte, error) {
	end := bytes.IndexByte(text, 0)
	if end < 0 {
		return text, nil
	}
	rest := bytes.TrimRight(text[end+1:], "\x00")
	if len(rest) > maxStale || !bytes.HasSuffix(text[:end], rest) {
		return nil, ondisk.Field(what, "text", int64(end), "\x00", "no zero byte before the end")
	}
	return text[:end], nil
}

func (d *descriptor) add(no int, s string) error {
	switch {
	case no > maxLines:
		return textErr(no, ondisk.ErrLimit, "more than %d lines", maxLines)
	case len(s) > maxLine:
		return textErr(no, ondisk.ErrLimit, "%d bytes long, at most %d are read", len(s), maxLine)
	case strings.ContainsRune(s, '\r'):
		return textErr(no, ondisk.ErrFormat, "carriage return inside a line, want lines that end with LF or CRLF")
	}
	l := line{no: no, text: s}
	t := strings.TrimSpace(s)
	if t == "" || strings.HasPrefix(t, "#") {
		d.lines = append(d.lines, l)
		return nil
	}
	var err error
	if key, val, ok := strings.Cut(t, "="); ok && !strings.ContainsRune(key, '"') {
		l.key = strings.ToLower(strings.TrimSpace(key))
		l.val, err = unquote(no, strings.TrimSpace(val))
	} else if len(d.extents) == maxExtents {
		err = textErr(no, ondisk.ErrLimit, "more than %d extents", maxExtents)
	} else {
		l.ext, err = parseExtent(no, t)
		d.extents = append(d.extents, l.ext)
	}
	d.lines = append(d.lines, l)
	return err
}

func textErr(no int, kind error, format string, args ...any) error {
	return &ondisk.TextError{What: what, Line: no, Msg: fmt.Sprintf(format, args...), Kind: kind}
}

func unquote(no int, v string) (string, error) {
	if !strings.HasPrefix(v, `"`) {
		return v, nil
	}
	if len(v) < 2 || !strings.HasSuffix(v, `"`) {
		return "", textErr(no, ondisk.ErrFormat, "unclosed quote in %.64q", v)
	}
	return v[1 : len(v)-1], nil
}

func parseExtent(no int, s string) (*extent, error) {
	head, rest, quoted := strings.Cut(s, `"`)
	f := strings.Fields(head)
	if len(f) < 3 {
		return nil, textErr(no, ondisk.ErrFormat, `%.64q is no comment, no "key = value" and no extent`, s)
	}
	e := &extent{line: no, access: strings.ToUpper(f[0]), kind: strings.ToUpper(f[2])}
	if e.access != "RW" && e.access != "RDONLY" && e.access != "NOACCESS" {
		return nil, textErr(no, ondisk.ErrFormat, "access %.32q, want RW, RDONLY or NOACCESS", f[0])
	}
	var err error
	if e.size, err = sectors(no, "extent size", f[1]); err != nil {
		return nil, err
	}
	if e.size == 0 {
		return nil, textErr(no, ondisk.ErrFormat, "extent size 0, want at least 1 sector")
	}
	if !quoted {
		if len(f) > 3 {
			return nil, textErr(no, ondisk.ErrFormat, "extent file name %.64q is not quoted", f[3])
		}
		return e, nil
	}
	return e, e.parseFile(no, rest)
}

// parseFile reads what follows the opening quote of an extent's file name.
func (e *extent) parseFile(no int, rest string) error {
	name, tail, closed := strings.Cut(rest, `"`)
	if !closed {
		return textErr(no, ondisk.ErrFormat, "unclosed quote in the extent's file name")
	}
	e.name, e.stored = name, name
	f := strings.Fields(tail)
	if len(f) == 0 {
		return nil // ESXi writes no offset
	}
	var err error
	e.off, err = sectors(no, "extent offset", f[0])
	if err == nil && len(f) > 1 && e.flat() && !e.device() {
		return textErr(no, ondisk.ErrUnsupported, "extent of a physical device or partition: not supported")
	}
	return err
}

// sectors parses a count of 512-byte sectors and gives bytes.
func sectors(no int, field, s string) (int64, error) {
	const most = math.MaxInt64 / units.SectorSize
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > most {
		return 0, textErr(no, ondisk.ErrFormat, "%s %.32q, want 0 to %d sectors", field, s, most)
	}
	return n * units.SectorSize, nil
}

// onceKeys may stand in a descriptor once: a second one would contradict the first, and readers differ in which they
// believe.
var onceKeys = []string{"version", "cid", "parentcid", "createtype", "parentfilenamehint", "encoding"}

func (d *descriptor) checkOnce() error {
	seen := map[string]int{}
	for _, l := range d.lines {
		if l.key == "" {
			continue
		}
		for _, k := range onceKeys {
			if l.key == k && seen[k] > 0 {
				return textErr(l.no, ondisk.ErrFormat, "second %s, the first is on line %d", k, seen[k])
			}
		}
		seen[l.key] = l.no
	}
	return nil
}

// get returns the value of a key, in lower case, and the number of its line; 0 if absent.
func (d *descriptor) get(key string) (string, int) {
	for _, l := range d.lines {
		if l.key == key {
			return l.val, l.no
		}
	}
	return "", 0
}

// cid reads one of the two content identifiers. A descriptor without parentCID has no parent.
func (d *descriptor) cid(key string, absent uint32) (uint32, error) {
	v, no := d.get(key)
	if no == 0 {
		return absent, nil
	}
	n, err := strconv.ParseUint(v, 16, 32)
	if err != nil {
		return 0, textErr(no, ondisk.ErrFormat, "%s %.32q, want 8 hexadecimal digits", key, v)
	}
	return uint32(n), nil
}

// ddbInt returns a positive number of the disk data base, 0 when it is absent or no number.
func (d *descriptor) ddbInt(key string) int64 {
	v, _ := d.get(key)
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// Lines of the disk data base on the geometry that a BIOS reports, where it is to be another than follows from the
// disk's. Source: VirtualBox, src/VBox/Storage/VMDK.cpp, VMDK_DDB_GEO_LCHS_CYLINDERS; vmware.log of Fusion 6, "Geo
// (83220/16/63) BIOS Geo (5221/255/63)".
var biosKeys = []struct{ name, key string }{
	{"ddb.geometry.biosCylinders", "ddb.geometry.bioscylinders"},
	{"ddb.geometry.biosHeads", "ddb.geometry.biosheads"},
	{"ddb.geometry.biosSectors", "ddb.geometry.biossectors"},
}

// values returns cylinders, heads and sectors in the order of the keys.
func values(g driver.Geometry) [3]int64 { return [3]int64{g.Cylinders, g.Heads, g.Sectors} }

// pinned returns the geometry for a BIOS that the descriptor states beside that of the disk; VirtualBox writes zeros
// for none.
func (d *descriptor) pinned() (g driver.Geometry, ok bool) {
	g = driver.Geometry{
		Cylinders: d.ddbInt(biosKeys[0].key), Heads: d.ddbInt(biosKeys[1].key), Sectors: d.ddbInt(biosKeys[2].key),
	}
	return g, g.Addressable()
}

// reported returns what a BIOS reports of the disk with size bytes: what the descriptor pins, what an IDE disk leads
// to, or what controllers of SCSI take as it is.
func (d *descriptor) reported(size int64) driver.Geometry {
	if g, ok := d.pinned(); ok {
		return g.Over(size).Clipped()
	}
	_, h, s := d.geometry()
	g := driver.Geometry{Heads: h, Sectors: s}.Over(size)
	if !g.Addressable() {
		return driver.Geometry{}
	}
	if adapter, _ := d.get("ddb.adaptertype"); adapter == "ide" {
		return g.Reported(size)
	}
	return g.Clipped()
}

// reports returns what a BIOS reports of a disk that create makes.
func reports(size int64, o driver.Options) driver.Geometry {
	d, _ := sourceOf(o.Template, o.BIOS)
	return d.forBIOS(size, o.BIOS).reported(size)
}

// forBIOS returns the descriptor with the geometry for a BIOS that a copy of size bytes has: that of the source, over
// the new size, or bios where the machine would report another one.
func (d *descriptor) forBIOS(size int64, bios driver.Geometry) *descriptor {
	pin, has := d.pinned()
	switch {
	case bios != (driver.Geometry{}) && !d.reported(size).Alike(bios):
		pin = bios
	case !has:
		return d
	}
	out := *d
	out.lines = slices.Clone(d.lines)
	over := pin.Over(size)
	if pin.Cylinders <= driver.MaxCylinders {
		over = over.Clipped() // some writers count all
	}
	for i, v := range values(over) {
		k := biosKeys[i]
		if d.ddbInt(k.key) == v {
			continue
		}
		l := line{text: fmt.Sprintf("%s = \"%d\"", k.name, v), key: k.key, val: strconv.FormatInt(v, 10)}
		at := slices.IndexFunc(out.lines, func(l line) bool { return l.key == k.key })
		if at >= 0 {
			out.lines[at] = l
			continue
		}
		// Behind the last line on the geometry, or at the end.
		at = len(out.lines)
		for n, other := range out.lines {
			if other.key == "ddb.geometry.sectors" || i > 0 && other.key == biosKeys[i-1].key {
				at = n + 1
			}
		}
		out.lines = slices.Insert(out.lines, at, l)
	}
	return &out
}

// noParent is the parentCID of a complete disk.
const noParent = 0xffffffff

// parentRef names the disk that this one completes, nil for a complete disk. Two fields name a parent, and both must
// agree: programs differ in which they believe.
func (d *descriptor) parentRef() (*driver.ParentRef, error) {
	parent, err := d.cid("parentcid", noParent)
	if err != nil {
		return nil, err
	}
	hint, hintLine := d.get("parentfilenamehint")
	_, parentLine := d.get("parentcid")
	const remedy = "consolidate the snapshots or clone the disk to one complete image first"
	switch {
	case parent == noParent && hintLine == 0:
		return nil, nil //nolint:nilnil // a complete disk
	case parent == noParent:
		return nil, &ondisk.Refusal{Code: "reference", Remedy: remedy, Reason: fmt.Sprintf(
			"%s line %d names the parent %.256q, but parentCID says that it is absent", what, hintLine, hint)}
	case hintLine == 0:
		return nil, &ondisk.Refusal{Code: "reference", Remedy: remedy, Reason: fmt.Sprintf(
			"%s line %d: parentCID %08x of a snapshot child, but no parentFileNameHint names the parent", what,
			parentLine, parent)}
	}
	return &driver.ParentRef{Names: ondisk.StoredNames(d.charset, hint), Format: name, ID: contentID(parent)}, nil
}

// contentID returns how a child writes the CID of its parent.
func contentID(cid uint32) string { return fmt.Sprintf("%08x", cid) }

// openParent opens the disk that this one completes, nil when it is complete.
func (d *descriptor) openParent(s *driver.Source) (*driver.Image, error) {
	ref, err := d.parentRef()
	if ref == nil || err != nil {
		return nil, err
	}
	return s.Parent(*ref)
}

// refuseParent is for disks whose extents hold every byte.
func (d *descriptor) refuseParent(kind string) error {
	ref, err := d.parentRef()
	if ref == nil || err != nil {
		return err
	}
	_, no := d.get("parentfilenamehint")
	return textErr(no, ondisk.ErrFormat,
		"the parent %.256q of a disk of the createType %s, want none: flat extents hold every byte of a disk and not "+
			"what changed since a snapshot",
		ref.Names[0], kind)
}

// over returns what shows through the holes of an extent that begins at byte at of the disk.
func over(parent *driver.Image, at int64) func(off, n int64) disk.Run {
	if parent == nil {
		return nil
	}
	return func(off, n int64) disk.Run { return driver.Below(parent, at+off, n) }
}

// inherited are the lines of the disk data base that ESXi does not repeat in a child, and without which a flattened
// copy would have no adapter and no geometry.
var inherited = []string{
	"ddb.adaptertype", "ddb.geometry.cylinders", "ddb.geometry.heads", "ddb.geometry.sectors", "ddb.virtualhwversion",
	"ddb.geometry.bioscylinders", "ddb.geometry.biosheads", "ddb.geometry.biossectors", "ddb.toolsversion",
	"ddb.toolsinstalltype", "ddb.uuid",
}

// inherit takes what the descriptor of a child lacks from its parent's.
func (d *descriptor) inherit(parent *driver.Image) *descriptor {
	if parent == nil {
		return d
	}
	from, _ := sourceOf(parent.Template, driver.Geometry{})
	out := *d
	out.lines = slices.Clone(d.lines)
	for _, key := range inherited {
		if _, no := d.get(key); no > 0 {
			continue
		}
		for _, l := range from.lines {
			if l.key == key {
				out.lines = append(out.lines, l)
				break
			}
		}
	}
	return &out
}

// names reads the names in a VMDK; none for a file that is no VMDK. A neighbour need not be well-formed to depend on
// a file.
func names(f driver.File) (driver.Names, error) { return namesIn(f, maxText) }

// glanced is how much of an embedded text is read for a glance where the text ends before, in bytes: to the end of
// the file's first page.
const glanced = 4<<10 - units.SectorSize

// glance is names without what stands behind the end of an embedded text, which no reader takes for names.
func glance(f driver.File) (driver.Names, error) { return namesIn(f, glanced) }

// namesIn looks at so many bytes of an embedded text at first.
func namesIn(f driver.File, first int64) (driver.Names, error) {
	head := make([]byte, min(f.Size(), 2*units.SectorSize))
	if err := ondisk.ReadFull(f, head, 0); err != nil {
		return driver.Names{}, err
	}
	if !detect(head, nil) {
		return driver.Names{}, nil
	}
	if isSESparse(head) || bytes.HasPrefix(head, []byte(magicCOWD)) {
		return driver.Names{Part: true}, nil
	}
	off, size := int64(0), f.Size()
	if bytes.HasPrefix(head, []byte(magicSparse)) {
		var h sparseHeader
		switch _, err := ondisk.Decode(f, 0, &h); {
		case errors.Is(err, ondisk.ErrFormat):
			return driver.Names{Broken: true}, nil
		case err != nil:
			return driver.Names{}, err
		}
		sectors := ondisk.U64(f.Size() / units.SectorSize)
		if h.DescriptorOffset == 0 || h.DescriptorOffset > sectors {
			return driver.Names{Part: h.DescriptorOffset == 0}, nil
		}
		off = ondisk.I64(h.DescriptorOffset) * units.SectorSize
		size = ondisk.I64(min(h.DescriptorSize, sectors)) * units.SectorSize
	}
	size = min(size, f.Size()-off)
	text, err := ondisk.Bytes(f, off, min(size, first))
	if err == nil && first < min(size, maxText) && bytes.IndexByte(text, 0) < 0 {
		text, err = ondisk.Bytes(f, off, min(size, maxText))
	}
	if err != nil {
		return driver.Names{}, err
	}
	n := scanNames(string(text))
	n.Broken = size > maxText // the rest can name anything
	// qemu-img keeps room for a descriptor in every extent of a split disk, and leaves it empty.
	n.Part = off > 0 && ondisk.IsZero(text)
	return n, nil
}

func scanNames(text string) driver.Names {
	var n driver.Names
	var extents []*extent
	charset := ""
	for l := range strings.Lines(text) {
		l = strings.Trim(l, " \t\r\n\x00")
		if key, val, ok := strings.Cut(l, "="); ok {
			val = strings.Trim(strings.TrimSpace(val), `"`) // quoted or not
			switch key = strings.TrimSpace(key); {
			case strings.EqualFold(key, "encoding"):
				charset = val
				continue
			case strings.EqualFold(key, "parentFileNameHint"):
				paths, _ := driver.BackingFiles(val) // qemu-img writes them as it got them
				n.Parents = append(n.Parents, paths...)
				continue
			}
		}
		_, quoted, ok := strings.Cut(l, `"`)
		name, _, closed := strings.Cut(quoted, `"`)
		switch first, _, _ := strings.Cut(strings.ToUpper(l), " "); {
		case !ok || !closed:
		case first == "RW" || first == "RDONLY" || first == "NOACCESS":
			e, err := parseExtent(0, l)
			if err != nil {
				e = &extent{}
			}
			extents = append(extents, e)
			n.Extents, n.Claims = append(n.Extents, name), append(n.Claims, e.claim())
		}
	}
	n.Views = viewed(extents)
	return decodedNames(n, charset)
}

// decodedNames adds names in UTF-8 in front of those that a text has in another character set: a file can have either.
func decodedNames(n driver.Names, charset string) driver.Names {
	out := driver.Names{Views: n.Views}
	for _, p := range n.Parents {
		out.Parents = append(out.Parents, ondisk.StoredNames(charset, p)...)
	}
	for i, e := range n.Extents {
		for _, name := range ondisk.StoredNames(charset, e) {
			out.Extents, out.Claims = append(out.Extents, name), append(out.Claims, n.Claims[i])
		}
	}
	return out
}

// flat reports whether an extent holds the bytes of the disk as they are.
func (e *extent) flat() bool { return e.kind == "FLAT" || e.kind == "VMFS" || e.mapsDevice() }

// mapsDevice reports whether an extent is a raw device map of ESXi. Its file shows the device to what reads it there;
// elsewhere it has the bytes if it was copied so.
func (e *extent) mapsDevice() bool { return e.kind == "VMFSRDM" || e.kind == "VMFSRAW" }

// device reports whether an extent names a device in the place of a file.
func (e *extent) device() bool {
	name := strings.ToLower(strings.ReplaceAll(e.name, `\`, "/"))
	return strings.HasPrefix(name, "/dev/") || strings.HasPrefix(name, "/vmfs/devices/") ||
		strings.HasPrefix(name, "//./") || strings.HasPrefix(name, "//?/")
}

// claim returns how many bytes an extent takes of its file from byte 0 on.
func (e *extent) claim() int64 {
	if e.off != 0 || !e.flat() {
		return 0
	}
	return e.size
}
