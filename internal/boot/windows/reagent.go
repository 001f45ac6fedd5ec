package windows

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume/identify"
)

// Recovery finds the places of the recovery system in ReAgent.xml. Elements such as WinreLocation name a partition by
// its byte offset in decimal, on GPT disks too. A wrong offset disables only the recovery system.
var Recovery = boot.Finder{Name: "winre", Find: boot.Everywhere(findRecovery)}

// recoveryFiles are the paths of ReAgent.xml: in Windows, and next to the recovery system itself.
var recoveryFiles = []string{"Windows/System32/Recovery/ReAgent.xml", "Recovery/WindowsRE/ReAgent.xml"}

const (
	reenable = "run reagentc /disable and reagentc /enable after the first boot of the copy"

	maxRecovery     = 64 << 10 // bytes of the file; it usually has about 1200
	maxRecoveryTags = 64
)

func findRecovery(g *boot.Guest, p boot.Partition, f *boot.Found) error {
	if !identify.Traits(p.Volume.Kind).Windows {
		return nil
	}
	for _, path := range recoveryFiles {
		file, err := windowsFile(g, p, path)
		var refs []boot.Ref
		if err == nil {
			refs, err = recoveryRefs(g, p, file)
		}
		var kept boot.Found // at most warnings
		what := fmt.Sprintf("%s of partition %d cannot be read", shown(path), p.Number)
		if err := kept.Unread("winre", 0, what, err, reenable); err != nil {
			return err
		}
		for i := range kept.Issues {
			kept.Issues[i].Text += ": the recovery system may be disabled"
		}
		r := fileRefs{g: g, p: p, file: file, code: "winre", refs: refs}
		if err := r.keep(&kept); err != nil {
			return err
		}
		f.Refs = append(f.Refs, kept.Refs...)
		for _, i := range kept.Issues {
			f.Warn(i.Code, i.Partition, i.Text, i.Remedy)
		}
	}
	return nil
}

func recoveryRefs(g *boot.Guest, p boot.Partition, file *guestfile.File) ([]boot.Ref, error) {
	if file.Size() > maxRecovery {
		return nil, fmt.Errorf("%w of %d bytes", ondisk.ErrLimit, maxRecovery)
	}
	raw, err := ondisk.Bytes(file, 0, file.Size())
	if err != nil {
		return nil, err
	}
	text, in := decodeText(raw)
	var refs []boot.Ref
	for _, l := range locations(text) {
		if len(refs) == maxRecoveryTags {
			return nil, fmt.Errorf("%w of %d places", ondisk.ErrLimit, maxRecoveryTags)
		}
		if l.offset == 0 || !onThisDisk(g, l) {
			continue
		}
		r := boot.Ref{
			Kind: "winre " + l.name, Partition: p.Number, File: file.Path, Off: in.start + int64(l.from*in.unit),
			Points: l.offset,
		}
		if r.At, r.Raw, err = g.At(p, file, r.Off, int64((l.to-l.from)*in.unit)); err != nil {
			return nil, err
		}
		if aim(g, &r); r.Target != 0 {
			r.Encode = stretch{in, l.tag - l.from, l.number - l.from, l.to - l.from}.encode
			r.Loss, r.Remedy = "the recovery system may be disabled", reenable
		}
		refs = append(refs, r)
	}
	return refs, nil
}

// onThisDisk reports whether a location is on this disk. The id is the signature of an MBR disk, in decimal; the guid
// belongs to a GPT. A missing one is 0.
func onThisDisk(g *boot.Guest, l location) bool {
	guid := strings.ToLower(strings.Trim(l.guid, "{}"))
	if strings.Trim(guid, "0-") != "" {
		// No specification defines this GUID. In known files, it is the GUID of the disk.
		return guid == g.GUID ||
			slices.ContainsFunc(g.Partitions, func(p boot.Partition) bool { return p.GUID == guid })
	}
	n, err := strconv.ParseUint(l.id, 10, 32)
	return err != nil || n == 0 || (g.Scheme == table.MBR || g.Hybrid()) && n == uint64(g.Signature)
}

// stretch is a tag up to the end of its number, with the white space before it. White space between tags has no
// meaning, so it absorbs a change in the length of the number. The fields count characters.
type stretch struct {
	in               script
	tag, number, end int
}

// encode writes a byte offset in decimal.
func (s stretch) encode(raw []byte, to int64) ([]byte, error) {
	digits := []byte(strconv.FormatInt(to, 10))
	spare := s.tag + s.end - s.number - len(digits) // remaining white space
	if spare < 0 {
		return nil, fmt.Errorf("a number of %d digits: %w of %d, for which there is room", len(digits), ondisk.ErrLimit,
			len(digits)+spare)
	}
	if s.tag == 0 { // leading zeros do not change the number
		digits = append(bytes.Repeat([]byte("0"), spare), digits...)
		spare = 0
	}
	out := s.in.encode(bytes.Repeat([]byte(" "), max(0, spare-s.tag)))
	out = append(out, raw[max(0, s.tag-spare)*s.in.unit:s.number*s.in.unit]...)
	return append(out, s.in.encode(digits)...), nil
}

// script is the encoding of a text. Only its ASCII characters are searched.
type script struct {
	start int64 // of the first character, after a byte order mark
	unit  int   // bytes of a character; in UTF-8 each byte counts as one
	low   int   // index of the byte with the ASCII code in a character
}

// decodeText returns a byte for each character of a UTF-8 or UTF-16 text: the ASCII code, or 0xff. The first bytes
// determine the encoding, since UTF-16 has a mark or begins with a declaration. Spec: XML 1.0, appendix F.
func decodeText(raw []byte) ([]byte, script) {
	switch {
	case bytes.HasPrefix(raw, []byte{0xff, 0xfe}), bytes.HasPrefix(raw, []byte{'<', 0, '?', 0}):
		return decodeWide(raw, 0)
	case bytes.HasPrefix(raw, []byte{0xfe, 0xff}), bytes.HasPrefix(raw, []byte{0, '<', 0, '?'}):
		return decodeWide(raw, 1)
	case bytes.HasPrefix(raw, []byte{0xef, 0xbb, 0xbf}):
		return raw[3:], script{start: 3, unit: 1}
	}
	return raw, script{unit: 1}
}

func decodeWide(raw []byte, low int) ([]byte, script) {
	s := script{unit: 2, low: low}
	if raw[low] == 0xff { // the mark U+FEFF
		s.start = 2
	}
	raw = raw[s.start:]
	text := make([]byte, len(raw)/2)
	for i := range text {
		if text[i] = raw[2*i+low]; raw[2*i+1-low] != 0 {
			text[i] = 0xff
		}
	}
	return text, s
}

// encode encodes ASCII characters.
func (s script) encode(text []byte) []byte {
	out := make([]byte, len(text)*s.unit)
	for i, c := range text {
		out[i*s.unit+s.low] = c
	}
	return out
}

// location is a tag of ReAgent.xml that names a partition: <WinreLocation path="\Recovery\WindowsRE" id="0"
// offset="1048576" guid="{...}"/>. The places are character indexes in the text.
type location struct {
	name   string
	id     string
	guid   string
	offset int64 // bytes
	from   int   // start of the white space before the tag
	tag    int
	number int
	to     int // end of the number
}

// recoveryTag matches a comment, or a tag with its name and attributes, each after white space. It covers the subset of
// XML in such files. The last group is the end of a tag; without it the tag is the rest of the text.
var recoveryTag = ondisk.LazyPattern(`(?s)[ \t\r\n]*(?:<!--(?:.*?-->|.*)|` +
	`<([A-Za-z]*)((?:"[^"]*"|'[^']*'|[^>"'])*)(?:(>)|.*))`)

var recoveryAttribute = ondisk.LazyPattern(`^[ \t\r\n]*([A-Za-z]+)=("[^"]*"|'[^']*')`)

// locations finds the tags whose names end in "Location" and that have an offset.
func locations(text []byte) (out []location) {
	for _, m := range recoveryTag().FindAllSubmatchIndex(text, -1) {
		if m[6] < 0 {
			continue
		}
		l := location{name: string(text[m[2]:m[3]]), from: m[0], tag: m[2] - 1}
		if l.read(text[:m[5]], m[4]); l.to > 0 && strings.HasSuffix(l.name, "Location") {
			out = append(out, l)
		}
	}
	return out
}

// read parses the attributes from a place of the text on.
func (l *location) read(text []byte, at int) {
	for {
		m := recoveryAttribute().FindSubmatchIndex(text[at:])
		if m == nil {
			return
		}
		from, to := at+m[4]+1, at+m[5]-1
		value := string(text[from:to])
		switch string(text[at+m[2] : at+m[3]]) {
		case "id":
			l.id = value
		case "guid":
			l.guid = value
		case "offset":
			if n, err := strconv.ParseUint(value, 10, 63); err == nil && l.to == 0 {
				l.offset, l.number, l.to = int64(n), from, to
			}
		}
		at += m[1]
	}
}
