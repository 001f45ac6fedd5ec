package volume

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

const (
	atSuper   = 1024   // where Linux keeps most superblocks
	bootMagic = 0xaa55 // the last two bytes of a boot sector
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// superblock decodes the fixed-size struct v from off. Where the disk ends before it, nothing matches.
func superblock(d disk.Disk, off int64, order binary.ByteOrder, v any) ([]byte, error) {
	n := int64(binary.Size(v))
	if off < 0 || off > d.Size()-n {
		return nil, ondisk.ErrNoMatch
	}
	b, err := ondisk.Bytes(d, off, n)
	if err != nil {
		return nil, err
	}
	return b, ondisk.Fill(b, order, v)
}

// powerBetween reports whether n is a power of two within both limits.
func powerBetween(n, low, high int64) bool { return n >= low && n <= high && units.IsPowerOfTwo(n) }

// blocksWithin checks a count of blocks against the size of the partition.
func blocksWithin(what, name string, off int64, n uint64, block, size int64) error {
	if most := size / block; n == 0 || n > ondisk.U64(most) {
		return field(what, name, off, n, fmt.Sprintf("1 to %d, the size of the partition", most))
	}
	return nil
}

// hexOf is how a number of a fixed width stands in a message.
func hexOf[T uint16 | uint32 | uint64](n T) string {
	return fmt.Sprintf("%#0*x", 2*binary.Size(n), n)
}

// label is a name in a field of fixed size, without the blanks behind it.
func label(b []byte) string { return strings.TrimRight(zeroTerminated(b), " \t\r\n") }

// detail adds something to know the volume by.
func (v *Volume) detail(name, format string, args ...any) {
	v.Details = append(v.Details, Detail{name, fmt.Sprintf(format, args...)})
}

// ignoreNoMatch is for what is looked for inside of a volume, where it may be absent.
func ignoreNoMatch(err error) error {
	if errors.Is(err, ondisk.ErrNoMatch) {
		return nil
	}
	return err
}

// isBroken tells a structure that is malformed, or too large to be read, from a disk that cannot be read.
func isBroken(err error) bool {
	return errors.Is(err, ondisk.ErrFormat) || errors.Is(err, ondisk.ErrLimit)
}

// start reads the first sector.
func start(d disk.Disk) ([]byte, error) {
	if d.Size() < units.SectorSize {
		return nil, ondisk.ErrNoMatch
	}
	return ondisk.Bytes(d, 0, units.SectorSize)
}

// orNoMatch is the error of bytes that are not those looked for, unless they could not be read.
func orNoMatch(err error) error {
	if err == nil {
		err = ondisk.ErrNoMatch
	}
	return err
}
