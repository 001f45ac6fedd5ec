package volume

import (
	"bytes"
	"fmt"
	"strings"
)

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
