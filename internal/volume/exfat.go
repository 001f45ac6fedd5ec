package volume

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// ExFAT is the file system of large memory cards.
const ExFAT Kind = "exfat"

var exFAT = Prober{
	Kinds: []Traits{{
		Kind: ExFAT, Title: "exFAT", Unit: "cluster", Letter: true, Data: "first exfat cluster",
		Realign: "to align its clusters, format it again with a tool that aligns them (mkfs.exfat --boundary-align), " +
			"and copy the files",
	}},
	Marks: []Mark{{3, exfatName}},
	Probe: probeExFAT,
}

// exfatBoot is the boot sector. Spec: Microsoft, exFAT file system specification, 3.1.
type exfatBoot struct {
	Jump              [3]byte
	Name              [8]byte // "EXFAT   "
	_                 [53]byte
	PartitionOffset   uint64 // sectors, 0 when it is not known
	VolumeLength      uint64 // sectors
	FATOffset         uint32 // sectors
	FATLength         uint32 // sectors
	ClusterHeapOffset uint32 // sectors
	Clusters          uint32
	RootCluster       uint32
	Serial            uint32
	Revision          uint16 // minor, major
	Flags             uint16
	SectorShift       uint8 // 2^n bytes
	ClusterShift      uint8 // 2^n sectors
	FATs              uint8
	_                 [399]byte
	Magic             uint16
}

// Places in the boot region of an exFAT, which stands twice at the start of the volume. Spec: 3.1, 3.4.
const (
	ExFATRegion            = 12 // sectors; the last one repeats the checksum of the others
	AtExFATPartitionOffset = 0x40
	AtExFATSectorShift     = 0x6c
)

const (
	exfatWhat     = "exfat boot sector"
	exfatName     = "EXFAT   "
	exfatDirty    = 0x2
	exfatLabel    = 0x83 // entry type
	exfatChars    = 11
	exfatSlot     = 32      // bytes of an entry
	exfatRootMost = 1 << 20 // bytes of the root directory that are looked at
)

func probeExFAT(d disk.Disk) (*Volume, error) {
	var b exfatBoot
	if _, err := superblock(d, 0, binary.LittleEndian, &b); err != nil {
		return nil, err
	}
	if string(b.Name[:]) != exfatName {
		return nil, ondisk.ErrNoMatch
	}
	if err := b.check(d.Size()); err != nil {
		return nil, err
	}
	if err := b.checksum(d, 0); err != nil {
		return nil, err
	}
	v := &Volume{
		Kind: ExFAT, UUID: fmt.Sprintf("%04X-%04X", b.Serial>>16, b.Serial&0xffff), BlockSize: b.cluster(),
		Size: ondisk.I64(b.VolumeLength) * b.sector(), DataStart: int64(b.ClusterHeapOffset) * b.sector(),
	}
	if b.Flags&exfatDirty != 0 {
		v.note("exfat-dirty", ondisk.Warn, "exFAT is marked dirty: it was not unmounted cleanly", "run chkdsk in the guest and shut it down cleanly")
	}
	if err := v.exfatBackup(d, &b); err != nil {
		return nil, err
	}
	var err error
	v.Label, err = b.label(d)
	return v, err
}

func (b *exfatBoot) sector() int64  { return 1 << b.SectorShift }
func (b *exfatBoot) cluster() int64 { return b.sector() << b.ClusterShift }

// check holds the fields to their ranges in the specification. size is that of the partition in bytes.
func (b *exfatBoot) check(size int64) error {
	switch {
	case b.Magic != bootMagic:
		return field(exfatWhat, "signature", 0x1fe, hexOf(b.Magic), "0xaa55")
	case b.SectorShift < 9 || b.SectorShift > 12:
		return field(exfatWhat, "bytes per sector shift", AtExFATSectorShift, b.SectorShift, "9 to 12 (512 to 4096 bytes)")
	case b.ClusterShift > 25-b.SectorShift:
		return field(exfatWhat, "sectors per cluster shift", 0x6d, b.ClusterShift, fmt.Sprintf("0 to %d (clusters of at most 32 MiB)", 25-b.SectorShift))
	case b.FATs != 1 && b.FATs != 2:
		return field(exfatWhat, "number of FATs", 0x6e, b.FATs, "1 or 2")
	case b.Revision>>8 != 1:
		return field(exfatWhat, "revision", 0x68, hexOf(b.Revision), "1.0 to 1.99")
	}
	if err := blocksWithin(exfatWhat, "volume length", 0x48, b.VolumeLength, b.sector(), size); err != nil {
		return err
	}
	return b.areas()
}

// areas wants FATs behind the boot regions, clusters behind the FATs, and all within the volume.
func (b *exfatBoot) areas() error {
	fatsEnd := int64(b.FATOffset) + int64(b.FATLength)*int64(b.FATs)
	needed := units.AlignUp((int64(b.Clusters)+2)*4, b.sector()) / b.sector()
	heap, length := int64(b.ClusterHeapOffset), ondisk.I64(b.VolumeLength)
	switch {
	case b.FATOffset < 2*ExFATRegion:
		return field(exfatWhat, "FAT offset", 0x50, b.FATOffset, "24 or more sectors")
	case heap < fatsEnd || heap >= length:
		return field(exfatWhat, "cluster heap offset", 0x58, heap, fmt.Sprintf("%d, the end of the FATs, to %d sectors", fatsEnd, length-1))
	}
	most := min((length-heap)>>b.ClusterShift, math.MaxUint32-10)
	switch {
	case b.Clusters == 0 || int64(b.Clusters) > most:
		return field(exfatWhat, "cluster count", 0x5c, b.Clusters, fmt.Sprintf("1 to %d", most))
	case int64(b.FATLength) < needed:
		return field(exfatWhat, "FAT length", 0x54, b.FATLength, fmt.Sprintf("%d or more sectors", needed))
	case b.RootCluster < 2 || b.RootCluster-2 >= b.Clusters:
		return field(exfatWhat, "root cluster", 0x60, b.RootCluster, fmt.Sprintf("2 to %d", int64(b.Clusters)+1))
	}
	return nil
}

// checksum proves the boot region at off.
func (b *exfatBoot) checksum(d disk.Disk, off int64) error {
	region, err := ondisk.Bytes(d, off, ExFATRegion*b.sector())
	if err != nil {
		return err
	}
	sums := ExFATChecksum(region)
	want := binary.LittleEndian.Uint32(sums)
	for at := (ExFATRegion - 1) * b.sector(); at < int64(len(region)); at += 4 {
		if got := binary.LittleEndian.Uint32(region[at:]); got != want {
			return field("exfat boot region", "checksum", off+at, hexOf(got), hexOf(want))
		}
	}
	return nil
}

// ExFATChecksum gives the last sector of a boot region: the checksum of the others, over and over. It leaves out what changes
// in a mounted volume, flags and percentage in use. Spec: 3.4.
func ExFATChecksum(region []byte) []byte {
	sector := len(region) / ExFATRegion
	var sum uint32
	for i, c := range region[:len(region)-sector] {
		if i != 106 && i != 107 && i != 112 {
			sum = sum>>1 | sum<<31
			sum += uint32(c)
		}
	}
	last := make([]byte, 0, sector)
	for len(last) < sector {
		last = binary.LittleEndian.AppendUint32(last, sum)
	}
	return last
}

// exfatBackup looks at the second boot region, which is what a repair starts from.
func (v *Volume) exfatBackup(d disk.Disk, b *exfatBoot) error {
	off := ExFATRegion * b.sector()
	var c exfatBoot
	if _, err := superblock(d, off, binary.LittleEndian, &c); err != nil {
		return err
	}
	text := "describes another volume than the first"
	if c.Name == b.Name && c.VolumeLength == b.VolumeLength && c.SectorShift == b.SectorShift && c.ClusterHeapOffset == b.ClusterHeapOffset {
		err := b.checksum(d, off)
		if !errors.Is(err, ondisk.ErrFormat) {
			return err
		}
		text = "has a wrong checksum"
	}
	v.note("exfat-backup", ondisk.Warn, "the backup boot region of the exFAT "+text+": it stays as it is", "run chkdsk in the guest")
	return nil
}

// label looks for the volume label in the root directory. The bound on what is read ends also a chain that goes in a circle.
func (b *exfatBoot) label(d disk.Disk) (string, error) {
	cluster := b.RootCluster
	step := min(b.cluster(), 64<<10)
	for read := int64(0); read < exfatRootMost && cluster >= 2 && cluster-2 < b.Clusters; {
		at := int64(b.ClusterHeapOffset)*b.sector() + int64(cluster-2)*b.cluster()
		for off := int64(0); off < b.cluster() && read < exfatRootMost; off += step {
			buf, err := ondisk.Bytes(d, at+off, step)
			if err != nil {
				return "", err
			}
			read += step
			if name, done := exfatEntries(buf); done {
				return name, nil
			}
		}
		next, err := ondisk.Bytes(d, int64(b.FATOffset)*b.sector()+4*int64(cluster), 4)
		if err != nil {
			return "", err
		}
		cluster = binary.LittleEndian.Uint32(next)
	}
	return "", nil
}

// exfatEntries searches entries for the label, until it or the end of the directory is found: type, number of characters,
// name. Spec: 7.3.
func exfatEntries(b []byte) (name string, done bool) {
	for ; len(b) >= exfatSlot; b = b[exfatSlot:] {
		switch b[0] {
		case 0:
			return "", true
		case exfatLabel:
			n := min(int(b[1]), exfatChars)
			return strings.TrimRight(ondisk.UTF16Z(b[2:2+2*n], binary.LittleEndian), " "), true
		}
	}
	return "", false
}
