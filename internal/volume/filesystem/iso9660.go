package filesystem

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// ISO9660 finds the file system of CDs. A CD that a Macintosh starts from has a partition map too, whose partitions are
// files of the CD.
var ISO9660 = volume.Prober{
	Kinds: []volume.Traits{{Kind: volume.ISO9660, Title: "ISO 9660", Hides: volume.APM}},
	Probe: probeISO9660,
}

// isoDescriptor is a primary or a supplementary volume descriptor. Spec: ECMA-119, 8.4 and 8.5. Numbers stand there
// twice, little-endian and big-endian.
type isoDescriptor struct {
	Kind        uint8
	ID          [5]byte // "CD001"
	Version     uint8
	_           uint8
	_           [32]byte
	Label       [32]byte
	_           [8]byte
	Blocks      uint32
	BlocksBig   [4]byte
	Escapes     [32]byte
	_           [8]byte
	BlockSize   uint16
	BlockBig    [2]byte
	_           [681]byte
	Created     [17]byte
	Modified    [17]byte
	_           [34]byte
	FileVersion uint8
}

const (
	isoWhat   = "iso 9660 volume descriptor"
	isoAt     = 32 << 10
	isoSector = 2048
	isoMost   = 64 // descriptors looked at

	isoPrimary       = 1
	isoSupplementary = 2
	isoEnd           = 255
)

func probeISO9660(d disk.Disk) (*volume.Volume, error) {
	if d.Size() < isoAt {
		return nil, ondisk.ErrNoMatch
	}
	var p isoDescriptor
	if _, err := volume.Superblock(d, isoAt, binary.LittleEndian, &p); err != nil {
		return nil, err
	}
	if string(p.ID[:]) != "CD001" || p.Kind != isoPrimary || p.Version != 1 {
		return nil, ondisk.ErrNoMatch
	}
	if err := p.check(d.Size()); err != nil {
		return nil, err
	}
	v := &volume.Volume{
		Kind: volume.ISO9660, Label: volume.Label(p.Label[:]), UUID: isoUUID(p.Modified),
		BlockSize: int64(p.BlockSize), Size: int64(p.Blocks) * int64(p.BlockSize),
	}
	if v.UUID == "" {
		v.UUID = isoUUID(p.Created)
	}
	return v, isoFurther(v, d, &p)
}

// check verifies both copies of each number. size is the size of the partition in bytes.
func (p *isoDescriptor) check(size int64) error {
	block := int64(p.BlockSize)
	switch {
	case !volume.PowerBetween(block, 512, isoSector):
		return ondisk.Field(isoWhat, "block size", isoAt+0x80, block, "512, 1024 or 2048")
	case binary.BigEndian.Uint16(p.BlockBig[:]) != p.BlockSize:
		return ondisk.Field(isoWhat, "block size, big-endian", isoAt+0x82, binary.BigEndian.Uint16(p.BlockBig[:]),
			p.BlockSize)
	case binary.BigEndian.Uint32(p.BlocksBig[:]) != p.Blocks:
		return ondisk.Field(isoWhat, "volume space size, big-endian", isoAt+0x54,
			binary.BigEndian.Uint32(p.BlocksBig[:]), p.Blocks)
	case p.FileVersion != 1:
		return ondisk.Field(isoWhat, "file structure version", isoAt+0x371, p.FileVersion, 1)
	}
	return volume.BlocksWithin(isoWhat, "volume space size", isoAt+0x50, uint64(p.Blocks), block, size)
}

// isoFurther reads the descriptors behind the first. Joliet has a longer label, and the descriptors of UDF make the
// volume a bridge.
func isoFurther(v *volume.Volume, d disk.Disk, p *isoDescriptor) error {
	ended := false
	for i := int64(1); i < isoMost; i++ {
		var s isoDescriptor
		if _, err := volume.Superblock(d, isoAt+i*isoSector, binary.LittleEndian, &s); err != nil {
			return ignoreNoMatch(err)
		}
		switch id := string(s.ID[:]); {
		case ended && (id == "NSR02" || id == "NSR03"):
			v.Addf("UDF", "bridge, %s", id)
			return nil
		case ended && id == "BEA01":
		case ended || id != "CD001":
			return nil
		case s.Kind == isoEnd:
			ended = true
		case s.Kind == isoSupplementary && s.joliet():
			v.Addf("names", "Joliet")
			isoLabel(v, p.Label[:], s.Label[:])
		}
	}
	return nil
}

// joliet reports whether the escape sequence is one of UCS-2. Spec: Joliet Specification, "SVD Escape Sequences Field".
func (p *isoDescriptor) joliet() bool {
	return slices.Contains([]string{"%/@", "%/C", "%/E"}, volume.Text(p.Escapes[:4]))
}

// isoLabel prefers the name of Joliet, unless it is the same name cut at 16 characters.
func isoLabel(v *volume.Volume, plain, joliet []byte) {
	name := ondisk.UTF16Z(joliet, binary.BigEndian)
	if name != "" && !strings.HasPrefix(string(plain), name) {
		v.Label = strings.TrimRight(name, " ")
	}
}

// isoUUID formats a date as libblkid does: year, month, day, hour, minute, second, hundredths. All zeros are an empty
// text.
func isoUUID(date [17]byte) string {
	digits := string(date[:16])
	if strings.Trim(digits, "0123456789") != "" || (strings.Trim(digits, "0") == "" && date[16] == 0) {
		return ""
	}
	parts := []string{digits[:4]}
	for i := 4; i < len(digits); i += 2 {
		parts = append(parts, digits[i:i+2])
	}
	return strings.Join(parts, "-")
}

// ignoreNoMatch drops ErrNoMatch of a structure that a volume may lack.
func ignoreNoMatch(err error) error {
	if errors.Is(err, ondisk.ErrNoMatch) {
		return nil
	}
	return err
}
