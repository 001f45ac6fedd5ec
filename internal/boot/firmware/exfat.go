package firmware

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// ExFATOffset finds the place of the partition in both boot regions of an exFAT. A reference spans its whole region,
// since the checksum in the last sector changes with the field.
var ExFATOffset = boot.Finder{Name: "exfat-partition-offset", Find: boot.Everywhere(findExFAT)}

func findExFAT(g *boot.Guest, p boot.Partition, f *boot.Found) error {
	if p.Volume.Kind != volume.ExFAT || p.Volume.Size == 0 { // broken
		return nil
	}
	shift, err := ondisk.Bytes(g.Disk, p.Off+volume.AtExFATSectorShift, 1)
	if err != nil {
		return err
	}
	sector := int64(1) << shift[0]
	length := volume.ExFATRegion * sector
	for i, kind := range []string{"exfat partition offset", "exfat partition offset, backup boot region"} {
		r := boot.Ref{Kind: kind, Partition: p.Number, Off: int64(i) * length, Encode: encodeExFAT(sector)}
		r.At = []disk.Range{{Off: p.Off + r.Off, Len: length}}
		if r.Raw, err = g.Read(r.At); err != nil {
			return err
		}
		stored := binary.LittleEndian.Uint64(r.Raw[volume.AtExFATOffset:])
		// 0 stands for an unknown place, and a region with another checksum is not valid.
		if stored == 0 || !bytes.Equal(r.Raw[length-sector:], volume.ExFATChecksum(r.Raw)) {
			continue
		}
		r.Points = ondisk.I64(min(stored, ondisk.U64(math.MaxInt64/sector))) * sector
		f.OwnStart(r, p, i == 0)
	}
	return nil
}

// encodeExFAT writes a byte offset as a count of sectors, and a new checksum.
func encodeExFAT(sector int64) func([]byte, int64) ([]byte, error) {
	return func(raw []byte, to int64) ([]byte, error) {
		if to%sector != 0 {
			return nil, fmt.Errorf("offset %#x: %w: it is no multiple of the sectors of %d bytes", to, ondisk.ErrLimit,
				sector)
		}
		b := bytes.Clone(raw)
		binary.LittleEndian.PutUint64(b[volume.AtExFATOffset:], ondisk.U64(to/sector))
		copy(b[int64(len(b))-sector:], volume.ExFATChecksum(b))
		return b, nil
	}
}
