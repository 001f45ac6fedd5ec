package image

import (
	"bytes"
	"fmt"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/trueup/trueup/internal/ondisk"
)

// headerName is the name that stands in the header itself.
func headerName(h []byte) string {
	field := func(at [2]int) string {
		b, _, _ := bytes.Cut(h[at[0]:at[1]], []byte{0})
		return string(b)
	}
	name := field(tarName)
	if string(h[tarMagic[0]:tarMagic[1]]) != "ustar\x0000" {
		return name // GNU has other fields where ustar has the prefix
	}
	if prefix := field(tarPrefix); prefix != "" {
		return prefix + "/" + name
	}
	return name
}

// memberName is the name of a member without a leading "./". Nothing is extracted, but a package that names places outside
// of itself is not to be trusted.
func memberName(name string) (string, error) {
	clean := strings.TrimSuffix(strings.TrimPrefix(name, "./"), "/")
	var bad string
	switch {
	case clean == "" && name != "./":
		bad = "is empty"
	case len(clean) > maxName || strings.Count(clean, "/") > maxFolders:
		bad = fmt.Sprintf("is longer than %d bytes or deeper than %d folders", maxName, maxFolders)
	case strings.HasPrefix(clean, "/") || (clean != "" && clean != path.Clean(clean)) || strings.HasPrefix(clean+"/", "../"):
		bad = "leaves the archive"
	case strings.ContainsAny(clean, `\:`):
		bad = "has a backslash or a colon"
	case strings.ContainsFunc(clean, func(r rune) bool { return r < 0x20 || r == 0x7f }) || !utf8.ValidString(clean):
		bad = "has characters that no file name of a package has"
	default:
		return clean, nil
	}
	return "", fmt.Errorf("member name %.256q %s: %w", name, bad, ondisk.ErrReference)
}

// tarNumber reads octal digits, or a number in base 256, which has the top bit set. Spec: GNU tar, "Basic Tar Format".
func tarNumber(b []byte) (int64, bool) {
	if b[0]&0x80 == 0 {
		digits := strings.Trim(string(b), " \x00")
		if digits == "" {
			return 0, true
		}
		n, err := strconv.ParseUint(digits, 8, 63)
		return ondisk.I64(n), err == nil
	}
	n := int64(b[0] & 0x7f)
	if n&0x40 != 0 { // the sign
		return 0, false
	}
	for _, c := range b[1:] {
		if n >= 1<<55 {
			return 0, false
		}
		n = n<<8 | int64(c)
	}
	return n, true
}

// putTarNumber writes octal digits as far as they reach, base 256 beyond.
func putTarNumber(b []byte, n int64) {
	digits := strconv.FormatInt(n, 8)
	if len(digits) < len(b) {
		copy(b, strings.Repeat("0", len(b)-1-len(digits))+digits+"\x00")
		return
	}
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = ondisk.Byte(n & 0xff)
		n >>= 8
	}
	b[0] |= 0x80
}

// tarChecksum adds up a header with blanks in place of the sum. Old programs took bytes as signed.
func tarChecksum(h []byte) (unsigned, signed int64) {
	for i, c := range h {
		if i >= tarSum[0] && i < tarSum[1] {
			c = ' '
		}
		unsigned += int64(c)
		signed += int64(int8(c)) // the same bits, as those programs read them
	}
	return unsigned, signed
}
