package ondisk

import (
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"
	"unicode/utf16"
)

// UTF16 decodes all of b, but for an odd last byte. Halves of surrogate pairs become U+FFFD.
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

// GUID is stored as Microsoft and UEFI do: the first three groups of its text are little-endian numbers.
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

// ParseGUID reads a text with or without braces.
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

// CustomGUID makes a UUID of version 8, "custom", and of the common variant of the first bytes of a digest. Spec: RFC
// 9562, 5.8.
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
