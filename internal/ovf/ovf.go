// Package ovf parses the envelope and the manifest of a virtual machine package. It writes them with single values
// changed and all other bytes unchanged. It opens no files.
//
// Spec: DMTF DSP0243, Open Virtualization Format Specification 1.1 and 2.1; VMware and XenSource, OVF Specification 0.9
// (2007).
package ovf

import (
	"bytes"
	"crypto/sha1" // prescribed by OVF 1, and no protection here
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"hash"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
)

// Limits of an envelope. Vendors write about ten kilobytes with a nesting of about ten.
const (
	MaxText  = 16 << 20
	maxDepth = 64
	maxItems = 4096    // files, disks
	maxAttrs = 1 << 16 // "=" within one tag
)

// Envelope describes the files and disks of a package.
type Envelope struct {
	Files []File
	Disks []Disk
	// Systems lists the disk ids of each virtual system.
	Systems [][]string

	text  []byte
	edits map[int]edit // by offset of the replaced value
}

// File is a file of the package. Spec: DSP0243 7.1, "File References".
type File struct {
	ID, Href    string
	Size        int64 // bytes; -1 if absent
	Compression string
	ChunkSize   int64 // bytes; 0 for a file in one piece

	href, size value
}

// Disk is a virtual disk. Spec: DSP0243 9.1, "DiskSection".
type Disk struct {
	ID, FileRef, ParentRef, Format string
	Capacity                       int64 // bytes; -1 if absent or set by a property ("${disk.size}")
	PopulatedSize                  int64 // bytes; -1 if absent

	Unit                       int64 // unit of the capacity attribute, bytes
	capacity, units, populated value
}

// value is the range of an attribute value in the text, between its quotes. The zero value means an absent attribute.
type value struct{ from, to int }

func (v value) there() bool { return v.to > 0 }

// Parse parses an envelope.
func Parse(text []byte) (*Envelope, error) {
	p, err := newParser(text)
	if err != nil {
		return nil, err
	}
	for {
		more, err := p.next()
		if err != nil {
			return nil, err
		}
		if !more {
			break
		}
	}
	if !p.seen {
		return nil, p.bad(ondisk.ErrFormat, "no Envelope element")
	}
	return p.env, p.checkReferences()
}

// checkReferences checks that ids and hrefs are present and unique, and that each fileRef has a File.
func (p *parser) checkReferences() error {
	ids, hrefs, disks := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, f := range p.env.Files {
		if f.ID == "" || ids[f.ID] {
			return p.bad(ondisk.ErrFormat, "File id %.256q is empty or not unique", f.ID)
		}
		if f.Href == "" || hrefs[f.Href] {
			return p.bad(ondisk.ErrFormat, "href %.256q of File %.256q is empty or not unique", f.Href, f.ID)
		}
		ids[f.ID], hrefs[f.Href] = true, true
	}
	for _, d := range p.env.Disks {
		if d.ID == "" || disks[d.ID] {
			return p.bad(ondisk.ErrFormat, "diskId %.256q is empty or not unique", d.ID)
		}
		disks[d.ID] = true
		if d.FileRef != "" && p.env.File(d.FileRef) == nil {
			return p.bad(ondisk.ErrFormat, "Disk %.256q has the fileRef %.256q, but no File has this id", d.ID,
				d.FileRef)
		}
	}
	return nil
}

// File returns the file with an id, or nil. RHEV refers to files by href instead.
func (e *Envelope) File(ref string) *File {
	for _, is := range []func(f File) bool{
		func(f File) bool { return f.ID == ref },
		func(f File) bool { return f.Href == ref },
	} {
		if i := slices.IndexFunc(e.Files, is); i >= 0 {
			return &e.Files[i]
		}
	}
	return nil
}

// Looks reports whether the first bytes of a file look like an envelope.
func Looks(head []byte) bool {
	s := bytes.TrimLeft(bytes.TrimPrefix(head[:min(len(head), 8<<10)], []byte("\ufeff")), " \t\r\n")
	return bytes.HasPrefix(s, []byte("<")) &&
		(bytes.Contains(s, []byte("<Envelope")) || bytes.Contains(s, []byte(":Envelope")))
}

// FirstChunk returns the name of the first chunk of a file. Spec: DSP0243 7.1.
func FirstChunk(name string) string { return name + ".000000000" }

var chunk = ondisk.LazyPattern(`^(.+)\.[0-9]{9}$`)

// Whole returns the name of the file to which a chunk belongs. ok is false if name is no chunk name.
func Whole(name string) (whole string, ok bool) {
	m := chunk().FindStringSubmatch(name)
	if m == nil {
		return "", false
	}
	return m[1], true
}

// edit is a replacement for a value.
type edit struct {
	value
	text string
}

func (e *Envelope) set(v value, text string) { e.edits[v.from] = edit{v, text} }

// SetHref changes the href of a file.
func (e *Envelope) SetHref(id, href string) {
	var text bytes.Buffer
	_ = xml.EscapeText(&text, []byte(href)) // a buffer never fails
	e.set(e.File(id).href, text.String())
}

// SetFileSize changes the size of a file, if the envelope has the attribute.
func (e *Envelope) SetFileSize(id string, n int64) {
	if f := e.File(id); f != nil && f.size.there() {
		e.set(f.size, strconv.FormatInt(n, 10))
	}
}

// SetCapacity changes the capacity of a disk, in bytes. It changes the unit to "byte" if needed for an exact value.
func (e *Envelope) SetCapacity(diskID string, n int64) error {
	d := e.disk(diskID)
	if d.Capacity < 0 {
		return fmt.Errorf("capacity of the disk %.256q in the ovf: %w if it is a property or missing; replace it "+
			"with the number of bytes", d.ID, ondisk.ErrUnsupported)
	}
	unit := d.Unit
	if n%unit != 0 {
		unit = 1
		e.set(d.units, "byte")
	}
	e.set(d.capacity, strconv.FormatInt(n/unit, 10))
	return nil
}

// SetPopulatedSize changes the used size of a disk, in bytes, if the envelope has the attribute.
func (e *Envelope) SetPopulatedSize(diskID string, n int64) {
	if d := e.disk(diskID); d.populated.there() {
		e.set(d.populated, strconv.FormatInt(n, 10))
	}
}

func (e *Envelope) disk(id string) *Disk {
	return &e.Disks[slices.IndexFunc(e.Disks, func(d Disk) bool { return d.ID == id })]
}

// Fork returns a copy of the envelope without edits.
func (e *Envelope) Fork() *Envelope {
	f := *e
	f.edits = map[int]edit{}
	return &f
}

// Bytes returns the text with all edits applied.
func (e *Envelope) Bytes() []byte {
	var out bytes.Buffer
	done := 0
	for _, from := range slices.Sorted(maps.Keys(e.edits)) {
		out.Write(e.text[done:from])
		out.WriteString(e.edits[from].text)
		done = e.edits[from].to
	}
	out.Write(e.text[done:])
	return out.Bytes()
}

// Shape returns the text without the values that copies change and without trailing white space. A copy must have the
// same shape.
func (e *Envelope) Shape() []byte {
	f := e.Fork()
	var values []value
	for _, x := range e.Files {
		values = append(values, x.size)
	}
	for _, d := range e.Disks {
		values = append(values, d.capacity, d.units, d.populated)
	}
	for _, v := range values {
		if v.there() {
			f.set(v, "")
		}
	}
	return bytes.TrimSpace(f.Bytes())
}

// Limits of a manifest. It has one or a few lines for each file.
const (
	MaxManifest = 4 << 20
	maxLines    = 4 * maxItems
)

// Manifest holds the digests of the files of a package. Spec: DSP0243 6, "OVF Package".
type Manifest struct {
	Digests []Digest

	text []byte
}

// Digest is one line of a manifest.
type Digest struct {
	Algorithm string // as spelled in the line
	Name      string
	Sum       []byte
	New       func() hash.Hash // nil for an unknown algorithm

	name, sum value
	upper     bool
}

// line matches "SHA256(disk1.vmdk)= 0123…". The name may contain brackets.
var line = ondisk.LazyPattern(`^[ \t]*([A-Za-z0-9-]+)[ \t]*\((.*)\)[ \t]*=[ \t]*([0-9A-Fa-f]+)[ \t]*$`)

var algorithms = map[string]func() hash.Hash{
	"SHA1": sha1.New, "SHA256": sha256.New, "SHA384": sha512.New384,
	"SHA512": sha512.New,
}

// ParseManifest parses a manifest.
func ParseManifest(text []byte) (*Manifest, error) {
	if len(text) > MaxManifest {
		return nil, fmt.Errorf("manifest of %d bytes: %w of %d bytes", len(text), ondisk.ErrLimit, MaxManifest)
	}
	m := &Manifest{text: text}
	off, number := 0, 0
	for l := range bytes.Lines(text) {
		number++
		if number > maxLines {
			return nil, fmt.Errorf("manifest: %w of %d lines", ondisk.ErrLimit, maxLines)
		}
		if err := m.add(l, off, number); err != nil {
			return nil, err
		}
		off += len(l)
	}
	return m, nil
}

// add parses the line at byte off of the text.
func (m *Manifest) add(l []byte, off, number int) error {
	bad := func(kind error, format string, args ...any) error {
		return &ondisk.TextError{What: "manifest", Line: number, Msg: fmt.Sprintf(format, args...), Kind: kind}
	}
	l = bytes.TrimRight(l, "\r\n")
	if len(bytes.TrimSpace(l)) == 0 {
		return nil
	}
	at := line().FindSubmatchIndex(l)
	if at == nil {
		return bad(ondisk.ErrFormat, "%.256q, must be a line such as %q", l, "SHA256(disk1.vmdk)= 0123…")
	}
	d := Digest{
		Algorithm: string(l[at[2]:at[3]]), Name: string(l[at[4]:at[5]]), name: value{
			off + at[4],
			off + at[5],
		}, sum: value{off + at[6], off + at[7]},
	}
	if strings.ContainsAny(d.Name, `\:`) || strings.HasPrefix(d.Name, "/") || strings.Contains("/"+d.Name+"/", "/../") {
		return bad(ondisk.ErrReference, "the name %.256q leaves the package", d.Name)
	}
	digits := string(l[at[6]:at[7]])
	d.upper = strings.ContainsAny(digits, "ABCDEF")
	d.New = algorithms[strings.ToUpper(strings.ReplaceAll(d.Algorithm, "-", ""))]
	sum, err := hex.DecodeString(digits)
	if err != nil || (d.New != nil && len(sum) != d.New().Size()) {
		return bad(ondisk.ErrFormat, "%d hexadecimal digits are not a digest of %s", len(digits), d.Algorithm)
	}
	d.Sum = sum
	m.Digests = append(m.Digests, d)
	return nil
}

// Rewrite returns the text with digests and names replaced. sum returns the new digest of d, or nil to keep the old
// one. name returns the new name.
func (m *Manifest) Rewrite(sum func(d Digest) []byte, name func(string) string) []byte {
	var out bytes.Buffer
	done := 0
	for _, d := range m.Digests {
		out.Write(m.text[done:d.name.from])
		out.WriteString(name(d.Name))
		out.Write(m.text[d.name.to:d.sum.from])
		done = d.sum.from
		if b := sum(d); b != nil {
			digits := hex.EncodeToString(b)
			if d.upper {
				digits = strings.ToUpper(digits)
			}
			out.WriteString(digits)
			done = d.sum.to
		}
	}
	out.Write(m.text[done:])
	return out.Bytes()
}
