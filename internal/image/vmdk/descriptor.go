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

// Limits of a descriptor. A real one has some 30 lines.
const (
	maxText    = 1 << 20 // bytes
	maxLine    = 4096    // bytes
	maxExtents = 4096
	maxLines   = 2 * maxExtents // in memory, a line is larger than its two bytes in the file
)

const descriptorName = "vmdk descriptor"

// line is one line of a descriptor. Unknown lines go into a copy unchanged.
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
	stored string // the name as stored
	off    int64  // byte offset in the file
}

// descriptor is a parsed descriptor, the text that lists the extents and the metadata of a VMDK.
type descriptor struct {
	lines   []line
	extents []*extent
	crlf    bool
	charset string // character set of the text; empty for UTF-8
}

// parseDescriptor parses a descriptor file or an embedded descriptor, which is padded with zero bytes.
func parseDescriptor(text []byte) (*descriptor, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("%s of %d bytes: %w of %d bytes", descriptorName, len(text), ondisk.ErrLimit, maxText)
	}
	if bytes.HasPrefix(text, []byte("\xff\xfe")) || bytes.HasPrefix(text, []byte("\xfe\xff")) {
		return nil, ondisk.Field(descriptorName, "byte order mark", 0, text[:2], "UTF-8 text, not UTF-16")
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

// maxStale is the largest difference in length between an old and a new CID: qemu-img writes the CID without leading
// zeros.
const maxStale = 7

// cutPadding cuts the text at its first zero byte. The rest must be zeros or the end of the same text, which qemu-img
// 7.2 leaves behind when it replaces a descriptor with a shorter one.
func cutPadding(text []byte) ([]byte, error) {
	end := bytes.IndexByte(text, 0)
	if end < 0 {
		return text, nil
	}
	rest := bytes.TrimRight(text[end+1:], "\x00")
	if len(rest) > maxStale || !bytes.HasSuffix(text[:end], rest) {
		return nil, ondisk.Field(descriptorName, "text", int64(end), "\x00", "no zero byte before the end")
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
	return &ondisk.TextError{What: descriptorName, Line: no, Msg: fmt.Sprintf(format, args...), Kind: kind}
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

// parseFile parses the rest of an extent line, from behind the opening quote of the file name.
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

// sectors parses a number of 512-byte sectors and returns bytes.
func sectors(no int, field, s string) (int64, error) {
	const most = math.MaxInt64 / units.SectorSize
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > most {
		return 0, textErr(no, ondisk.ErrFormat, "%s %.32q, want 0 to %d sectors", field, s, most)
	}
	return n * units.SectorSize, nil
}

// onceKeys are the keys that may occur only once: readers differ in which of two lines they use.
var onceKeys = []string{"version", "cid", "parentcid", "createtype", "parentfilenamehint", "encoding", offsetKey}

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

// get returns the value of a lower-case key and its line number, 0 if the key is absent.
func (d *descriptor) get(key string) (string, int) {
	for _, l := range d.lines {
		if l.key == key {
			return l.val, l.no
		}
	}
	return "", 0
}

// cid returns a content identifier, or absent if the descriptor lacks the key. Without parentCID a disk has no parent.
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

// ddbInt returns a number of the disk data base. It returns 0 if the key is absent or its value is not a positive
// number.
func (d *descriptor) ddbInt(key string) int64 {
	v, _ := d.get(key)
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// Disk data base keys of the BIOS geometry, for a geometry that does not follow from the disk's. Source: VirtualBox,
// src/VBox/Storage/VMDK.cpp, VMDK_DDB_GEO_LCHS_CYLINDERS; vmware.log of Fusion 6, "Geo (83220/16/63) BIOS Geo
// (5221/255/63)".
var biosKeys = []struct{ name, key string }{
	{"ddb.geometry.biosCylinders", "ddb.geometry.bioscylinders"},
	{"ddb.geometry.biosHeads", "ddb.geometry.biosheads"},
	{"ddb.geometry.biosSectors", "ddb.geometry.biossectors"},
}

// values returns cylinders, heads and sectors in the order of the keys.
func values(g driver.Geometry) [3]int64 { return [3]int64{g.Cylinders, g.Heads, g.Sectors} }

// biosGeometry returns the BIOS geometry of the descriptor. ok is false without one; VirtualBox then writes zeros.
func (d *descriptor) biosGeometry() (g driver.Geometry, ok bool) {
	g = driver.Geometry{
		Cylinders: d.ddbInt(biosKeys[0].key), Heads: d.ddbInt(biosKeys[1].key), Sectors: d.ddbInt(biosKeys[2].key),
	}
	return g, g.Addressable()
}

// reported returns the geometry that a BIOS reports for a disk of size bytes. It is the BIOS geometry of the
// descriptor, the translated geometry of an IDE disk, or the disk geometry, which SCSI controllers use unchanged.
func (d *descriptor) reported(size int64) driver.Geometry {
	if g, ok := d.biosGeometry(); ok {
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

// reports returns the geometry that a BIOS reports for a disk made by create.
func reports(size int64, o driver.Options) driver.Geometry {
	d, _ := sourceOf(o.Template, o.BIOS)
	return d.forBIOS(size, o.BIOS).reported(size)
}

// forBIOS returns the descriptor with the BIOS geometry for a copy of size bytes. It keeps the geometry of the source
// for the new size, or uses bios if the machine would report another one.
func (d *descriptor) forBIOS(size int64, bios driver.Geometry) *descriptor {
	pin, has := d.biosGeometry()
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
		over = over.Clipped() // some writers count all cylinders
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
		// Insert it behind the last geometry line, or at the end.
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

// noParent is the parentCID of a disk without parent.
const noParent = 0xffffffff

// parentRef returns the reference to the parent, or nil for a disk without parent. Both parent fields must agree, since
// programs differ in which one they use.
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
		return nil, nil //nolint:nilnil // no parent
	case parent == noParent:
		return nil, &ondisk.Refusal{Code: "reference", Remedy: remedy, Reason: fmt.Sprintf(
			"%s line %d names the parent %.256q, but parentCID (ffffffff) means that there is none", descriptorName,
			hintLine, hint)}
	case hintLine == 0:
		return nil, &ondisk.Refusal{Code: "reference", Remedy: remedy, Reason: fmt.Sprintf(
			"%s line %d: parentCID %08x of a snapshot child, but no parentFileNameHint names the parent",
			descriptorName, parentLine, parent)}
	}
	return &driver.ParentRef{Names: ondisk.StoredNames(d.charset, hint), Format: name, ID: contentID(parent)}, nil
}

// contentID formats a CID like a child's parentCID.
func contentID(cid uint32) string { return fmt.Sprintf("%08x", cid) }

// openParent opens the parent; it returns nil for a disk without parent.
func (d *descriptor) openParent(s *driver.Source) (*driver.Image, error) {
	ref, err := d.parentRef()
	if ref == nil || err != nil {
		return nil, err
	}
	return s.Parent(*ref)
}

// refuseParent returns an error if a disk with flat extents has a parent.
func (d *descriptor) refuseParent(kind string) error {
	ref, err := d.parentRef()
	if ref == nil || err != nil {
		return err
	}
	_, no := d.get("parentfilenamehint")
	return textErr(no, ondisk.ErrFormat,
		"the parent %.256q of a disk of the createType %s, want none: flat extents hold every byte of a disk and not "+
			"what changed since a snapshot", ref.Names[0], kind)
}

// over returns the function that maps holes of an extent to the parent. The extent begins at byte at of the disk.
func over(parent *driver.Image, at int64) func(off, n int64) disk.Run {
	if parent == nil {
		return nil
	}
	return func(off, n int64) disk.Run { return driver.Below(parent, at+off, n) }
}

// inherited are the disk data base keys that ESXi omits in a child. Without them a flattened copy would have no adapter
// and no geometry.
var inherited = []string{
	"ddb.adaptertype", "ddb.geometry.cylinders", "ddb.geometry.heads", "ddb.geometry.sectors", "ddb.virtualhwversion",
	"ddb.geometry.bioscylinders", "ddb.geometry.biosheads", "ddb.geometry.biossectors", "ddb.toolsversion",
	"ddb.toolsinstalltype", "ddb.uuid",
}

// inherit adds the missing lines of a child's descriptor from the parent's.
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

// names returns the file names in a VMDK, and none for other files. A malformed neighbour can depend on a file too.
func names(f driver.File) (driver.Names, error) { return namesIn(f, maxText) }

// glanced is the number of bytes that a glance reads of an embedded descriptor, if the text ends there: up to the end
// of the file's first page.
const glanced = 4<<10 - units.SectorSize

// glance is names without the bytes behind the end of an embedded descriptor, where no reader looks for names.
func glance(f driver.File) (driver.Names, error) { return namesIn(f, glanced) }

// namesIn returns the file names in a VMDK. first is the number of bytes that it reads of the descriptor at once; it
// reads the rest only if the text is longer.
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
	n.Broken = size > maxText // the rest may contain any name
	// qemu-img reserves space for a descriptor in every extent of a split disk, and leaves it empty.
	n.Part = off > 0 && ondisk.IsZero(text)
	return n, nil
}

func scanNames(text string) driver.Names {
	var n driver.Names
	var extents []*extent
	charset, mark := "", int64(0)
	for l := range strings.Lines(text) {
		l = strings.Trim(l, " \t\r\n\x00")
		if key, val, ok := strings.Cut(l, "="); ok {
			val = strings.Trim(strings.TrimSpace(val), `"`) // quoted or not
			switch key = strings.TrimSpace(key); {
			case strings.EqualFold(key, "encoding"):
				charset = val
				continue
			case strings.EqualFold(key, offsetKey):
				mark, _ = strconv.ParseInt(val, 10, 64)
				continue
			case strings.EqualFold(key, "parentFileNameHint"):
				paths, _ := driver.BackingFiles(val) // qemu-img stores its argument unchanged
				n.Parents = append(n.Parents, paths...)
				continue
			}
		}
		_, quoted, _ := strings.Cut(l, `"`)
		name, _, closed := strings.Cut(quoted, `"`)
		switch first, _, _ := strings.Cut(strings.ToUpper(l), " "); {
		case !closed:
		case first == "RW" || first == "RDONLY" || first == "NOACCESS":
			e, err := parseExtent(0, l)
			if err != nil {
				e = &extent{}
			}
			extents = append(extents, e)
			n.Extents, n.Claims = append(n.Extents, name), append(n.Claims, e.claim())
		}
	}
	n.Views = viewFiles(extents, mark)
	if shifted(extents, mark) {
		for i, e := range extents {
			n.Claims[i] = e.off + e.size
		}
	}
	return decodedNames(n, charset)
}

// decodedNames adds the UTF-8 form of each name in front of the stored form in another character set. The file may have
// either name.
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

// flat reports whether an extent holds bytes of the disk unchanged.
func (e *extent) flat() bool { return e.kind == "FLAT" || e.kind == "VMFS" || e.mapsDevice() }

// mapsDevice reports whether an extent is a raw device map of ESXi. On its host, the file reads as the device.
// Elsewhere it holds the data only if it was copied with them.
func (e *extent) mapsDevice() bool { return e.kind == "VMFSRDM" || e.kind == "VMFSRAW" }

// device reports whether an extent names a device instead of a file.
func (e *extent) device() bool {
	name := strings.ToLower(strings.ReplaceAll(e.name, `\`, "/"))
	return strings.HasPrefix(name, "/dev/") || strings.HasPrefix(name, "/vmfs/devices/") ||
		strings.HasPrefix(name, "//./") || strings.HasPrefix(name, "//?/")
}

// claim returns the number of bytes that an extent uses of its file from byte 0 on.
func (e *extent) claim() int64 {
	if e.off != 0 || !e.flat() {
		return 0
	}
	return e.size
}
