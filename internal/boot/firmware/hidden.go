package firmware

import (
	"encoding/binary"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// HiddenSectors finds the u32 at 0x1c of a BIOS parameter block: the sectors in front of the volume, which boot code
// adds to every sector number. NTFS and FAT32 keep a copy of the boot sector.
var HiddenSectors = boot.Finder{Name: "hidden-sectors", Find: boot.Everywhere(findHidden)}

func findHidden(g *boot.Guest, p boot.Partition, f *boot.Found) error {
	kind, sector, backup := p.Volume.Kind, g.Disk.SectorSize(), int64(0)
	switch bpb := p.Volume.Boot; {
	case bpb != nil:
		kind, sector, backup = bpb.Kind, bpb.SectorSize, bpb.Backup
	case kind == volume.BitLocker:
		// The header in front of the encrypted volume is a boot sector. The volume keeps its own, which cannot be written
		// without the key.
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
		if err := f.HiddenSectors(g, p, name, starts[i]+volume.AtHidden, sector, i == 0); err != nil {
			return err
		}
	}
	return nil
}
