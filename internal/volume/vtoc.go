package volume

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

var (
	vtocKinds = []Traits{{Kind: VTOC, Title: "Solaris VTOC", Slices: "Sun disk label", NeverStale: true}}
	// vtoc finds the table of slices of Solaris on a PC.
	vtoc = Prober{
		Kinds: vtocKinds, Marks: []Mark{{Off: 512 + 12, Bytes: "\xee\xde\x0d\x60"}}, Probe: probeVTOC,
	}
	// sun finds that of a Sun machine.
	sun = Prober{Kinds: vtocKinds, Marks: []Mark{{Off: 508, Bytes: "\xda\xbe"}}, Probe: probeSun}
)

// x86Label is the disk label of Solaris on a PC, in sector 1 of its partition. Spec: illumos,
// usr/src/uts/common/sys/dklabel.h (struct dk_label with _SUNOS_VTOC_16) and vtoc.h.
type x86Label struct {
	BootInfo   [3]uint32
	Sanity     uint32
	Version    uint32
	Volume     [8]byte
	SectorSize uint16 // bytes
	Slices     uint16
	_          [10]uint32
	Map        [16]x86Slice
	_          [16]uint32 // time stamps
	ASCII      [128]byte
	_          [52]byte // geometry
	Magic      uint16
	Checksum   uint16
}

type x86Slice struct {
	Tag, Flag uint16
	Start     uint32 // sectors from the start of the partition
	Sectors   uint32
}

// sunLabel is the disk label of Sun's SPARC machines, in sector 0, big-endian. Spec: Linux, block/partitions/sun.c;
// illumos, dklabel.h with _SUNOS_VTOC_8.
type sunLabel struct {
	ASCII    [128]byte
	Version  uint32
	Volume   [8]byte
	Slices   uint16
	Tags     [8]struct{ Tag, Flag uint16 }
	_        uint16
	_        [3]uint32
	Sanity   uint32
	_        [60]uint32 // time stamps, unused
	_        [2]uint16  // cylinders
	Heads    uint16
	Sectors  uint16 // of a track
	_        [2]uint16
	Map      [8]struct{ Cylinder, Sectors uint32 }
	Magic    uint16
	Checksum uint16
}

const (
	x86What      = "solaris disk label"
	sunWhat      = "sun disk label"
	vtocSanity   = 0x600ddeee
	sunMagic     = 0xdabe
	wholeDiskTag = 5
)

// vtocTags are the uses of a slice. Source: sfdisk --label sun --list-types.
var vtocTags = map[uint16]string{
	0: "Unassigned", 1: "Boot", 2: "SunOS root", 3: "SunOS swap", 4: "SunOS usr", 5: "Whole disk", 6: "SunOS stand",
	7: "SunOS var", 8: "SunOS home", 9: "SunOS alt sectors", 10: "SunOS cachefs", 11: "SunOS reserved",
	0x82: "Linux swap", 0x83: "Linux native", 0x8e: "Linux LVM", 0xfd: "Linux raid autodetect",
}

func probeVTOC(d disk.Disk) (*Volume, error) {
	const at = units.SectorSize
	var l x86Label
	b, err := Superblock(d, at, binary.LittleEndian, &l)
	switch {
	case err != nil:
		return nil, err
	case l.Sanity != vtocSanity || l.Version != 1:
		return nil, ondisk.ErrNoMatch
	case l.Magic != sunMagic:
		return nil, ondisk.Field(x86What, "magic", at+508, hex16(l.Magic), hex16(sunMagic))
	case xor16(b, binary.LittleEndian) != 0:
		return nil, ondisk.Field(x86What, "checksum", at+510, hex16(l.Checksum),
			hex16(l.Checksum^xor16(b, binary.LittleEndian)))
	case int(l.Slices) > len(l.Map):
		return nil, ondisk.Field(x86What, "slice count", at+30, l.Slices, fmt.Sprintf("at most %d", len(l.Map)))
	}
	v := solaris(d, "Solaris x86", l.ASCII[:], l.Volume[:])
	for i, s := range l.Map[:l.Slices] {
		slice(v, x86What, at+72+12*int64(i), i, s.Tag, int64(s.Start), units.SectorSize,
			int64(s.Sectors)*units.SectorSize)
	}
	return v, nil
}

// probeSun knows the label of a whole disk. Its slices begin on cylinders.
func probeSun(d disk.Disk) (*Volume, error) {
	var l sunLabel
	b, err := Superblock(d, 0, binary.BigEndian, &l)
	if err != nil {
		return nil, err
	}
	perCylinder := int64(l.Heads) * int64(l.Sectors)
	switch {
	case l.Magic != sunMagic || (l.Sanity != vtocSanity && xor16(b, binary.BigEndian) != 0):
		// Two bytes are too few: one encrypted partition in 65536 has them, and any MBR can.
		return nil, ondisk.ErrNoMatch
	case xor16(b, binary.BigEndian) != 0:
		return nil, ondisk.Field(sunWhat, "checksum", 510, hex16(l.Checksum),
			hex16(l.Checksum^xor16(b, binary.BigEndian)))
	case perCylinder == 0:
		return nil, ondisk.Field(sunWhat, "geometry", 436, fmt.Sprintf("%d heads, %d sectors", l.Heads, l.Sectors),
			"1 or more of each")
	}
	v := solaris(d, "Sun (SPARC)", l.ASCII[:], l.Volume[:])
	hasTags := l.Sanity == vtocSanity && l.Version == 1 && int(l.Slices) <= len(l.Tags)
	for i, s := range l.Map {
		tag := uint16(0)
		if hasTags {
			tag = l.Tags[i].Tag
		}
		slice(v, sunWhat, 444+8*int64(i), i, tag, int64(s.Cylinder), perCylinder*units.SectorSize,
			int64(s.Sectors)*units.SectorSize)
	}
	return v, nil
}

// solaris returns a volume with boot code and slices at the places of Solaris. Source: illumos, installgrub.c:
// stage1 has the sector of stage2.
func solaris(d disk.Disk, what string, ascii, name []byte) *Volume {
	v := &Volume{Kind: VTOC, Label: Text(name), Size: d.Size()}
	v.Add("disk label", what)
	v.Add("ascii label", Text(ascii))
	v.Note("solaris", ondisk.Refuse, what+" disk label: boot code holds absolute positions, and slices "+
		"lie on cylinders",
		"install the guest on an aligned disk")
	return v
}

// slice adds a used slice, whose entry is at byte off. It starts at a multiple of unit bytes, and has no place if it
// leaves its container. Slice 2 at the start is the whole disk by custom, even without a tag.
func slice(v *Volume, what string, off int64, i int, tag uint16, start, unit, size int64) {
	if size == 0 || tag == wholeDiskTag {
		return
	}
	p := Part{Name: "s" + strconv.Itoa(i), Kind: vtocTags[tag], Start: -1, Size: size}
	if p.Kind == "" {
		p.Kind = fmt.Sprintf("tag %d", tag)
	}
	if start <= v.Size/unit && size <= v.Size-start*unit {
		p.Start = start * unit
	} else if i != 2 || start != 0 {
		// The product of start and unit may not fit.
		v.Outside = append(v.Outside, ondisk.Field(what, "place of slice "+p.Name, off,
			fmt.Sprintf("%d bytes from %d times %d on", size, start, unit),
			fmt.Sprintf("at most to byte %d, where the disk ends", v.Size)))
	}
	v.Parts = append(v.Parts, p)
}
