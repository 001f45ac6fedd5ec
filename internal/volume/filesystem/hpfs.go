package filesystem

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/fs/fat"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// HPFS finds the file system of OS/2.
var HPFS = volume.Prober{
	Kinds: []volume.Traits{{Kind: volume.HPFS, Title: "HPFS"}},
	Probe: probeHPFS,
}

// hpfsSuper is the superblock, in sector 16. Spec: Linux, fs/hpfs/hpfs.h, struct hpfs_super_block.
type hpfsSuper struct {
	Magic   uint32
	_       [12]byte // second magic number, version, root
	Sectors uint32
}

// hpfsSpare is the begin of the spare block, in sector 17. Spec: Linux, fs/hpfs/hpfs.h, struct hpfs_spare_block.
type hpfsSpare struct{ Magic, Magic2 uint32 }

// hpfsBoot is the boot sector, which has the parameter block of FAT. Spec: Linux, fs/hpfs/hpfs.h, struct
// hpfs_boot_block.
type hpfsBoot struct {
	fat.BPB
	_     [2]byte
	Mark  uint8 // 0x28: the fields below are there
	ID    uint32
	Label [11]byte
	Name  [8]byte // "HPFS    "
	_     [448]byte
	Magic uint16
}

const (
	hpfsWhat       = "hpfs superblock"
	hpfsAt         = 16 * 512
	hpfsSpareAt    = 17 * 512
	hpfsMagic      = 0xf995e849
	hpfsSpareMagic = 0xf9911849
	hpfsPlaced     = 0x28
)

func probeHPFS(d disk.Disk) (*volume.Volume, error) {
	var s hpfsSuper
	var spare hpfsSpare
	if _, err := volume.Superblock(d, hpfsAt, binary.LittleEndian, &s); err != nil {
		return nil, err
	}
	if s.Magic != hpfsMagic {
		return nil, ondisk.ErrNoMatch
	}
	if _, err := volume.Superblock(d, hpfsSpareAt, binary.LittleEndian, &spare); err != nil {
		return nil, err
	}
	if spare.Magic != hpfsSpareMagic {
		return nil, ondisk.ErrNoMatch
	}
	v := &volume.Volume{Kind: volume.HPFS, Size: int64(s.Sectors) * units.SectorSize, BlockSize: units.SectorSize}
	if err := volume.BlocksWithin(hpfsWhat, "sectors", hpfsAt+16, uint64(s.Sectors), units.SectorSize,
		d.Size()); err != nil {
		return v, err
	}
	return v, hpfsBootSector(v, d)
}

// hpfsBootSector reads label and parameter block from a boot sector of HPFS.
func hpfsBootSector(v *volume.Volume, d disk.Disk) error {
	var b hpfsBoot
	if _, err := volume.Superblock(d, 0, binary.LittleEndian, &b); err != nil {
		return err
	}
	if b.Magic != volume.BootMagic || string(b.Name[:4]) != "HPFS" || b.Mark != hpfsPlaced ||
		int64(b.BytesPerSector) != units.SectorSize {
		return nil
	}
	v.Label, v.UUID = fat.Label(b.Label[:]), fmt.Sprintf("%04X-%04X", b.ID>>16, b.ID&0xffff)
	v.Boot = &volume.BPB{
		Kind: volume.HPFS, SectorSize: units.SectorSize, Hidden: b.Hidden,
		Sectors: int(b.SectorsPerTrack), Heads: int(b.Heads),
	}
	return nil
}
