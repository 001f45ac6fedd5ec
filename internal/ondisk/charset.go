package ondisk

import (
	"strings"
	"unicode/utf8"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/htmlindex"
)

// charsets are names of character sets that the index of WHATWG lacks: those that Windows gives its code pages, as
// VMware writes them, and those of DOS.
var charsets = map[string]string{
	"windows-932": "shift_jis", "windows-936": "gbk", "windows-949": "euc-kr", "windows-950": "big5",
	"cp932": "shift_jis", "cp936": "gbk", "cp949": "euc-kr", "cp950": "big5", "ms936": "gbk", "ms949": "euc-kr",
	"ms950": "big5", "ibm-943": "shift_jis", "ibm-1252": "windows-1252",
}

// codePage437 is the character set of the IBM PC, in which zip archives have names.
const codePage437 = "ibm437"

// charset returns the decoder of a character set whose bytes below 0x80 are ASCII, nil for any other name. UTF-8 has
// no decoder either.
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

// KnownCharset reports whether DecodeText decodes a character set.
func KnownCharset(name string) bool {
	utf8 := name == "" || strings.EqualFold(name, "utf-8") || strings.EqualFold(name, "utf8")
	return utf8 || charset(name) != nil
}

// DecodeText returns text in UTF-8. name is that of its character set as VMware, IANA or WHATWG has it; empty for
// UTF-8. Text without other characters than those of ASCII, and that of an unknown character set, stays as it is.
func DecodeText(name, text string) string {
	if isASCII(text) {
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

// StoredNames returns the names that a file can have on disk whose name is stored in a character set: in UTF-8, as
// programs create it on systems whose names are text, and in the bytes as they are stored.
func StoredNames(charset, stored string) []string {
	decoded := DecodeText(charset, stored)
	if decoded == stored {
		return []string{stored}
	}
	return []string{decoded, stored}
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r >= utf8.RuneSelf })
}
