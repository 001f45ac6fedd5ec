package image

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// maxTarName is what the name field of a header holds, in bytes.
const maxTarName = 100

// newTarHeader is the header of a file that was in no archive before: what ovftool writes.
func newTarHeader(name string, mtime int64) ([]byte, error) {
	if len(name) > maxTarName {
		return nil, ondisk.In(ErrUsage, "the name %.256q has %d bytes, and an OVA can hold at most %d", name, len(name), maxTarName)
	}
	h := make([]byte, tarBlock)
	copy(h, name)
	copy(h[100:], "0000644\x000000000\x000000000\x00") // mode, uid, gid
	putTarNumber(h[136:148], max(mtime, 0))
	h[tarType] = '0'
	copy(h[tarMagic[0]:], "ustar\x0000")
	putTarSum(h)
	return h, nil
}

func putTarSum(h []byte) {
	sum, _ := tarChecksum(h)
	copy(h[tarSum[0]:], fmt.Sprintf("%06o\x00 ", sum))
}

// resized gives the headers of a member, of which its own is the last block, another size. Their length depends on most
// alone, a bound of size: the place of the member's bytes must be known before its size is.
func resized(headers []byte, size, most int64) ([]byte, error) {
	var out []byte
	own := len(headers) - tarBlock
	for off := 0; off < own; {
		h := bytes.Clone(headers[off : off+tarBlock])
		n, ok := tarNumber(h[tarSize[0]:tarSize[1]])
		if !ok || n > int64(own-off-tarBlock) {
			return nil, &ondisk.FormatError{What: "tar header", Off: int64(off), Field: "size", Got: n, Want: "the bytes that were there"}
		}
		payload := headers[off+tarBlock : off+tarBlock+int(n)]
		off += tarBlock + int(units.AlignUp(n, tarBlock))
		if h[tarType] == tarPAX {
			var err error
			if payload, err = resizedPAX(payload, size, most); err != nil {
				return nil, err
			}
			putTarNumber(h[tarSize[0]:tarSize[1]], int64(len(payload)))
			putTarSum(h)
		}
		out = append(append(out, h...), payload...)
		out = append(out, make([]byte, units.AlignUp(int64(len(out)), tarBlock)-int64(len(out)))...)
	}
	h := bytes.Clone(headers[own:])
	putTarNumber(h[tarSize[0]:tarSize[1]], size)
	putTarSum(h)
	return append(out, h...), nil
}

// resizedPAX replaces the size in the records of a PAX header, filled with zeros to the digits of most.
func resizedPAX(b []byte, size, most int64) ([]byte, error) {
	var out bytes.Buffer
	err := eachPAX(b, func(key, value string) error {
		if key == "size" {
			value = fmt.Sprintf("%0*d", len(strconv.FormatInt(most, 10)), size)
		}
		out.WriteString(paxRecord(key, value))
		return nil
	})
	return out.Bytes(), err
}

// paxRecord is a record, which begins with its own length.
func paxRecord(key, value string) string {
	rest := " " + key + "=" + value + "\n"
	n := len(rest)
	for n != len(rest)+len(strconv.Itoa(n)) {
		n = len(rest) + len(strconv.Itoa(n))
	}
	return strings.Join([]string{strconv.Itoa(n), rest}, "")
}
