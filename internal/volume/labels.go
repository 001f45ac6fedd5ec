// This part of the package detects the tables that divide a partition into slices.

package volume

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// leaves adds the error for a part that ends past its container. off is the offset of its entry in the table.
func leaves(v *Volume, what string, off int64, part string, end int64) {
	v.Outside = append(v.Outside, ondisk.Field(what, "end of "+part, off, end,
		fmt.Sprintf("at most %d, where the disk ends", v.Size)))
}

// bsd is the disklabel, the table of slices of a BSD. Both magic numbers identify it. A label with a wrong checksum is
// returned along with the error: the BSDs ignore the checksum, but parted writes such labels. Spec: FreeBSD,
// sys/sys/disk/bsd.h (struct disklabel); OpenBSD, sys/sys/disklabel.h, which uses some spare words; NetBSD,
// sys/sys/disklabel.h.
var bsd = &row{
	kinds: []Traits{{Kind: Disklabel, Slices: "BSD disklabel", NeverStale: true}},
	what:  "bsd disklabel", size: atBSDMap + maxSlices*bsdEntry, order: binary.LittleEndian,
	// It is in sector 1 of 512 bytes, in sector 1 of the disk, or in sector 0.
	at: []int64{512, 1024, 2048, 4096, atInSector}, magic: []Mark{{0, "\x57\x45\x56\x82"}},
	matches: func(s *super) bool { return s.u32(132) == s.u32(0) && (s.at <= 512 || s.at == s.d.SectorSize()) },
	checks: func(s *super) {
		s.check(
			check{"partition count", atBSDCount, 2, within(0, maxSlices).says("at most %d", maxSlices)},
			check{"sector size", atBSDSector, 4, power(512, 4096).says("512, 1024, 2048 or 4096")},
		)
	},
	volume: func(s *super) *Volume {
		v := bsdVolume(s)
		s.check(check{"checksum", 136, 2, sum(func() uint64 {
			return uint64(s.u16(136) ^ xor16(s.b[:atBSDMap+int(s.u16(atBSDCount))*bsdEntry], s.order))
		})})
		return v
	},
}

const (
	// maxSlices is the number of slices that fit into a sector, and the limit of NetBSD.
	maxSlices = 22
	// rawSlice, named c, is the whole slice or disk on every BSD.
	rawSlice = 2

	atBSDSector  = 40  // u32, bytes
	atBSDUID     = 64  // 8 bytes, of OpenBSD
	atBSDVersion = 114 // u16, of OpenBSD; 0 elsewhere
	atBSDCount   = 138 // u16
	atBSDMap     = 148 // entries: sectors, offset in sectors, fragment size, and the type in a byte
	bsdEntry     = 16
	atInSector   = 64 // offset of a label in sector 0, as on Alpha and by parted
)

// bsdTypes are the slice types common to all BSDs. Source: sfdisk --label bsd --list-types; FreeBSD,
// sys/sys/disklabel.h.
var bsdTypes = []string{
	"unused", "swap", "Version 6", "Version 7", "System V", "4.1BSD", "Eighth Edition", "4.2BSD", "MS-DOS", "4.4LFS",
	"unknown", "HPFS", "ISO-9660", "boot",
}

// xor16 returns the checksum of BSD and Solaris labels. It is zero for a sound label.
func xor16(b []byte, order binary.ByteOrder) uint16 {
	sum := uint16(0)
	for ; len(b) >= 2; b = b[2:] {
		sum ^= order.Uint16(b)
	}
	return sum
}

func bsdVolume(s *super) *Volume {
	d := s.d
	v := &Volume{Kind: Disklabel, Label: strings.TrimSpace(s.text(24, 16)), Size: d.Size()}
	if v.Label == "fictitious" {
		v.Label = ""
	}
	if id := s.b[atBSDUID : atBSDUID+8]; s.u16(atBSDVersion) > 0 && !ondisk.IsZero(id) {
		v.UUID = hex.EncodeToString(id)
	}
	base := bsdBase(v, s)
	for i := range int64(s.u16(atBSDCount)) {
		name, kind := string(rune('a'+i)), s.u8(atBSDMap+i*bsdEntry+12)
		off, size := bsdPlace(s, i)
		off -= base
		inside := v.OnDisk || (off >= 0 && off+size <= d.Size())
		if size == 0 || i == rawSlice || (kind == 0 && !inside) {
			continue // on a PC, NetBSD names the whole disk d, without a type
		}
		if base == 0 && kind != 0 && off > d.Size()-size { // other labels list other parts of the disk, too
			leaves(v, s.what, s.at+atBSDMap+i*bsdEntry, "slice "+name, off+size)
		}
		p := Part{Name: name, Kind: bsdType(kind), Start: off, Size: size}
		if !inside {
			p.Start = -1
			v.Note("slice-outside", ondisk.Refuse,
				fmt.Sprintf("slice %s of the disklabel is not inside the partition, and would be left behind", name),
				"correct the label in the guest")
		}
		v.Parts = append(v.Parts, p)
	}
	return v
}

// bsdBase returns the origin of the offsets, in bytes. The BSDs share the entries, but not their meaning. FreeBSD
// subtracts the offset of the raw slice: 0, or the offset of the slice on the disk, which NetBSD stores there. The raw
// slice of OpenBSD is the disk, and its offsets count from the start of the disk.
func bsdBase(v *Volume, s *super) int64 {
	off, length := bsdPlace(s, rawSlice)
	if s.u16(atBSDCount) <= rawSlice {
		off, length = 0, 0
	}
	from := "the slice"
	switch {
	case s.u16(atBSDVersion) > 0 || (off == 0 && length > v.Size):
		from, v.OnDisk = "the disk", true
	case off > 0:
		from = fmt.Sprintf("the disk (slice at byte %d)", off)
		v.Issues = append(v.Issues, ondisk.Issue{
			Code: "disklabel-offsets", Effect: ondisk.Warn, OnMove: true,
			Text: "the offsets in the disklabel count from the start of the disk, and are not rewritten: FreeBSD " +
				"subtracts the slice offset stored with them; other systems do not, and would read the old positions",
		})
	}
	v.Add("offsets count from", from)
	return off
}

// bsdPlace returns offset and size of a slice in bytes, at most 2^60 each. In version 1 of OpenBSD, the fragment size
// field holds the upper halves of both.
func bsdPlace(s *super, i int64) (off, size int64) {
	at := atBSDMap + i*bsdEntry
	off, size = s.i64(at+4), s.i64(at)
	if s.u16(atBSDVersion) > 0 {
		upper := s.i64(at + 8)
		off |= upper & 0xffff << 32
		size |= upper >> 16 << 32
	}
	return off * s.i64(atBSDSector), size * s.i64(atBSDSector)
}

func bsdType(n uint8) string {
	if int(n) < len(bsdTypes) {
		return bsdTypes[n]
	}
	return fmt.Sprintf("type %d", n)
}

const (
	sunMagic     = 0xdabe
	wholeDiskTag = 5
	atSunSum     = 510
)

// vtocTags are the tags of slices. Source: sfdisk --label sun --list-types.
var vtocTags = map[uint16]string{
	0: "Unassigned", 1: "Boot", 2: "SunOS root", 3: "SunOS swap", 4: "SunOS usr", 5: "Whole disk", 6: "SunOS stand",
	7: "SunOS var", 8: "SunOS home", 9: "SunOS alt sectors", 10: "SunOS cachefs", 11: "SunOS reserved",
	0x82: "Linux swap", 0x83: "Linux native", 0x8e: "Linux LVM", 0xfd: "Linux raid autodetect",
}

// vtoc is the table of slices of Solaris on a PC, in sector 1 of its partition. Spec: illumos,
// usr/src/uts/common/sys/dklabel.h (struct dk_label with _SUNOS_VTOC_16) and vtoc.h. Source of the absolute positions:
// illumos, installgrub.c: stage1 stores the sector of stage2.
var vtoc = &row{
	kinds: []Traits{{Kind: VTOC, Title: "Solaris VTOC", Slices: "Sun disk label", NeverStale: true}},
	what:  "solaris disk label", at: []int64{units.SectorSize}, size: 512, order: binary.LittleEndian,
	magic:   []Mark{{12, "\xee\xde\x0d\x60"}},
	matches: func(s *super) bool { return s.u32(16) == 1 },
	checks: func(s *super) {
		s.check(
			check{"magic", 508, 2, sum(func() uint64 { return sunMagic })},
			check{"checksum", atSunSum, 2, sum(func() uint64 { return uint64(s.u16(atSunSum) ^ xor16(s.b, s.order)) })},
			check{"slice count", 30, 2, within(0, 16).says("at most 16")},
		)
	},
	volume: func(s *super) *Volume {
		v := &Volume{Kind: VTOC, Label: s.text(20, 8), Size: s.d.Size()}
		v.Add("disk label", "Solaris x86")
		v.Add("ascii label", s.text(328, 128))
		v.Note("solaris", ondisk.Refuse, "Solaris x86 disk label: boot code holds absolute positions, and slices "+
			"lie on cylinders",
			"install the guest on an aligned disk")
		for i := range int(s.u16(30)) {
			vtocSlice(v, s, 72+12*int64(i), i)
		}
		return v
	},
}

// vtocSlice adds a used slice, whose entry is at byte at of the label. A slice past the end of its container has no
// start. Slice 2 at the start is the whole disk by convention, even without a tag.
func vtocSlice(v *Volume, s *super, at int64, i int) {
	tag, start, size := s.u16(at), s.i64(at+4)*units.SectorSize, s.i64(at+8)*units.SectorSize
	if size == 0 || tag == wholeDiskTag {
		return
	}
	p := Part{Name: "s" + strconv.Itoa(i), Kind: vtocTags[tag], Start: -1, Size: size}
	if p.Kind == "" {
		p.Kind = fmt.Sprintf("tag %d", tag)
	}
	if start+size <= v.Size {
		p.Start = start
	} else if i != 2 || start != 0 {
		leaves(v, s.what, s.at+at, "slice "+p.Name, start+size)
	}
	v.Parts = append(v.Parts, p)
}
