package vhdx

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
)

// guid is stored as Windows does: the first three groups of its text are little-endian numbers.
type guid [16]byte

// String is the text without braces, in lower case.
func (g guid) String() string {
	return fmt.Sprintf("%08x-%04x-%04x-%x-%x", binary.LittleEndian.Uint32(g[0:]), binary.LittleEndian.Uint16(g[4:]), binary.LittleEndian.Uint16(g[6:]), g[8:10], g[10:])
}

// parseGUID reads a text with or without braces.
func parseGUID(s string) (g guid, ok bool) {
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

// known is parseGUID for the constants of the specification.
func known(s string) guid {
	g, ok := parseGUID(s)
	if !ok {
		panic("vhdx: " + s + " is no GUID")
	}
	return g
}
