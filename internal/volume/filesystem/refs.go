package filesystem

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// ReFS finds the resilient file system of Windows Server.
var ReFS = volume.Prober{
	Kinds: []volume.Traits{{Kind: volume.ReFS, Title: "ReFS", Unit: "cluster"}},
	Marks: []volume.Mark{{Off: 3, Bytes: refsName}},
	Probe: probeReFS,
}

// refsBoot is the boot sector. Spec: Microsoft, FILE_SYSTEM_RECOGNITION_STRUCTURE, up to the checksum; libfsrefs,
// "Volume header", behind it.
type refsBoot struct {
	_                 [3]byte
	Name              [8]byte // "ReFS"
	_                 [5]byte
	Identifier        [4]byte // "FSRS"
	Length            uint16
	Checksum          uint16
	Sectors           uint64
	BytesPerSector    uint32
	SectorsPerCluster uint32
	Major             uint8
	Minor             uint8
	_                 [14]byte
	Serial            uint64
}

const (
	refsWhat       = "refs boot sector"
	refsName       = "ReFS\x00\x00\x00\x00"
	refsAtChecksum = 0x16
)

func probeReFS(d disk.Disk) (*volume.Volume, error) {
	var b refsBoot
	if _, err := volume.Superblock(d, 0, binary.LittleEndian, &b); err != nil {
		return nil, err
	}
	if string(b.Name[:]) != refsName {
		return nil, ondisk.ErrNoMatch
	}
	if err := b.check(d); err != nil {
		return nil, err
	}
	v := &volume.Volume{
		Kind: volume.ReFS, UUID: fmt.Sprintf("%016X", b.Serial),
		BlockSize: int64(b.BytesPerSector) * int64(b.SectorsPerCluster),
		Size:      ondisk.I64(b.Sectors) * int64(b.BytesPerSector),
	}
	v.Addf("version", "%d.%d", b.Major, b.Minor)
	return v, nil
}

func (b *refsBoot) check(d disk.Disk) error {
	sector, clusterSectors := int64(b.BytesPerSector), int64(b.SectorsPerCluster)
	switch {
	case string(b.Identifier[:]) != "FSRS":
		return ondisk.Field(refsWhat, "identifier", 0x10, string(b.Identifier[:]), "FSRS")
	case int(b.Length) < binary.Size(b) || b.Length > 4096:
		return ondisk.Field(refsWhat, "length", 0x14, b.Length, fmt.Sprintf("%d to 4096", binary.Size(b)))
	case int64(b.Length) > d.Size():
		return ondisk.ErrNoMatch
	}
	raw, err := ondisk.Bytes(d, 0, int64(b.Length))
	if err != nil {
		return err
	}
	switch want := refsSum(raw); {
	case b.Checksum != want:
		return ondisk.Field(refsWhat, "checksum", refsAtChecksum, volume.Hex(b.Checksum), volume.Hex(want))
	case !volume.PowerBetween(sector, 512, 4096):
		return ondisk.Field(refsWhat, "bytes per sector", 0x20, sector, "512, 1024, 2048 or 4096")
	case !volume.PowerBetween(clusterSectors*sector, 4096, 64<<10):
		return ondisk.Field(refsWhat, "sectors per cluster", 0x24, clusterSectors, "clusters of 4096 to 65536 bytes")
	}
	return volume.BlocksWithin(refsWhat, "sectors", 0x18, b.Sectors, sector, d.Size())
}

// refsSum skips the jump and the checksum itself. Spec: Microsoft, "Computing a File System Recognition Checksum".
func refsSum(b []byte) uint16 {
	var sum uint16
	for i, c := range b {
		if i >= 3 && i != refsAtChecksum && i != refsAtChecksum+1 {
			sum = sum>>1 | sum<<15
			sum += uint16(c)
		}
	}
	return sum
}
