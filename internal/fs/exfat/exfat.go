// Package exfat finds an exFAT, and computes the checksum of its boot region.
package exfat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// Prober finds an exFAT.
var Prober = volume.Prober{
	Kinds: []volume.Traits{{
		Kind: volume.ExFAT, Title: "exFAT", Unit: "cluster", Letter: true, Data: "first exfat cluster",
		Realign: "to align its clusters, format it again with a tool that aligns them (mkfs.exfat --boundary-align), " +
			"and copy the files",
	}},
	Marks: []volume.Mark{{Off: 3, Bytes: oemName}},
	Probe: probe,
}

// bootSector is the boot sector. Spec: Microsoft, exFAT file system specification, 3.1.
type bootSector struct {
	_                 [3]byte
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
	Region            = 12 // sectors; the last one repeats the checksum of the others
	AtPartitionOffset = 0x40
	AtSectorShift     = 0x6c
)

const (
	what       = "exfat boot sector"
	oemName    = "EXFAT   "
	dirty      = 0x2
	labelEntry = 0x83 // entry type
	labelChars = 11
	slot       = 32      // bytes of an entry
	rootMost   = 1 << 20 // bytes of the root directory that are looked at
)

func probe(d disk.Disk) (*volume.Volume, error) {
	var b bootSector
	if _, err := volume.Superblock(d, 0, binary.LittleEndian, &b); err != nil {
		return nil, err
	}
	if string(b.Name[:]) != oemName {
		return nil, ondisk.ErrNoMatch
	}
	if err := b.check(d.Size()); err != nil {
		return nil, err
	}
	if err := b.checksum(d, 0); err != nil {
		return nil, err
	}
	v := &volume.Volume{
		Kind: volume.ExFAT, UUID: fmt.Sprintf("%04X-%04X", b.Serial>>16, b.Serial&0xffff), BlockSize: b.cluster(),
		Size: ondisk.I64(b.VolumeLength) * b.sector(), DataStart: int64(b.ClusterHeapOffset) * b.sector(),
		SectorSize: b.sector(),
	}
	if b.Flags&dirty != 0 {
		v.Note("exfat-dirty", ondisk.Warn, "exFAT is marked dirty: it was not unmounted cleanly",
			"run chkdsk in the guest and shut it down cleanly")
	}
	if err := readBackup(v, d, &b); err != nil {
		return nil, err
	}
	var err error
	v.Label, err = b.label(d)
	return v, err
}

func (b *bootSector) sector() int64  { return 1 << b.SectorShift }
func (b *bootSector) cluster() int64 { return b.sector() << b.ClusterShift }

// check verifies the ranges of the fields in the specification. size is the size of the partition in bytes.
func (b *bootSector) check(size int64) error {
	switch {
	case b.Magic != volume.BootMagic:
		return ondisk.Field(what, "signature", 0x1fe, volume.Hex(b.Magic), "0xaa55")
	case b.SectorShift < 9 || b.SectorShift > 12:
		return ondisk.Field(what, "bytes per sector shift", AtSectorShift, b.SectorShift, "9 to 12 (512 to 4096 bytes)")
	case b.ClusterShift > 25-b.SectorShift:
		return ondisk.Field(what, "sectors per cluster shift", 0x6d, b.ClusterShift,
			fmt.Sprintf("0 to %d (clusters of at most 32 MiB)", 25-b.SectorShift))
	case b.FATs != 1 && b.FATs != 2:
		return ondisk.Field(what, "number of FATs", 0x6e, b.FATs, "1 or 2")
	case b.Revision>>8 != 1:
		return ondisk.Field(what, "revision", 0x68, volume.Hex(b.Revision), "1.0 to 1.99")
	}
	if err := volume.BlocksWithin(what, "volume length", 0x48, b.VolumeLength, b.sector(), size); err != nil {
		return err
	}
	return b.areas()
}

// areas verifies that FATs lie behind the boot regions, clusters behind the FATs, and all within the volume.
func (b *bootSector) areas() error {
	fatsEnd := int64(b.FATOffset) + int64(b.FATLength)*int64(b.FATs)
	needed := units.AlignUp((int64(b.Clusters)+2)*4, b.sector()) / b.sector()
	heap, length := int64(b.ClusterHeapOffset), ondisk.I64(b.VolumeLength)
	switch {
	case b.FATOffset < 2*Region:
		return ondisk.Field(what, "FAT offset", 0x50, b.FATOffset, "24 or more sectors")
	case heap < fatsEnd || heap >= length:
		return ondisk.Field(what, "cluster heap offset", 0x58, heap,
			fmt.Sprintf("%d, the end of the FATs, to %d sectors", fatsEnd, length-1))
	}
	most := min((length-heap)>>b.ClusterShift, math.MaxUint32-10)
	switch {
	case b.Clusters == 0 || int64(b.Clusters) > most:
		return ondisk.Field(what, "cluster count", 0x5c, b.Clusters, fmt.Sprintf("1 to %d", most))
	case int64(b.FATLength) < needed:
		return ondisk.Field(what, "FAT length", 0x54, b.FATLength, fmt.Sprintf("%d or more sectors", needed))
	case b.RootCluster < 2 || b.RootCluster-2 >= b.Clusters:
		return ondisk.Field(what, "root cluster", 0x60, b.RootCluster, fmt.Sprintf("2 to %d", int64(b.Clusters)+1))
	}
	return nil
}

// checksum verifies the boot region at off.
func (b *bootSector) checksum(d disk.Disk, off int64) error {
	region, err := ondisk.Bytes(d, off, Region*b.sector())
	if err != nil {
		return err
	}
	sums := Checksum(region)
	want := binary.LittleEndian.Uint32(sums)
	for at := (Region - 1) * b.sector(); at < int64(len(region)); at += 4 {
		if got := binary.LittleEndian.Uint32(region[at:]); got != want {
			return ondisk.Field("exfat boot region", "checksum", off+at, volume.Hex(got), volume.Hex(want))
		}
	}
	return nil
}

// Checksum returns the last sector of a boot region, which repeats the checksum of the others. It skips the fields that
// change in a mounted volume: flags and percentage in use. Spec: 3.4.
func Checksum(region []byte) []byte {
	sector := len(region) / Region
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

// readBackup checks the second boot region, from which a repair starts.
func readBackup(v *volume.Volume, d disk.Disk, b *bootSector) error {
	off := Region * b.sector()
	var c bootSector
	if _, err := volume.Superblock(d, off, binary.LittleEndian, &c); err != nil {
		return err
	}
	text := "describes another volume than the first"
	if c.Name == b.Name && c.VolumeLength == b.VolumeLength && c.SectorShift == b.SectorShift &&
		c.ClusterHeapOffset == b.ClusterHeapOffset {
		err := b.checksum(d, off)
		if !errors.Is(err, ondisk.ErrFormat) {
			return err
		}
		text = "has a wrong checksum"
	}
	v.Note("exfat-backup", ondisk.Warn, "the backup boot region of the exFAT "+text+": it stays as it is",
		"run chkdsk in the guest")
	return nil
}

// label finds the volume label in the root directory. The limit of reading also ends a chain that is a circle.
func (b *bootSector) label(d disk.Disk) (string, error) {
	cluster := b.RootCluster
	step := min(b.cluster(), 64<<10)
	for read := int64(0); read < rootMost && cluster >= 2 && cluster-2 < b.Clusters; {
		at := int64(b.ClusterHeapOffset)*b.sector() + int64(cluster-2)*b.cluster()
		for off := int64(0); off < b.cluster() && read < rootMost; off += step {
			buf, err := ondisk.Bytes(d, at+off, step)
			if err != nil {
				return "", err
			}
			read += step
			if name, done := findLabel(buf); done {
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

// findLabel searches entries up to the label or the end of the directory. An entry has type, number of characters and
// name. Spec: 7.3.
func findLabel(b []byte) (name string, done bool) {
	for ; len(b) >= slot; b = b[slot:] {
		switch b[0] {
		case 0:
			return "", true
		case labelEntry:
			n := min(int(b[1]), labelChars)
			return strings.TrimRight(ondisk.UTF16Z(b[2:2+2*n], binary.LittleEndian), " "), true
		}
	}
	return "", false
}
