package fat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// Prober finds FAT12, FAT16 and FAT32. A broken one is "fat": its boot sector does not tell them apart.
var Prober = volume.Prober{
	Kinds: []volume.Traits{
		{Kind: "fat", NeverStale: true},
		traits(volume.FAT12), traits(volume.FAT16),
		traits(volume.FAT32),
	},
	Marks: []volume.Mark{{Off: 510, Bytes: "\x55\xaa"}},
	Probe: probe,
}

func traits(k volume.Kind) volume.Traits {
	return volume.Traits{
		Kind: k, Title: strings.ToUpper(string(k)), Unit: "cluster", Windows: true, Letter: true, DOS: true,
		Data: fmt.Sprintf("first %s cluster", k),
		Realign: "to align its clusters, format it again with a tool that aligns them (mkfs.fat does), and " +
			"copy the files",
	}
}

// kinds maps the bits of an entry of the FAT to kinds.
var kinds = map[int64]volume.Kind{12: volume.FAT12, 16: volume.FAT16, 32: volume.FAT32}

func probe(d disk.Disk) (*volume.Volume, error) {
	b, err := readBoot(d)
	if err != nil {
		return nil, err
	}
	kind := kinds[b.Bits]
	v := &volume.Volume{Kind: kind, Size: b.Total, BlockSize: b.Cluster, DataStart: b.Data, Boot: &volume.BPB{
		Kind: kind, SectorSize: b.Sector, Hidden: b.Hidden, Sectors: int(b.SectorsPerTrack), Heads: int(b.Heads),
	}}
	if b.named() {
		v.Label, v.UUID = volume.DOSLabel(b.Label[:]), fmt.Sprintf("%04X-%04X", b.Serial>>16, b.Serial&0xffff)
	}
	if kind == volume.FAT32 {
		if err := readBackup(v, d, b); err != nil {
			return nil, err
		}
	}
	if err := readDirty(v, d, b); err != nil {
		return nil, err
	}
	return v, readLabel(v, d, b)
}

// readDirty reports a FAT that was not unmounted. Windows NT and Linux keep a flag in the boot sector. DOS and Windows
// 95 clear a bit of the second entry while they write. A table whose first entry is wrong has no such bit. Spec: Linux,
// include/uapi/linux/msdos_fs.h, FAT_STATE_DIRTY; Microsoft FAT specification 1.03, "ClnShutBitMask".
func readDirty(v *volume.Volume, d disk.Disk, b *bootSector) error {
	dirty := b.named() && b.State&1 != 0
	var entries [2]uint32
	clean := uint32(1 << 27)
	if v.Kind == volume.FAT16 {
		var short [2]uint16
		if _, err := volume.Superblock(d, b.FAT.Off, binary.LittleEndian, &short); err != nil &&
			!errors.Is(err, ondisk.ErrNoMatch) {
			return err
		}
		entries, clean = [2]uint32{uint32(short[0]), uint32(short[1])}, 1<<15
	} else if _, err := volume.Superblock(d, b.FAT.Off, binary.LittleEndian, &entries); err != nil &&
		!errors.Is(err, ondisk.ErrNoMatch) {
		return err
	}
	if v.Kind != volume.FAT12 && entries[0]&0xff == uint32(b.Media) && entries[1]&clean == 0 {
		dirty = true
	}
	if dirty {
		v.Note("fat-dirty", ondisk.Note, "the FAT is marked dirty: it was not unmounted cleanly", "")
	}
	return nil
}

// readBackup finds the copy of the boot sector in the reserved sectors of a FAT32.
func readBackup(v *volume.Volume, d disk.Disk, b *bootSector) error {
	n := int64(b.BackupSector)
	if n == 0 || n >= int64(b.Reserved) {
		return nil // 0 and 0xffff mean that it is absent
	}
	var magic uint16
	_, err := volume.Superblock(d, n*b.Sector+units.SectorSize-2, binary.LittleEndian, &magic)
	if err != nil && !errors.Is(err, ondisk.ErrNoMatch) {
		return err
	}
	if magic != volume.BootMagic {
		v.Note("fat-backup", ondisk.Note,
			fmt.Sprintf("there is no backup boot sector in sector %d, where the boot sector says it is", n), "")
		return nil
	}
	v.Boot.Backup = n * b.Sector
	return nil
}

// readLabel reads the label in the root directory, which Windows shows. It reads only the first cluster of the root of
// a FAT32.
func readLabel(v *volume.Volume, d disk.Disk, b *bootSector) error {
	r := b.Root
	if v.Kind == volume.FAT32 {
		c := int64(b.RootCluster)
		if !b.has(c) {
			v.Note("fat-root", ondisk.Warn, fmt.Sprintf("the root cluster at 0x2c is %d, want 2 to %d", c,
				b.Clusters+1),
				"run a file-system check in the guest")
			return nil
		}
		r = disk.Range{Off: b.at(c), Len: b.Cluster}
	}
	if r.Off >= d.Size() {
		return nil // cut off
	}
	end := min(r.Off+min(r.Len, maxRoot), d.Size())
	for at := r.Off; at < end; at += rootPiece {
		raw, err := ondisk.Bytes(d, at, min(rootPiece, end-at))
		if err != nil {
			return err
		}
		for ; len(raw) >= slotSize; raw = raw[slotSize:] {
			const volumeID, longName, deleted = 0x08, 0x0f, 0xe5
			switch {
			case raw[0] == 0:
				return nil
			case raw[0] != deleted && raw[11]&longName != longName && raw[11]&volumeID != 0:
				v.Label = volume.DOSLabel(raw[:11])
				return nil
			}
		}
	}
	return nil
}

// Limits of reading a root directory for the label, in bytes. Formatters make it the first entry.
const (
	maxRoot   = 64 << 10
	rootPiece = 2 << 10
)
