package volume

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// BootMagic is the last two bytes of a boot sector.
const BootMagic = 0xaa55

// Superblock decodes the fixed-size struct v from off, and returns its bytes. It returns ErrNoMatch where the disk ends
// before them.
func Superblock(d disk.Disk, off int64, order binary.ByteOrder, v any) ([]byte, error) {
	b, err := ReadBlock(d, off, int64(binary.Size(v)))
	if err != nil {
		return nil, err
	}
	return b, ondisk.Fill(b, order, v)
}

// PowerBetween reports whether n is a power of two within both limits.
func PowerBetween(n, low, high int64) bool { return n >= low && n <= high && units.IsPowerOfTwo(n) }

// Hex formats a number at its full width for a message.
func Hex[T uint16 | uint32 | uint64](n T) string {
	return fmt.Sprintf("%#0*x", 2*binary.Size(n), n)
}

// Label returns the text of a field of fixed size, without the blanks behind it.
func Label(b []byte) string { return strings.TrimRight(Text(b), " \t\r\n") }

// Text returns the text of a field of fixed size, up to the first zero.
func Text(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// UUID formats a UUID as libblkid does: all zeros are an empty text.
func UUID(b [16]byte) string {
	if b == [16]byte{} {
		return ""
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// ReadBlock reads n bytes at off. It returns ErrNoMatch where the disk ends before them.
func ReadBlock(d disk.Disk, off, n int64) ([]byte, error) {
	if off < 0 || off > d.Size()-n {
		return nil, ondisk.ErrNoMatch
	}
	return ondisk.Bytes(d, off, n)
}

// orNil drops ErrNoMatch of a structure that a volume may lack.
func orNil(err error) error {
	if errors.Is(err, ondisk.ErrNoMatch) {
		return nil
	}
	return err
}

// DOSLabel returns a text that is padded with blanks. Formatters write "NO NAME" for an empty one.
func DOSLabel(b []byte) string {
	if s := strings.TrimRight(Text(b), " "); s != "NO NAME" {
		return s
	}
	return ""
}
