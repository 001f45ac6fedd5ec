package volume

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

var vtocKinds = []Traits{{Kind: VTOC, Title: "Solaris VTOC", Slices: "Sun disk label", NeverStale: true}}

const (
	vtocSanity   = 0x600ddeee
	sunMagic     = 0xdabe
	wholeDiskTag = 5
	atSunSum     = 510
)

// vtocTags are the uses of a slice. Source: sfdisk --label sun --list-types.
var vtocTags = map[uint16]string{
	0: "Unassigned", 1: "Boot", 2: "SunOS root", 3: "SunOS swap", 4: "SunOS usr", 5: "Whole disk", 6: "SunOS stand",
	7: "SunOS var", 8: "SunOS home", 9: "SunOS alt sectors", 10: "SunOS cachefs", 11: "SunOS reserved",
	0x82: "Linux swap", 0x83: "Linux native", 0x8e: "Linux LVM", 0xfd: "Linux raid autodetect",
}

// vtoc is the table of slices of Solaris on a PC, in sector 1 of its partition. Spec: illumos,
// usr/src/uts/common/sys/dklabel.h (struct dk_label with _SUNOS_VTOC_16) and vtoc.h.
var vtoc = &row{
	kinds: vtocKinds,
	what:  "solaris disk label", at: []int64{units.SectorSize}, size: 512, order: binary.LittleEndian,
	magic: []Mark{{12, "\xee\xde\x0d\x60"}},
	mine:  func(s *super) bool { return s.u32(16) == 1 },
	checks: func(s *super) {
		s.check(
			check{"magic", 508, 2, sum(func() uint64 { return sunMagic })},
			check{"checksum", atSunSum, 2, sum(func() uint64 { return uint64(s.u16(atSunSum) ^ xor16(s.b, s.order)) })},
			check{"slice count", 30, 2, within(0, 16).says("at most 16")},
		)
	},
	volume: func(s *super) *Volume {
		v := solaris(s.d, "Solaris x86", s.b[328:456], s.b[20:28])
		for i := range int(s.u16(30)) {
			at := 72 + 12*int64(i)
			slice(v, s.what, s.at+at, i, s.u16(at), s.i64(at+4), units.SectorSize, s.i64(at+8)*units.SectorSize)
		}
		return v
	},
}

// sun is the disk label of Sun's SPARC machines. Its slices begin on cylinders. Spec: Linux, block/partitions/sun.c;
// illumos, dklabel.h with _SUNOS_VTOC_8.
var sun = &row{
	kinds: vtocKinds,
	what:  "sun disk label", at: []int64{0}, size: 512, order: binary.BigEndian, magic: []Mark{{508, "\xda\xbe"}},
	// Two bytes are too few: one encrypted partition in 65536 has them, and any MBR can.
	mine: func(s *super) bool { return s.u32(188) == vtocSanity || xor16(s.b, s.order) == 0 },
	checks: func(s *super) {
		heads, sectors := s.u16(436), s.u16(438)
		s.check(
			check{"checksum", atSunSum, 2, sum(func() uint64 { return uint64(s.u16(atSunSum) ^ xor16(s.b, s.order)) })},
			check{"geometry", 436, 0, holds(heads > 0 && sectors > 0,
				fmt.Sprintf("%d heads, %d sectors", heads, sectors), "1 or more of each")},
		)
	},
	volume: func(s *super) *Volume {
		const slices = 8
		cylinder := int64(s.u16(436)) * int64(s.u16(438)) * units.SectorSize
		v := solaris(s.d, "Sun (SPARC)", s.b[:128], s.b[132:140])
		hasTags := s.u32(188) == vtocSanity && s.u32(128) == 1 && s.u16(140) <= slices
		for i := range slices {
			tag, at := uint16(0), 444+8*int64(i)
			if hasTags {
				tag = s.u16(142 + 4*int64(i))
			}
			slice(v, s.what, at, i, tag, s.i64(at), cylinder, s.i64(at+4)*units.SectorSize)
		}
		return v
	},
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
