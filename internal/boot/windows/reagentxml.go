package windows

import (
	"bytes"
	"strconv"
	"strings"
)

// script is the encoding of a text, of which only ASCII is searched.
type script struct {
	start int64 // of the first character, behind a byte order mark
	unit  int   // bytes of a character; of UTF-8 each byte is taken for one
	low   int   // the byte of a character that holds its ASCII code
}

// decodeText returns a byte for each character of a text in UTF-8 or UTF-16: the ASCII code, or 0xff. The first bytes
// tell the encodings apart, since UTF-16 has a mark or begins with a declaration. Spec: XML 1.0, appendix F.
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

// encode stores ASCII characters.
func (s script) encode(text []byte) []byte {
	out := make([]byte, len(text)*s.unit)
	for i, c := range text {
		out[i*s.unit+s.low] = c
	}
	return out
}

// location is a tag of ReAgent.xml that names a partition: <WinreLocation path="\Recovery\WindowsRE" id="0"
// offset="1048576" guid="{...}"/>. The places are characters of the text.
type location struct {
	name   string
	id     string
	guid   string
	offset int64 // bytes
	from   int   // of the white space in front of the tag
	tag    int
	number int
	to     int // behind the number
}

const white = " \t\r\n"

// locations finds the tags whose names end in "Location" and that have an offset. It parses as much of XML as such a
// file has: tags, declarations and comments.
func locations(text []byte) []location {
	var out []location
	for end := 0; ; {
		i := bytes.IndexByte(text[end:], '<')
		if i < 0 {
			return out
		}
		tag := end + i
		from := end + len(bytes.TrimRight(text[end:tag], white))
		if end = tagEnd(text, tag); end < 0 {
			return out
		}
		l := location{from: from, tag: tag}
		if l.read(text[:end]) && strings.HasSuffix(l.name, "Location") {
			out = append(out, l)
		}
	}
}

// tagEnd returns the place behind a tag or comment, -1 if it does not end.
func tagEnd(text []byte, tag int) int {
	if bytes.HasPrefix(text[tag:], []byte("<!--")) {
		if i := bytes.Index(text[tag+4:], []byte("-->")); i >= 0 {
			return tag + 4 + i + 3
		}
		return -1
	}
	quote := byte(0)
	for i := tag; i < len(text); i++ {
		switch c := text[i]; {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '>':
			return i + 1
		}
	}
	return -1
}

// read parses the name and the attributes of a tag that text ends with, and reports whether it has an offset.
func (l *location) read(text []byte) bool {
	at := l.tag + 1
	n := letters(text[at:])
	l.name = string(text[at : at+n])
	at += n
	for {
		at += len(text[at:]) - len(bytes.TrimLeft(text[at:], white))
		n := letters(text[at:])
		name := string(text[at : at+n])
		at += n
		if n == 0 || at+1 >= len(text) || text[at] != '=' {
			return l.to > 0
		}
		length := bytes.IndexByte(text[at+2:], text[at+1])
		if length < 0 || (text[at+1] != '"' && text[at+1] != '\'') {
			return l.to > 0
		}
		l.attribute(name, text, at+2, at+2+length)
		at += 2 + length + 1
	}
}

func (l *location) attribute(name string, text []byte, from, to int) {
	value := string(text[from:to])
	switch name {
	case "id":
		l.id = value
	case "guid":
		l.guid = value
	case "offset":
		n, err := strconv.ParseUint(value, 10, 63)
		if err != nil || l.to > 0 {
			return
		}
		l.offset, l.number, l.to = int64(n), from, to
	}
}

// letters counts the ASCII letters at the start of a text.
func letters(text []byte) int {
	n := 0
	for n < len(text) && (text[n]|0x20 >= 'a' && text[n]|0x20 <= 'z') {
		n++
	}
	return n
}
