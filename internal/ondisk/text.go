package ondisk

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/htmlindex"
)

// Embedded decodes a JSON table that is embedded in the program. It panics on an error in the table, such as an unknown
// key.
func Embedded[T any](text []byte) (table T) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&table); err != nil {
		panic(err)
	}
	return table
}

// UTF16 decodes all of b, except for an odd last byte. Unpaired surrogates become U+FFFD.
func UTF16(b []byte, order binary.ByteOrder) string {
	u := make([]uint16, len(b)/2)
	for i := range u {
		u[i] = order.Uint16(b[2*i:])
	}
	return string(utf16.Decode(u))
}

// UTF16Z decodes b up to its first zero character.
func UTF16Z(b []byte, order binary.ByteOrder) string {
	for i := 0; i+2 <= len(b); i += 2 {
		if b[i] == 0 && b[i+1] == 0 {
			return UTF16(b[:i], order)
		}
	}
	return UTF16(b, order)
}

// GUID is a GUID as stored by Microsoft and UEFI: the first three groups of its text are little-endian numbers.
type GUID [16]byte

// String returns the text without braces, in lower case.
func (g GUID) String() string {
	slices.Reverse(g[0:4])
	slices.Reverse(g[4:6])
	slices.Reverse(g[6:8])
	text := hex.AppendEncode(make([]byte, 0, 36), g[0:4])
	for _, part := range [][]byte{g[4:6], g[6:8], g[8:10], g[10:]} {
		text = hex.AppendEncode(append(text, '-'), part)
	}
	return string(text)
}

// ParseGUID parses a text with or without braces.
func ParseGUID(s string) (g GUID, ok bool) {
	if inner, braced := strings.CutPrefix(s, "{"); braced {
		s, ok = strings.CutSuffix(inner, "}")
		if !ok {
			return g, false
		}
	}
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return g, false
	}
	b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(b) != len(g) {
		return g, false
	}
	binary.LittleEndian.PutUint32(g[0:], binary.BigEndian.Uint32(b[0:]))
	binary.LittleEndian.PutUint16(g[4:], binary.BigEndian.Uint16(b[4:]))
	binary.LittleEndian.PutUint16(g[6:], binary.BigEndian.Uint16(b[6:]))
	copy(g[8:], b[8:])
	return g, true
}

// CustomGUID returns a UUID of version 8, "custom", and of the common variant, with the first bytes of a digest. Spec:
// RFC 9562, 5.8.
func CustomGUID(sum []byte) (g GUID) {
	copy(g[:], sum)
	g[7] = g[7]&0x0f | 0x80 // the first three groups are little-endian
	g[8] = g[8]&0x3f | 0x80
	return g
}

// MustGUID is ParseGUID for the constants of a specification.
func MustGUID(s string) GUID {
	g, ok := ParseGUID(s)
	if !ok {
		panic("ondisk: " + s + " is no GUID")
	}
	return g
}

// charsets maps names of character sets that the WHATWG index lacks: Windows names of code pages, as VMware writes
// them, and DOS names.
var charsets = map[string]string{
	"windows-932": "shift_jis", "windows-936": "gbk", "windows-949": "euc-kr", "windows-950": "big5",
	"cp932": "shift_jis", "cp936": "gbk", "cp949": "euc-kr", "cp950": "big5", "ms936": "gbk", "ms949": "euc-kr",
	"ms950": "big5", "ibm-943": "shift_jis", "ibm-1252": "windows-1252",
}

// codePage437 is the character set of the IBM PC, used for names in zip archives.
const codePage437 = "ibm437"

// charset returns the decoder of a character set whose bytes below 0x80 are ASCII, or nil for any other name. It
// returns nil for UTF-8, too.
func charset(name string) encoding.Encoding {
	name = strings.ToLower(strings.TrimSpace(name))
	if name == codePage437 {
		return charmap.CodePage437
	}
	if known, ok := charsets[name]; ok {
		name = known
	}
	e, err := htmlindex.Get(name)
	if err != nil {
		return nil
	}
	switch canonical, _ := htmlindex.Name(e); canonical {
	case "utf-8", "iso-2022-jp", "utf-16le", "utf-16be", "replacement", "x-user-defined":
		return nil
	}
	return e
}

// KnownCharset reports whether DecodeText can decode a character set.
func KnownCharset(name string) bool {
	utf8 := name == "" || strings.EqualFold(name, "utf-8") || strings.EqualFold(name, "utf8")
	return utf8 || charset(name) != nil
}

// DecodeText converts text to UTF-8. name is its character set in the notation of VMware, IANA or WHATWG; "" means
// UTF-8. ASCII text is returned unchanged, and so is text in an unknown character set.
func DecodeText(name, text string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return r >= utf8.RuneSelf }) {
		return text
	}
	e := charset(name)
	if e == nil {
		return text
	}
	out, err := e.NewDecoder().String(text)
	if err != nil {
		return text
	}
	return out
}

// StoredNames returns the possible on-disk names of a file whose name is stored in a character set: in UTF-8, as
// created on systems with text names, and in the stored bytes.
func StoredNames(charset, stored string) []string {
	decoded := DecodeText(charset, stored)
	if decoded == stored {
		return []string{stored}
	}
	return []string{decoded, stored}
}

// This part of the package compiles regular expressions on first use. Most runs of the program use few of them, and an
// expression with counts costs more than the rest of the startup.

// LazyPattern returns a function that returns the expression, compiled on the first call. An invalid expression panics
// there.
func LazyPattern(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}
