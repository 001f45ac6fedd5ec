package volume

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf16"
)

// utf16String decodes little-endian UTF-16 up to a zero.
func utf16String(b []byte) string { return utf16Text(b, binary.LittleEndian) }

func utf16Text(b []byte, order binary.ByteOrder) string {
	u := make([]uint16, 0, len(b)/2)
	for ; len(b) >= 2; b = b[2:] {
		c := order.Uint16(b)
		if c == 0 {
			break
		}
		u = append(u, c)
	}
	return string(utf16.Decode(u))
}

// zeroTerminated is a text in a field of fixed size.
func zeroTerminated(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// padded is a text filled up with blanks, as FAT writes it. "NO NAME" is how formatters write none.
func padded(b []byte) string {
	s := strings.TrimRight(zeroTerminated(b), " ")
	if s == "NO NAME" {
		return ""
	}
	return s
}

// plainID replaces what no identifier has, so that what shows it need not be careful.
func plainID(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case '0' <= r && r <= '9', 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', r == '-', r == ':':
			return r
		}
		return '-'
	}, s)
}

// bytesOf is a number of bytes in a message.
func bytesOf(n int64) string { return fmt.Sprintf("%d bytes", n) }
