package boot

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// hiddenSectors finds the u32 at 0x1c of a BIOS parameter block: the sectors in front of the volume, which boot code adds
// to every sector number. NTFS and FAT32 keep a copy of the boot sector. extlinux writes a BPB in front of ext for its
// own use.
var hiddenSectors = Finder{Name: "hidden-sectors", Find: findHidden}

func findHidden(d disk.Disk, p Partition) ([]Ref, error) {
	kind, sector, backup := p.Volume.Kind, d.SectorSize(), int64(0)
	switch bpb := p.Volume.Boot; {
	case bpb != nil:
		kind, sector, backup = bpb.Kind, bpb.SectorSize, bpb.Backup
	case p.Volume.Kind == volume.Ext2 || p.Volume.Kind == volume.Ext3 || p.Volume.Kind == volume.Ext4:
		b, err := ondisk.Bytes(d, p.Off, 512)
		if err != nil || !isSyslinux(b) {
			return nil, err
		}
	default:
		return nil, nil
	}
	refs := []Ref{{Kind: string(kind) + " hidden sectors"}}
	at := []int64{p.Off}
	if backup > 0 {
		refs = append(refs, Ref{Kind: string(kind) + " hidden sectors, backup boot sector"})
		at = append(at, p.Off+backup)
	}
	for i := range refs {
		r := &refs[i]
		r.Partition = p.Number
		r.At = disk.Range{Off: at[i] + volume.AtHidden, Len: 4}
		raw, err := ondisk.Bytes(d, r.At.Off, r.At.Len)
		if err != nil {
			return nil, err
		}
		r.Raw = raw
		r.Points = int64(binary.LittleEndian.Uint32(raw)) * sector
		r.Encode = encodeHidden(sector)
	}
	return refs, nil
}

// encodeHidden writes a byte offset as a 32-bit count of sectors.
func encodeHidden(sector int64) func([]byte, int64) ([]byte, error) {
	return func(_ []byte, to int64) ([]byte, error) {
		n := to / sector
		if to%sector != 0 || n > math.MaxUint32 {
			return nil, fmt.Errorf("offset %#x: %w in 32 bits of sectors of %d bytes", to, ondisk.ErrLimit, sector)
		}
		return binary.LittleEndian.AppendUint32(nil, ondisk.U32(n)), nil
	}
}
