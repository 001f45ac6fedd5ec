package vmdk

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// plainDescriptor returns the initial descriptor of a VMDK from another format, with values that every VMware product
// since 2006 accepts. Heads and sectors come from bios; the default is 255 and 63.
func plainDescriptor(bios driver.Geometry) *descriptor {
	if bios == (driver.Geometry{}) {
		bios = driver.Geometry{Heads: 255, Sectors: 63}
	}
	d, err := parseDescriptor(fmt.Appendf(nil, `# Disk DescriptorFile
version=1
encoding="UTF-8"
CID=00000000
parentCID=ffffffff
createType="monolithicSparse"

# Extent description
RW 1 ZERO

# The Disk Data Base
#DDB

ddb.adapterType = "lsilogic"
ddb.geometry.cylinders = "0"
ddb.geometry.heads = "%d"
ddb.geometry.sectors = "%d"
ddb.virtualHWVersion = "4"
`, bios.Heads, bios.Sectors))
	if err != nil {
		panic(err)
	}
	return d
}

// identity holds the identifiers that a copy must not share with its source. They are derived from the source and the
// job, so that the same job gives the same bytes.
type identity struct {
	cid uint32
	sum [sha256.Size]byte
}

func (d *descriptor) identity(seed []byte) identity {
	h := sha256.New()
	for _, l := range d.lines {
		fmt.Fprintln(h, l.text)
	}
	h.Write(seed)
	id := identity{}
	h.Sum(id.sum[:0])
	id.cid = binary.BigEndian.Uint32(id.sum[:])
	if id.cid >= 0xfffffffe { // both are reserved: no parent, and a CID that was never set
		id.cid -= 2
	}
	return id
}

// imageUUID is the key of VirtualBox's image UUID.
const imageUUID = "ddb.uuid.image"

// virtualBox returns the value of a line for a copy: new image and modification UUIDs, no parent UUIDs. VirtualBox
// attaches no two images with one UUID, and a copy has no parent. Source: VirtualBox, src/VBox/Storage/VMDK.cpp,
// VMDK_DDB_*_UUID.
func (id identity) virtualBox(l line) string {
	none := ondisk.GUID{}
	switch old, ok := ondisk.ParseGUID(l.val); {
	case !ok || old == none:
	case l.key == imageUUID, l.key == "ddb.uuid.modification":
		sum := sha256.Sum256(append([]byte(l.key), id.sum[:]...))
		return ondisk.CustomGUID(sum[:]).String()
	case l.key == "ddb.uuid.parent", l.key == "ddb.uuid.parentmodification":
		return none.String()
	}
	return l.val
}

// withIDs returns the lines with both content identifiers. qemu-img rejects a descriptor without parentCID.
func (d *descriptor) withIDs() []line {
	at := slices.IndexFunc(d.lines,
		func(l line) bool { return l.ext != nil || (l.key != "" && l.key != "version" && l.key != "encoding") })
	out := slices.Clone(d.lines)
	for _, key := range []string{"parentcid", "cid"} {
		if _, no := d.get(key); no == 0 && at >= 0 {
			out = slices.Insert(out, at, line{key: key})
		}
	}
	return out
}

// copyFor returns the descriptor of a copy, in UTF-8. It keeps every line except extents and identifiers. size is the
// size of the copy in bytes; bios is as in driver.Options.
func (d *descriptor) copyFor(kind string, size int64, extents []string, seed []byte, bios driver.Geometry) []byte {
	id := d.identity(seed)
	return d.inUTF8().forBIOS(size, bios).rewritten(size, &id, func(out []string, l line) ([]string, bool) {
		switch {
		case l.ext != nil:
			out, extents = appendExtents(out, extents), nil
		case l.key == "createtype":
			out = append(out, fmt.Sprintf("createType=%q", kind))
		case l.key == "parentcid":
			out = append(out, "parentCID="+contentID(noParent))
		case l.key == "parentfilenamehint", l.key == offsetKey:
			// Drop the line: a copy has no parent, and an offset of its own.
		case l.key == "ddb.uuid" && newUUID(l.val, id.sum[16:]) != l.val:
			out = append(out, strings.Replace(l.text, l.val, newUUID(l.val, id.sum[16:]), 1))
		case l.val != "" && id.virtualBox(l) != l.val:
			out = append(out, strings.Replace(l.text, l.val, id.virtualBox(l), 1))
		default:
			return out, false
		}
		return out, true
	})
}

// inUTF8 returns the descriptor with its lines in UTF-8, the encoding of names in a copy.
func (d *descriptor) inUTF8() *descriptor {
	out := *d
	out.lines = slices.Clone(d.lines)
	for i, l := range out.lines {
		if l.key == "encoding" {
			out.lines[i].text = `encoding="UTF-8"`
			continue
		}
		out.lines[i].text = strings.ToValidUTF8(ondisk.DecodeText(d.charset, l.text), "?")
	}
	return &out
}

// rewritten returns the text of the descriptor for a new size and new contents. own is tried first on each line: it
// appends the replacement and reports true.
func (d *descriptor) rewritten(size int64, id *identity, own func(out []string, l line) ([]string, bool)) []byte {
	var out []string
	for _, l := range d.withIDs() {
		var known bool
		switch out, known = own(out, l); {
		case known:
		case l.key == "cid":
			out = append(out, fmt.Sprintf("CID=%08x", id.cid))
		case l.key == "changetrackpath":
			// Drop the line: change tracking describes the old contents.
		case l.key == "ddb.geometry.cylinders":
			out = append(out, fmt.Sprintf("ddb.geometry.cylinders = \"%d\"", d.cylinders(size)))
		case l.key == "ddb.longcontentid":
			out = append(out, fmt.Sprintf("ddb.longContentID = \"%x%08x\"", id.sum[4:16], id.cid))
		default:
			out = append(out, l.text)
		}
	}
	eol := "\n"
	if d.crlf {
		eol = "\r\n"
	}
	return []byte(strings.TrimRight(strings.Join(out, eol), "\r\n") + eol)
}

// rename returns the text of a descriptor file with the file names replaced, of extents and of changed-block tracking.
// All other bytes stay.
func rename(text []byte, to func(name string) string) ([]byte, error) {
	d, err := parseDescriptor(text)
	if err != nil {
		return nil, err
	}
	lines := strings.SplitAfter(string(text), "\n")
	for i, l := range d.lines {
		name := ""
		switch {
		case l.ext != nil:
			name = l.ext.stored
		case l.key == "changetrackpath":
			name = l.val
		}
		switch {
		case name == "":
			continue
		case ondisk.DecodeText(d.charset, name) != name:
			return nil, textErr(l.no, ondisk.ErrUnsupported, "the name %.256q is in the encoding %s, and trueup "+
				"writes names in UTF-8 only; write a copy: trueup align SOURCE DEST",
				ondisk.DecodeText(d.charset, name), d.charset)
		}
		other := to(name)
		if strings.Count(lines[i], `"`+name+`"`) != 1 || strings.ContainsAny(other, "\"\r\n") {
			return nil, textErr(l.no, ondisk.ErrUnsupported, "a second descriptor cannot name %.256q instead of %.256q",
				other, name)
		}
		lines[i] = strings.Replace(lines[i], `"`+name+`"`, `"`+other+`"`, 1)
	}
	return []byte(strings.Join(lines, "")), nil
}

// mostSplit is the largest extent of the split types (twoGbMaxExtent…), in bytes.
const mostSplit = 2 * units.GiB

// around returns the new descriptor for a disk that is changed in place.
func (d *descriptor) around(size int64, bios driver.Geometry) (driver.Around, error) {
	own := size - d.size() + d.extents[len(d.extents)-1].size
	if own > mostSplit && len(d.extents) > 1 {
		return driver.Around{}, fmt.Errorf("the last extent would have %d bytes: %w of %d", own, ondisk.ErrLimit,
			mostSplit)
	}
	return driver.Around{Text: d.resized(size, bios)}, nil
}

// size returns the total size of the extents in bytes.
func (d *descriptor) size() (n int64) {
	for _, e := range d.extents {
		n += e.size
	}
	return n
}

// resized returns the descriptor for new contents and a new size in bytes: the last extent grows. The new CID makes
// snapshots and clones of the old contents invalid. Changed-block tracking is dropped.
func (d *descriptor) resized(size int64, bios driver.Geometry) []byte {
	id := d.identity([]byte("in place"))
	last := d.extents[len(d.extents)-1]
	own := size - d.size() + last.size
	return d.forBIOS(size, bios).rewritten(size, &id, func(out []string, l line) ([]string, bool) {
		if l.ext != last {
			return out, false
		}
		old := strings.Fields(l.text)[1]
		return append(out, strings.Replace(l.text, old, strconv.FormatInt(own/units.SectorSize, 10), 1)), true
	})
}

// appendExtents puts the new extent lines in place of the first old one, behind a comment: qemu-img 7.2 counts an
// extent twice that follows a blank line.
func appendExtents(out, extents []string) []string {
	if extents == nil {
		return out
	}
	if n := len(out); n == 0 || !strings.HasPrefix(strings.TrimSpace(out[n-1]), "#") {
		out = append(out, "# Extent description")
	}
	return append(out, extents...)
}

// maxCylinders is the maximum of IDE geometries, for disks of any size.
const maxCylinders = 16383

// cylinders returns the number of cylinders for the new size, with the heads and sectors of the source. A capped number
// stays capped.
func (d *descriptor) cylinders(size int64) int64 {
	c, h, s := d.geometry()
	const most = 1 << 16 // far above every geometry; products fit into 63 bits
	if h <= 0 || s <= 0 || h > most || s > most {
		return c
	}
	n := max(1, size/units.SectorSize/(h*s))
	if c == maxCylinders && n > maxCylinders {
		return maxCylinders
	}
	return n
}

// newUUID returns a uuid with the form and the first four bytes of old, which mark the vendor ("60 00 C2 9…"). The
// other twelve come from sum. The form is "60 00 C2 9a 1d 7b 49 44-dc 53 e6 d3 e5 89 7b 0d".
func newUUID(old string, sum []byte) string {
	sep := func(r rune) bool { return r == ' ' || r == '-' }
	fields := strings.FieldsFunc(old, sep)
	if len(fields) != 16 {
		return old
	}
	for _, f := range fields {
		if _, err := strconv.ParseUint(f, 16, 8); err != nil || len(f) != 2 {
			return old
		}
	}
	for i := 4; i < 16; i++ {
		fields[i] = hex.EncodeToString(sum[i-4 : i-3])
	}
	return strings.Join(fields[:8], " ") + "-" + strings.Join(fields[8:], " ")
}
