// This part of the package finds the tables that divide a partition into slices, and the partition tables of machines
// other than PCs.

package volume

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// newTable returns the partition table of a machine other than a PC, as the content of the whole disk d.
func newTable(kind Kind, d disk.Disk) *Volume {
	return &Volume{Kind: kind, Size: d.Size()}
}

// maxEntries bounds the partitions of such a table.
const maxEntries = 256

// entry adds a partition whose entry is at byte off of the table. A partition that leaves the disk has no place. One
// without a size is not listed.
func entry(v *Volume, what string, off int64, p Part) {
	if p.Size <= 0 {
		v.Outside = append(v.Outside, ondisk.Field(what, "size of partition "+p.Name, off, p.Size, "1 byte or more"))
		return
	}
	if p.Start < 0 || p.Start > v.Size || p.Size > v.Size-p.Start {
		if !p.Own { // the size of the whole disk can be rounded up
			leaves(v, what, off, "partition "+p.Name, p.Start+p.Size)
		}
		p.Start = -1
	}
	v.Parts = append(v.Parts, p)
}

// leaves adds the error of a part that ends behind its container. off is the place of its entry in the table.
func leaves(v *Volume, what string, off int64, part string, end int64) {
	v.Outside = append(v.Outside, ondisk.Field(what, "end of "+part, off, end,
		fmt.Sprintf("at most %d, where the disk ends", v.Size)))
}

// blocks converts a number of blocks to bytes. No factor is above 2^32.
func blocks(n uint32, size int64) int64 { return int64(n) * size }

// fourCC formats a type of four characters: DOS\3 is "DOS3".
func fourCC(n uint32) string {
	var s strings.Builder
	for _, c := range binary.BigEndian.AppendUint32(nil, n) {
		switch {
		case c < 10:
			fmt.Fprintf(&s, "%d", c)
		case c < 0x20 || c > 0x7e:
			fmt.Fprintf(&s, `\x%02x`, c)
		default:
			s.WriteByte(c)
		}
	}
	return s.String()
}

// sum32 returns the sum of the words of SGI and Amiga. It is zero if the checksum is right.
func sum32(b []byte) (sum uint32) {
	for ; len(b) >= 4; b = b[4:] {
		sum += binary.BigEndian.Uint32(b)
	}
	return sum
}
