package ovf

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
)

// parser reads the text token by token, since a document tree would need many times its memory.
type parser struct {
	dec  *xml.Decoder
	env  *Envelope
	path []string // names of the open elements, as in OVF 1 and 2
	seen bool     // the root element was read
	root string   // name space of the root element

	resources int // disks of all virtual systems
}

func newParser(text []byte) (*parser, error) {
	if text = inUTF8(text); len(text) > MaxText {
		return nil, fmt.Errorf("ovf of %d bytes: %w of %d bytes", len(text), ondisk.ErrLimit, MaxText)
	}
	if n := busiestTag(text); n > maxAttrs {
		return nil, fmt.Errorf("ovf: %w of %d attributes of an element", ondisk.ErrLimit, maxAttrs)
	}
	dec := xml.NewDecoder(bytes.NewReader(text))
	dec.CharsetReader = func(charset string, input io.Reader) (io.Reader, error) {
		if ondisk.KnownCharset(charset) {
			return input, nil // the text is ASCII, otherwise inUTF8 would have decoded it
		}
		return nil, fmt.Errorf("encoding %.64q: %w, save it as UTF-8", charset, ondisk.ErrUnsupported)
	}
	return &parser{dec: dec, env: &Envelope{text: text, edits: map[int]edit{}}}, nil
}

// inUTF8 converts a text in another known encoding to UTF-8, including its declaration.
func inUTF8(text []byte) []byte {
	from, to := declaredEncoding(text)
	if from == to || len(text) > MaxText {
		return text
	}
	body := string(text[to:])
	decoded := ondisk.DecodeText(string(text[from:to]), body)
	if decoded == body {
		return text
	}
	return slices.Concat(text[:from], []byte("UTF-8"), []byte(decoded))
}

// declaredEncoding returns the range of the encoding name in the XML declaration, or an empty range. Spec: XML 1.0, 2.8
// and 4.3.3.
func declaredEncoding(text []byte) (from, to int) {
	const longest = 256 // bytes of a declaration
	end := bytes.Index(text[:min(len(text), longest)], []byte("?>"))
	if end < 0 || !bytes.HasPrefix(text, []byte("<?xml")) {
		return 0, 0
	}
	_, rest, ok := bytes.Cut(text[:end], []byte("encoding"))
	value, equals := bytes.CutPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte("="))
	value = bytes.TrimLeft(value, " \t\r\n")
	if !ok || !equals || len(value) == 0 || (value[0] != '"' && value[0] != '\'') {
		return 0, 0
	}
	from = end - len(value) + 1
	n := bytes.IndexByte(value[1:], value[0])
	return from, from + max(n, 0)
}

// busiestTag returns the maximum number of equal signs between two "<". The decoder allocates a structure for each
// attribute before a caller can count them.
func busiestTag(text []byte) (most int) {
	for len(text) > 0 {
		tag := text
		if i := bytes.IndexByte(text[1:], '<'); i >= 0 {
			tag = text[:i+1]
		}
		most = max(most, bytes.Count(tag, []byte("=")))
		text = text[len(tag):]
	}
	return most
}

func (p *parser) bad(kind error, format string, args ...any) error {
	line, _ := p.dec.InputPos()
	return &ondisk.TextError{What: "ovf", Line: line, Msg: fmt.Sprintf(format, args...), Kind: kind}
}

// next parses one token of the XML, and reports whether more follow.
func (p *parser) next() (more bool, err error) {
	from := p.dec.InputOffset()
	token, err := p.dec.Token()
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	if err != nil {
		return false, p.syntax(err)
	}
	switch t := token.(type) {
	case xml.Directive:
		return false, p.bad(ondisk.ErrReference, "a document type declaration, which could refer to other files; "+
			"remove it")
	case xml.StartElement:
		return true, p.open(t, int(from))
	case xml.CharData:
		return true, p.text(t)
	case xml.EndElement:
		p.path = p.path[:len(p.path)-1] // the decoder checks that the tags match
	}
	return true, nil
}

func (p *parser) syntax(err error) error {
	if errors.Is(err, ondisk.ErrUnsupported) {
		return p.bad(ondisk.ErrUnsupported, "%v", errors.Unwrap(err)) // the error of CharsetReader
	}
	if se, ok := errors.AsType[*xml.SyntaxError](err); ok {
		return &ondisk.TextError{
			What: "ovf", Line: se.Line, Msg: strconv.QuoteToGraphic(se.Msg),
			Kind: ondisk.ErrFormat,
		}
	}
	return p.bad(ondisk.ErrFormat, "%.256q", err.Error())
}

// open processes the start tag of an element at byte from of the text.
func (p *parser) open(t xml.StartElement, from int) error {
	if len(p.path) == maxDepth {
		return p.bad(ondisk.ErrLimit, "elements nest deeper than %d", maxDepth)
	}
	p.path = append(p.path, elementName(t))
	if len(p.path) == 1 {
		if p.seen || t.Name.Local != "Envelope" || !isOVF(t.Name.Space) {
			return p.bad(ondisk.ErrFormat, "root element %.64q of %.128q, must be one Envelope of OVF", t.Name.Local,
				t.Name.Space)
		}
		p.seen, p.root = true, t.Name.Space
	}
	if err := p.openSystem(); err != nil {
		return err
	}
	space := t.Name.Space
	if space == "" { // in OVF 0.9, only the root and attributes have a name space
		space = p.root
	}
	if !isOVF(space) {
		return nil
	}
	a := attributes{p: p, of: t, space: space, places: places(p.env.text[from:p.dec.InputOffset()], from)}
	switch {
	case slices.Equal(p.path, []string{"Envelope", "References", "File"}):
		return p.addFile(a)
	case slices.Equal(p.path, []string{"Envelope", "DiskSection", "Disk"}):
		return p.addDisk(a)
	}
	return nil
}

// schemaInstance is the name space of xsi:type. Spec: XML Schema Part 1, 2.6.
const schemaInstance = "http://www.w3.org/2001/XMLSchema-instance"

// elementName returns the name of an element. In OVF 0.9, written by VMware from 2007 to 2009, the type is the name of
// a section: <Section xsi:type="ovf:DiskSection_Type"> is a DiskSection.
func elementName(t xml.StartElement) string {
	if t.Name.Local != "Section" && t.Name.Local != "Content" {
		return t.Name.Local
	}
	for _, a := range t.Attr {
		if a.Name.Local != "type" || a.Name.Space != schemaInstance {
			continue
		}
		_, name, prefixed := strings.Cut(a.Value, ":")
		if !prefixed {
			name = a.Value
		}
		if name, typed := strings.CutSuffix(strings.TrimSpace(name), "_Type"); typed {
			return name
		}
	}
	return t.Name.Local
}

// isOVF reports whether space is a name space of OVF 0.9, 1 or 2.
func isOVF(space string) bool {
	return strings.HasPrefix(space+"/", "http://schemas.dmtf.org/ovf/envelope/") ||
		strings.HasPrefix(space, "http://www.vmware.com/schema/ovf/")
}

func (p *parser) addFile(a attributes) error {
	if len(p.env.Files) == maxItems {
		return p.bad(ondisk.ErrLimit, "more than %d files", maxItems)
	}
	var f File
	f.ID, _ = a.text("id")
	f.Href, f.href = a.text("href")
	f.Compression, _ = a.text("compression")
	f.Size, f.size = a.number("size")
	f.ChunkSize, _ = a.number("chunkSize")
	f.ChunkSize = max(f.ChunkSize, 0)
	p.env.Files = append(p.env.Files, f)
	return a.err
}

func (p *parser) addDisk(a attributes) error {
	if len(p.env.Disks) == maxItems {
		return p.bad(ondisk.ErrLimit, "more than %d disks", maxItems)
	}
	var d Disk
	d.ID, _ = a.text("diskId")
	d.FileRef, _ = a.text("fileRef")
	d.ParentRef, _ = a.text("parentRef")
	d.Format, _ = a.text("format")
	d.PopulatedSize, d.populated = a.number("populatedSize")
	var capacity, units string
	capacity, d.capacity = a.text("capacity")
	units, d.units = a.text("capacityAllocationUnits")
	if a.err != nil {
		return a.err
	}
	var err error
	if d.Unit, err = parseUnits(units); err != nil {
		return p.bad(ondisk.ErrFormat, "Disk %.256q: %v", d.ID, err)
	}
	if a.of.Name.Space == "" && !d.capacity.there() {
		d.Capacity = -1 // oVirt's OVF 0.9 has size attributes of its own
	} else if d.Capacity, err = parseCapacity(capacity, d.Unit); err != nil {
		return p.bad(ondisk.ErrFormat, "Disk %.256q: %v", d.ID, err)
	}
	p.env.Disks = append(p.env.Disks, d)
	return nil
}

// attributes reads the attributes of one element, and keeps the first error.
type attributes struct {
	p      *parser
	of     xml.StartElement
	space  string
	places []value // in the order of of.Attr
	err    error
}

// text returns an attribute in the name space of OVF or in none.
func (a *attributes) text(name string) (string, value) {
	found := -1
	for i, x := range a.of.Attr {
		if x.Name.Local != name || (x.Name.Space != "" && x.Name.Space != a.space) {
			continue
		}
		if found >= 0 && a.err == nil {
			a.err = a.p.bad(ondisk.ErrFormat, "%s has the attribute %s twice", a.of.Name.Local, name)
		}
		found = i
	}
	if found < 0 {
		return "", value{}
	}
	if len(a.places) != len(a.of.Attr) { // decoder and places disagree, so that no value could be replaced
		a.err = a.p.bad(ondisk.ErrFormat, "the attributes of %s are ambiguous", a.of.Name.Local)
		return "", value{}
	}
	return a.of.Attr[found].Value, a.places[found]
}

// number returns the value of an attribute that counts bytes, or -1 if it is absent.
func (a *attributes) number(name string) (int64, value) {
	s, v := a.text(name)
	if !v.there() {
		return -1, v
	}
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if (err != nil || n < 0) && a.err == nil {
		a.err = a.p.bad(ondisk.ErrFormat, "%s %.64q of %s is not a number of bytes", name, s, a.of.Name.Local)
	}
	return n, v
}

// places returns the ranges of all attribute values in a well-formed start tag. base is the offset of the tag in the
// text.
func places(tag []byte, base int) (out []value) {
	for i := 0; i < len(tag); {
		at := bytes.IndexAny(tag[i:], `"'`)
		if at < 0 {
			break
		}
		from := i + at + 1
		n := bytes.IndexByte(tag[from:], tag[from-1])
		if n < 0 {
			break
		}
		out = append(out, value{base + from, base + from + n})
		i = from + n + 1
	}
	return out
}

// A virtual system refers to its disks by hardware resources, ovf:/disk/ID. Spec: DSP0243 8.3, "HostResource element".
const (
	systemElement   = "VirtualSystem"
	resourceElement = "HostResource"
	diskResource    = "disk/"
)

// openSystem records the start of a virtual system.
func (p *parser) openSystem() error {
	if p.path[len(p.path)-1] != systemElement || slices.Contains(p.path[:len(p.path)-1], systemElement) {
		return nil
	}
	if len(p.env.Systems) == maxItems {
		return p.bad(ondisk.ErrLimit, "more than %d virtual systems", maxItems)
	}
	p.env.Systems = append(p.env.Systems, nil)
	return nil
}

// text reads the text of an element. In a resource of a virtual system, it adds the named disk.
func (p *parser) text(content xml.CharData) error {
	if len(p.env.Systems) == 0 || len(p.path) == 0 || p.path[len(p.path)-1] != resourceElement ||
		!slices.Contains(p.path, systemElement) {
		return nil
	}
	name := strings.TrimSpace(string(content))
	id, ok := strings.CutPrefix(strings.TrimPrefix(strings.TrimPrefix(name, "ovf:"), "/"), diskResource)
	if !ok {
		return nil
	}
	if p.resources++; p.resources > maxItems {
		return p.bad(ondisk.ErrLimit, "more than %d disks of virtual systems", maxItems)
	}
	last := len(p.env.Systems) - 1
	p.env.Systems[last] = append(p.env.Systems[last], id)
	return nil
}

// System returns the index of the first virtual system that uses a disk; ok is false if none does. With fewer than two
// systems, all disks belong to system 0.
func (e *Envelope) System(disk string) (n int, ok bool) {
	if len(e.Systems) < 2 {
		return 0, true
	}
	n = slices.IndexFunc(e.Systems, func(ids []string) bool { return slices.Contains(ids, disk) })
	return n, n >= 0
}

// legacyUnits are the unit names of OVF 1.0 and of CIM_ResourceAllocationSettingData.
var legacyUnits = map[string]int64{
	"": 1, "byte": 1, "bytes": 1, "kilobytes": 1 << 10, "megabytes": 1 << 20, "gigabytes": 1 << 30,
	"terabytes": 1 << 40,
}

// parseUnits parses a programmatic unit, "byte * 2^30". Spec: DMTF DSP0004, annex C.1.
func parseUnits(s string) (int64, error) {
	factors := strings.Split(strings.ToLower(s), "*")
	unit, ok := legacyUnits[strings.TrimSpace(factors[0])]
	if !ok {
		return 0, fmt.Errorf("unit %.64q, must be bytes such as %q", s, "byte * 2^30")
	}
	for _, f := range factors[1:] {
		n, ok := parsePower(f)
		if !ok || n == 0 || n > math.MaxInt64/unit {
			return 0, fmt.Errorf("unit %.64q, must be bytes such as %q", s, "byte * 2^30")
		}
		unit *= n
	}
	return unit, nil
}

// parsePower parses "2^30" or "1024".
func parsePower(s string) (int64, bool) {
	base, exponent, isPower := strings.Cut(s, "^")
	n, err := strconv.ParseInt(strings.TrimSpace(base), 10, 64)
	if err != nil || n < 1 || !isPower {
		return n, err == nil && n > 0
	}
	e, err := strconv.ParseUint(strings.TrimSpace(exponent), 10, 6)
	if err != nil {
		return 0, false
	}
	out := int64(1)
	for range e {
		if out > math.MaxInt64/n {
			return 0, false
		}
		out *= n
	}
	return out, true
}

// parseCapacity returns bytes, or -1 for a property that is set on deployment.
func parseCapacity(s string, unit int64) (int64, error) {
	s = strings.TrimSpace(s)
	if strings.HasPrefix(s, "${") && strings.HasSuffix(s, "}") {
		return -1, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("capacity %.64q, must be a number", s)
	}
	if n > math.MaxInt64/unit {
		return 0, fmt.Errorf("capacity %d in units of %d bytes, must be at most %d bytes", n, unit,
			int64(math.MaxInt64))
	}
	return n * unit, nil
}
