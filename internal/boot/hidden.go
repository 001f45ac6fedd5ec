package boot

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// hiddenSectors finds the u32 at 0x1c of a BIOS parameter block: the sectors in front of the volume, which boot code adds
// to every sector number. NTFS and FAT32 keep a copy of the boot sector.
var hiddenSectors = Finder{Name: "hidden-sectors", Find: everywhere(findHidden)}

func findHidden(g *Guest, p Partition, f *Found) error {
	kind, sector, backup := p.Volume.Kind, g.Disk.SectorSize(), int64(0)
	switch bpb := p.Volume.Boot; {
	case bpb != nil:
		kind, sector, backup = bpb.Kind, bpb.SectorSize, bpb.Backup
	case kind == volume.BitLocker:
		// The header in front of what is encrypted is a boot sector. What it hides keeps its own, which cannot be written without the key.
		b, err := ondisk.Bytes(g.Disk, p.Off, 512)
		if err != nil {
			return err
		}
		if n := int64(binary.LittleEndian.Uint16(b[0x0b:])); n == 512 || n == 4096 {
			sector = n
		}
	default:
		return nil
	}
	names, starts := []string{string(kind) + " hidden sectors"}, []int64{0}
	if backup > 0 {
		names, starts = append(names, string(kind)+" hidden sectors, backup boot sector"), append(starts, backup)
	}
	for i, name := range names {
		r := Ref{Kind: name, Partition: p.Number, Off: starts[i] + volume.AtHidden, Encode: encodeHidden(sector)}
		r.At = []disk.Range{{Off: p.Off + r.Off, Len: 4}}
		raw, err := g.Read(r.At)
		if err != nil {
			return err
		}
		r.Raw, r.Points = raw, int64(binary.LittleEndian.Uint32(raw))*sector
		f.ownStart(r, p, i == 0)
	}
	return nil
}

// ownStart adds a reference that should point to the start of its own partition. Old value first: one that points elsewhere is reported
// and stays. primary tells that boot code uses it.
func (f *Found) ownStart(r Ref, p Partition, primary bool) {
	switch {
	case r.Points == p.Off:
		r.Target = p.Number
	case p.Kind == table.Logical && r.Points == p.Off-p.Record():
		// DOS and Windows count the hidden sectors of a logical drive from its boot record.
		r.Target, r.FromRecord = p.Number, true
	default:
		r.Stays = fmt.Sprintf("it points to byte %d, and the partition starts at byte %d", r.Points, p.Off)
		f.stale(r, p, primary)
	}
	f.Refs = append(f.Refs, r)
}

// stale reports a reference that does not point to its own partition.
func (f *Found) stale(r Ref, p Partition, primary bool) {
	place := r.At[0].Off
	i := ondisk.Issue{
		Code: "stale-reference", Effect: ondisk.Warn, Partition: p.Number,
		Text: fmt.Sprintf("%s at %#x point to byte %d, but the partition starts at byte %d: left as found", r.Kind, place, r.Points, p.Off),
	}
	switch {
	case r.Points == 0:
		// Formatters that see only the partition write 0; nothing ever used it.
		i.Effect = ondisk.Note
	case p.Volume.Kind == volume.NTFS && primary && p.Kind != table.Logical:
		no := i
		no.Code, no.Effect, no.OnMove = "ntfs-inconsistent", ondisk.Unbootable, true
		no.Text = fmt.Sprintf("%s at %#x point to byte %d, but the partition starts at byte %d: the boot sector does not fit the partition table",
			r.Kind, place, r.Points, p.Off)
		no.Remedy = "correct it in the guest (chkdsk, bootrec) and shut it down cleanly, or accept it with --allow-unbootable"
		f.Issues = append(f.Issues, no)
	}
	f.Issues = append(f.Issues, i)
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
