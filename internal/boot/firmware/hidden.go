package firmware

import (
	"bytes"
	"encoding/binary"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// HiddenSectors finds the u32 at 0x1c of a BIOS parameter block: the sectors in front of the volume, which boot code
// adds to every sector number. NTFS and FAT32 keep a copy of the boot sector.
var HiddenSectors = boot.Finder{Name: "hidden-sectors", Find: boot.Everywhere(findHidden)}

func findHidden(g *boot.Guest, p boot.Partition, f *boot.Found) error {
	kind, sector := p.Volume.Kind, g.Disk.SectorSize()
	var backup int64
	switch bpb := p.Volume.Boot; {
	case bpb != nil:
		kind, sector, backup = bpb.Kind, bpb.SectorSize, bpb.Backup
	case kind == volume.BitLocker:
		// The header in front of the encrypted volume is a boot sector. The volume keeps its own, which cannot be
		// written without the key.
		b, err := ondisk.Bytes(g.Disk, p.Off, 512)
		if err != nil {
			return err
		}
		if n := int64(binary.LittleEndian.Uint16(b[0x0b:])); n == 512 || n == 4096 {
			sector = n
		}
		if backup, err = toGoBackup(g, p, b, sector); err != nil {
			return err
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

// toGoBackup returns the place of the copy of a boot sector of BitLocker To Go in its partition, 0 for any other. The
// FAT in front names it, so that a Windows without BitLocker shows a program to read the volume. Spec: Microsoft FAT
// specification 1.03, BPB_BkBootSec.
func toGoBackup(g *boot.Guest, p boot.Partition, b []byte, sector int64) (int64, error) {
	const name, atBackup = "MSWIN4.1", 0x32
	at := int64(binary.LittleEndian.Uint16(b[atBackup:])) * sector
	if string(b[3:3+len(name)]) != name || at == 0 || at+512 > p.Len {
		return 0, nil
	}
	other, err := ondisk.Bytes(g.Disk, p.Off+at, 512)
	if err != nil || !bytes.Equal(b[:volume.AtHidden+4], other[:volume.AtHidden+4]) {
		return 0, err
	}
	return at, nil
}
