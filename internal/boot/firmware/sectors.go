package firmware

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// Sector0 reports what a move would break in the code of sector 0.
var Sector0 = boot.Finder{Name: "boot code", Find: checkMBR}

func checkMBR(g *boot.Guest) (r boot.Found, err error) {
	name, err := encryptedBesides(g)
	if g.Code == boot.Unknown && name == "" && err == nil {
		r.Unbootable("boot-code", 0,
			"the boot code in sector 0 is not known, nor whether it finds its partition after a move", boot.WhenUnknown)
	}
	if g.BesideGPT && (g.Code.GPT || g.Code.BothTables) {
		r.Unbootable("boot-code", 0, "the boot code in sector 0 ("+g.Code.Name+") reads the GPT at LBA 1, and "+
			"systems go by the MBR, which has no protective entry: the GPT keeps the old places",
			"write a protective or hybrid MBR in the guest first (gdisk), and copy again")
	}
	return r, err
}

// BootSectors reports what a move would break in the boot sectors of partitions.
var BootSectors = boot.Finder{Name: "boot sectors", Find: boot.Everywhere(checkVolume)}

func checkVolume(g *boot.Guest, p boot.Partition, r *boot.Found) error {
	if _, ok, err := g.Area(p); !ok {
		return err
	}
	b, err := ondisk.Bytes(g.Disk, p.Off, boot.AreaLen)
	if err != nil {
		return err
	}
	switch {
	case p.Kind == table.Extended:
		// Its first record has room for code: LILO and GRUB can be installed there.
		if p.Active && boot.Identify(g.Codes, b[:boot.CodeLen]) == boot.Unknown {
			text := fmt.Sprintf("the boot sector of the active partition %d holds code that is not known", p.Number)
			r.Unbootable("boot-code", 0, text, boot.WhenUnknown)
		}
	case g.Loader(b[:boot.CodeLen]) != boot.Unknown:
		// Its Find reports it.
	case p.Volume.Boot != nil:
		// Its code finds the volume by the BIOS parameter block; other finders read what a Windows stores besides.
	case p.Volume.Kind == volume.Disklabel:
		// boot1 of a BSD, which the label belongs to: package layout refuses labels that keep places, by type and
		// label.
	case p.Volume.Kind == volume.ExFAT && noExFATCode(b):
	case startsFrom(g, p, b):
		unknownSector(r, g, p)
	}
	return nil
}

// startsFrom reports whether the boot can run the first sector of a partition.
func startsFrom(g *boot.Guest, p boot.Partition, b []byte) bool {
	return signed(g, b) && (p.Active || !g.Code.Many && g.Chooses(p))
}

// signed reports whether a first sector counts as boot code. FreeBSD's pmbr wants no signature.
func signed(g *boot.Guest, b []byte) bool {
	return b[510] == 0x55 && b[511] == 0xaa || g.Code == FreeBSDGPT
}

// noExFATCode reports whether the boot sector of an exFAT has no code: the specification wants halts then, and
// formatters write zeros. Spec: 3.1.15.
func noExFATCode(b []byte) bool { return len(bytes.Trim(b[120:510], "\x00\xf4")) == 0 }

// unknownSector reports an unknown boot sector. If code in sector 0 reads it, it may find its volume by a place that it
// stores, as that of OS/2 does. Without such code nothing boots by it, unless it is a loader in front of a file system
// that has no code of its own.
func unknownSector(r *boot.Found, g *boot.Guest, p boot.Partition) {
	if p.Volume.Kind == volume.Unknown && g.Code == boot.Empty {
		r.Warn("boot-code", p.Number, "the active partition has a boot sector of an unknown kind: it moves as it is",
			"")
		return
	}
	r.Unbootable("boot-code", p.Number, "the boot sector of the active partition holds code that is not known",
		boot.WhenUnknown)
}

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
