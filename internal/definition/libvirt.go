package definition

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
)

// maxDepth bounds elements in elements. A chain of backing files, each in another, is the deepest of a real domain.
const maxDepth = 256

// maxName bounds the names of elements, in bytes: longer ones are not those of libvirt.
const maxName = 64

// walker goes through a definition of libvirt token by token.
type walker struct {
	dec  *xml.Decoder
	def  *Definition
	path []string // names of the elements that are open, below the root
	root bool     // was met
	done bool     // its end was met
	line int      // of the token
	at   *entry   // the disk that is open, or the volume
	text strings.Builder

	unit string // of the capacity
}

// Libvirt reads a domain or a volume, as virsh dumpxml and virsh vol-dumpxml print them. Sources: docs/formatdomain.rst
// and docs/formatstorage.rst of libvirt.
func Libvirt(text []byte) (*Definition, error) {
	if len(text) > MaxText {
		return nil, ondisk.In(ondisk.ErrLimit, "definition: more than %d bytes; %s", MaxText, wanted)
	}
	w := &walker{dec: xml.NewDecoder(bytes.NewReader(text)), def: &Definition{}}
	charset := ""
	w.dec.CharsetReader = func(name string, _ io.Reader) (io.Reader, error) {
		charset = name
		return nil, ondisk.ErrUnsupported
	}
	for {
		w.line, _ = w.dec.InputPos()
		t, err := w.dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if syntax, ok := errors.AsType[*xml.SyntaxError](err); ok {
			w.line = syntax.Line
			return nil, w.bad(ondisk.ErrFormat, "%s; save it anew with virsh dumpxml or virsh vol-dumpxml",
				w.plain(syntax.Msg))
		}
		if err != nil && charset == "" {
			return nil, w.bad(ondisk.ErrUnsupported, "the version of XML is not 1.0; %s", wanted)
		}
		if err != nil {
			return nil, w.bad(ondisk.ErrUnsupported, "the encoding %.64q is not read; save it as UTF-8", charset)
		}
		if err := w.token(t); err != nil {
			return nil, err
		}
	}
	if !w.root {
		return nil, w.bad(ondisk.ErrFormat, "no element; %s", wanted)
	}
	if w.def.kind == volume {
		return w.def, w.endVolume()
	}
	return w.def, nil
}

const wanted = "want the <domain> of virsh dumpxml or the <volume> of virsh vol-dumpxml"

func (w *walker) bad(kind error, format string, args ...any) error {
	return &ondisk.TextError{What: "definition", Line: w.line, Msg: fmt.Sprintf(format, args...), Kind: kind}
}

// plain returns what is wrong with XML in other words than those of encoding/xml.
func (w *walker) plain(msg string) string {
	if inner, outer, ok := strings.Cut(msg, " closed by "); ok {
		return fmt.Sprintf("%.64s is closed by %.64s", strings.TrimPrefix(inner, "element "), outer)
	}
	for begin, says := range map[string]string{
		"unexpected EOF":                   "the file ends inside of <" + w.open() + ">: it is truncated",
		"unexpected end element ":          "%.64s closes no element that is open",
		"invalid character entity ":        "%.64s stands for no letter; & itself is written &amp;",
		"illegal character code ":          "the character %s is not allowed",
		"invalid UTF-8":                    "a byte is not UTF-8",
		"unescaped < inside quoted string": "a value holds <, or lacks its closing quotation mark",
		"expected attribute name":          "an attribute is not name='value'",
		"attribute name without =":         "an attribute is not name='value'",
		"unquoted or missing":              "an attribute is not name='value'",
	} {
		if rest, ok := strings.CutPrefix(msg, begin); ok && strings.Contains(says, "%") {
			return fmt.Sprintf(says, rest)
		} else if ok {
			return says
		}
	}
	return "this is not XML"
}

// open names the element that is open.
func (w *walker) open() string {
	switch {
	case len(w.path) > 0:
		return w.path[len(w.path)-1]
	case w.def.kind == volume:
		return "volume"
	}
	return "domain"
}

func (w *walker) token(t xml.Token) error {
	switch t := t.(type) {
	case xml.Directive:
		return w.bad(ondisk.ErrUnsupported, "a document type; %s", wanted)
	case xml.StartElement:
		return w.start(t)
	case xml.EndElement:
		return w.end()
	case xml.CharData:
		w.text.Write(t) // the file bounds it
	}
	return nil
}

func (w *walker) start(e xml.StartElement) error {
	w.text.Reset()
	name := e.Name.Local
	if e.Name.Space != "" || len(name) > maxName {
		name = "" // of QEMU and others, in their own name space
	}
	switch {
	case !w.root:
		w.root = true
		switch name {
		case "domain":
		case "volume":
			w.def.kind, w.at = volume, &entry{line: w.line, device: "the volume"}
		default:
			return w.bad(ondisk.ErrUnsupported, "the root element is <%.64s>; %s", name, wanted)
		}
		w.path = []string{}
		return nil
	case w.done:
		return w.bad(ondisk.ErrUnsupported, "a second root element, <%.64s>; give each definition in a file of its own",
			name)
	case len(w.path) == maxDepth:
		return w.bad(ondisk.ErrLimit, "more than %d elements in one another", maxDepth)
	}
	w.path = append(w.path, name)
	attrs := map[string]string{}
	for _, a := range e.Attr {
		if a.Name.Space == "" {
			attrs[a.Name.Local] = a.Value
		}
	}
	w.element(strings.Join(w.path, "/"), attrs)
	return nil
}

// element takes an element with its attributes.
func (w *walker) element(path string, attrs map[string]string) {
	if w.def.kind == volume {
		switch path {
		case "capacity":
			w.unit, w.at.capacityLine = attrs["unit"], w.line
		case "target/format":
			w.at.format, w.at.formatLine = attrs["type"], w.line
		}
		return
	}
	if path == "devices/disk" {
		w.at = nil
		if kind := attrs["device"]; kind == "" || kind == "disk" || kind == "lun" {
			w.at = &entry{line: w.line, device: "the disk"}
		}
		return
	}
	path, ok := strings.CutPrefix(path, "devices/disk/")
	if !ok || w.at == nil {
		return
	}
	switch path {
	case "driver":
		w.at.format, w.at.formatLine = attrs["type"], w.line
	case "target":
		w.at.device = "the disk " + attrs["dev"]
	case "geometry":
		w.at.geometry = w.line
	case "source/slices/slice":
		w.at.sliced = true
	case "source":
		w.at.line, w.at.path, w.at.pool = w.line, pathOf(attrs), attrs["pool"]
	default:
		w.layer(path, attrs)
	}
}

// pathOf returns the path of a source.
func pathOf(attrs map[string]string) string {
	for _, name := range []string{"file", "dev", "volume"} {
		if p := attrs[name]; p != "" {
			return p
		}
	}
	return ""
}

// layer takes a further file: of the chain of backing files, or one that a job of the domain writes to.
func (w *walker) layer(path string, attrs map[string]string) {
	role := map[string]string{"backingStore": "backing file", "mirror": "mirror"}[strings.SplitN(path, "/", 2)[0]]
	if !strings.HasSuffix(path, "/source") || role == "" {
		return
	}
	w.at.below = append(w.at.below, layer{w.line, pathOf(attrs), role})
}

func (w *walker) end() error {
	if len(w.path) == 0 {
		w.done = true // the root element
		return nil
	}
	path, text := strings.Join(w.path, "/"), strings.TrimSpace(w.text.String())
	w.path = w.path[:len(w.path)-1]
	w.text.Reset()
	switch {
	case path == "name":
		w.def.name = text
	case w.def.kind == domain && path == "devices/disk" && w.at != nil:
		if w.at.path != "" {
			w.def.disks = append(w.def.disks, *w.at)
		}
		w.at = nil
	case w.def.kind != volume:
	case path == "target/path":
		w.at.line, w.at.path = w.line, text
	case path == "backingStore/path":
		w.at.below = append(w.at.below, layer{w.line, text, "backing file"})
	case path == "capacity":
		n, ok := scaled(text, w.unit)
		if !ok {
			return w.bad(ondisk.ErrFormat, "capacity %.64q with the unit %.64q; want a number of bytes", text, w.unit)
		}
		w.at.capacity = n
	}
	return nil
}

// endVolume completes the one disk of a volume.
func (w *walker) endVolume() error {
	switch {
	case w.at.path == "":
		return w.bad(ondisk.ErrFormat, "the volume has no <path> in <target>; %s", wanted)
	case w.at.capacityLine == 0:
		return w.bad(ondisk.ErrFormat, "the volume has no <capacity>; %s", wanted)
	}
	w.def.disks = []entry{*w.at}
	return nil
}

// scaled returns a size in bytes. Source: virScaleInteger in src/util/virutil.c of libvirt: "bytes" and "B", then K,
// KiB and so on by 1024, and KB and so on by 1000, in any case.
func scaled(text, unit string) (int64, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, false
	}
	unit = strings.ToLower(unit)
	if unit == "" || unit == "b" || unit == "byte" || unit == "bytes" {
		return n, true
	}
	power := strings.IndexByte("kmgtpe", unit[0])
	base := map[string]int64{"": 1024, "ib": 1024, "b": 1000}[unit[1:]]
	if power < 0 || base == 0 {
		return 0, false
	}
	for range power + 1 {
		if n > math.MaxInt64/base {
			return 0, false
		}
		n *= base
	}
	return n, true
}
