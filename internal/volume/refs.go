package volume

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// ReFS is the resilient file system of Windows Server.
const ReFS Kind = "refs"

var refs = Prober{
	Kinds: []Traits{{Kind: ReFS, Title: "ReFS", Unit: "cluster"}},
	Marks: []Mark{{3, refsName}},
	Probe: probeReFS,
}

// refsBoot is the boot sector. Spec: Microsoft, FILE_SYSTEM_RECOGNITION_STRUCTURE, up to the checksum; libfsrefs, "Volume
// header", behind it.
type refsBoot struct {
	Jump              [3]byte
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

func probeReFS(d disk.Disk) (*Volume, error) {
	var b refsBoot
	if _, err := superblock(d, 0, binary.LittleEndian, &b); err != nil {
		return nil, err
	}
	if string(b.Name[:]) != refsName {
		return nil, ondisk.ErrNoMatch
	}
	if err := b.check(d); err != nil {
		return nil, err
	}
	v := &Volume{
		Kind: ReFS, UUID: fmt.Sprintf("%016X", b.Serial), BlockSize: int64(b.BytesPerSector) * int64(b.SectorsPerCluster),
		Size: ondisk.I64(b.Sectors) * int64(b.BytesPerSector),
	}
	v.detail("version", "%d.%d", b.Major, b.Minor)
	return v, nil
}

func (b *refsBoot) check(d disk.Disk) error {
	sector, clusterSectors := int64(b.BytesPerSector), int64(b.SectorsPerCluster)
	switch {
	case string(b.Identifier[:]) != "FSRS":
		return field(refsWhat, "identifier", 0x10, string(b.Identifier[:]), "FSRS")
	case int(b.Length) < binary.Size(b) || b.Length > 4096:
		return field(refsWhat, "length", 0x14, b.Length, fmt.Sprintf("%d to 4096", binary.Size(b)))
	case int64(b.Length) > d.Size():
		return ondisk.ErrNoMatch
	}
	raw, err := ondisk.Bytes(d, 0, int64(b.Length))
	if err != nil {
		return err
	}
	switch want := refsSum(raw); {
	case b.Checksum != want:
		return field(refsWhat, "checksum", refsAtChecksum, hexOf(b.Checksum), hexOf(want))
	case !powerBetween(sector, 512, 4096):
		return field(refsWhat, "bytes per sector", 0x20, sector, "512, 1024, 2048 or 4096")
	case !powerBetween(clusterSectors*sector, 4096, 64<<10):
		return field(refsWhat, "sectors per cluster", 0x24, clusterSectors, "clusters of 4096 to 65536 bytes")
	}
	return blocksWithin(refsWhat, "sectors", 0x18, b.Sectors, sector, d.Size())
}

// refsSum leaves out the jump and the checksum itself. Spec: Microsoft, "Computing a File System Recognition Checksum".
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
