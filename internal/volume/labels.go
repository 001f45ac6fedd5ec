// This part of the package finds the tables that divide a partition into slices, and the partition tables of machines
// other than PCs.

package volume

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// newTable returns the partition table of a machine other than a PC, as the content of the whole disk d.
func newTable(kind Kind, d disk.Disk) *Volume {
	return &Volume{Kind: kind, Size: d.Size()}
}

// maxEntries bounds the partitions of such a table.
const maxEntries = 256

// entry adds a partition whose entry is at byte off of the table. A partition that leaves the disk has no place. One
// without a size is not listed.
func entry(v *Volume, what string, off int64, p Part) {
	if p.Size <= 0 {
		v.Outside = append(v.Outside, ondisk.Field(what, "size of partition "+p.Name, off, p.Size, "1 byte or more"))
		return
	}
	if p.Start < 0 || p.Start > v.Size || p.Size > v.Size-p.Start {
		if !p.Own { // the size of the whole disk can be rounded up
			leaves(v, what, off, "partition "+p.Name, p.Start+p.Size)
		}
		p.Start = -1
	}
	v.Parts = append(v.Parts, p)
}

// leaves adds the error of a part that ends behind its container. off is the place of its entry in the table.
func leaves(v *Volume, what string, off int64, part string, end int64) {
	v.Outside = append(v.Outside, ondisk.Field(what, "end of "+part, off, end,
		fmt.Sprintf("at most %d, where the disk ends", v.Size)))
}

// rdb is the rigid disk block of the Amiga, one of the first 16 sectors. Its checksum counts the given number of words.
// Spec: AmigaOS, devices/hardblocks.h; Linux, block/partitions/amiga.c.
var rdb = &row{
	kinds: []Traits{{
		Kind: RDB, Slices: "Amiga rigid disk block", Foreign: true, Unlisted: true, NeverStale: true,
	}},
	what: "amiga rigid disk block", size: 512, order: binary.BigEndian, magic: []Mark{{0, "RDSK"}},
	at: []int64{
		0, 512, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 4608, 5120, 5632, 6144, 6656, 7168, 7680,
	},
	checks: func(s *super) {
		s.check(
			check{"length", 4, 4, within(32, 128).says("32 to 128 words")},
			check{"checksum", 8, 4, sum(func() uint64 { return uint64(s.u32(8) - sum32(s.b[:4*s.i64(4)])) })},
		)
	},
	volume: func(s *super) *Volume { return newTable(RDB, s.d) },
}

// atariIDs are the types that identify a root sector. Three letters are weak evidence, so that others are not accepted.
var atariIDs = []string{"GEM", "BGM", "XGM", "RAW", "LNX", "SWP", "MIX", "UNX", "F32", "MAC", "QWA"}

// atari is the root sector of AHDI: the number of sectors of the disk, and four partitions. It has no magic number, and
// its checksum need not be right, so that its fields must agree. Spec: Atari, "AHDI 3.00 Release Notes"; Linux,
// block/partitions/atari.h.
var atari = &row{
	kinds: []Traits{{Kind: Atari, Slices: "Atari root sector", Foreign: true, Unlisted: true}},
	what:  "atari root sector", at: []int64{0}, size: 512, order: binary.BigEndian, magic: []Mark{{}},
	mine: func(s *super) bool {
		const atSectors, atParts, partSize, parts = 0x1c2, 0x1c6, 12, 4
		sectors := s.i64(atSectors)
		used := false
		for i := range int64(parts) {
			at := atParts + partSize*i
			if s.u8(at)&1 == 0 {
				continue
			}
			used = true
			start, count := s.i64(at+4), s.i64(at+8)
			if !slices.Contains(atariIDs, string(s.b[at+1:at+4])) || start == 0 || count == 0 ||
				start+count > s.d.Size()/units.SectorSize {
				return false
			}
		}
		return used && sectors > 0 && sectors <= s.d.Size()/units.SectorSize
	},
	volume: func(s *super) *Volume { return newTable(Atari, s.d) },
}

// atariProber is that of a row without a mark by which a volume could be believed.
func atariProber() Prober { return Prober{Kinds: atari.kinds, Probe: atari.probe} }

// dasdLayouts are the kinds of a DASD label by their marks, in EBCDIC: VOL1, LNX1 and CMS1.
var dasdLayouts = map[string]string{
	dasdCDL: "CDL (VOL1)", "\xd3\xd5\xe7\xf1": "LDL (LNX1)", "\xc3\xd4\xe2\xf1": "CMS (CMS1)",
}

const dasdCDL = "\xe5\xd6\xd3\xf1"

// dasd is the label of an IBM mainframe disk, in the places where Linux looks without the device: sector 1, block 1 and
// block 2, of blocks of 512 and 4096 bytes. Spec: Linux, arch/s390/include/uapi/asm/vtoc.h, and block/partitions/ibm.c,
// which reads them so.
var dasd = &row{
	kinds: []Traits{{Kind: DASD, Slices: "IBM DASD label", Foreign: true, Unlisted: true, NeverStale: true}},
	what:  "dasd label", at: []int64{512, 1024, 4096, 8192}, size: 88, order: binary.BigEndian,
	magic: []Mark{{0, dasdCDL}, {0, "\xd3\xd5\xe7\xf1"}, {0, "\xc3\xd4\xe2\xf1"}},
	mine: func(s *super) bool { // in a CDL the mark stands behind itself, in block 2 of 4096 bytes
		return s.text(0, 4) != dasdCDL || (s.at == 8192 && s.text(4, 4) == dasdCDL)
	},
	volume: func(s *super) *Volume {
		v := newTable(DASD, s.d)
		v.Add("layout", dasdLayouts[s.text(0, 4)])
		return v
	},
}

// sum32 returns the sum of the words of SGI and Amiga. It is zero if the checksum is right.
func sum32(b []byte) (sum uint32) {
	for ; len(b) >= 4; b = b[4:] {
		sum += binary.BigEndian.Uint32(b)
	}
	return sum
}

// bsd is the table of slices of a BSD. Both magic numbers identify it. A label with a wrong checksum is returned with
// the error: the BSDs do not use it, but parted makes such labels. Spec: FreeBSD, sys/sys/disk/bsd.h (struct
// disklabel); OpenBSD, sys/sys/disklabel.h, where some spare words have a use; NetBSD, sys/sys/disklabel.h.
var bsd = &row{
	kinds: []Traits{{Kind: Disklabel, Slices: "BSD disklabel", NeverStale: true}},
	what:  "bsd disklabel", at: []int64{units.SectorSize, 4096, atInSector}, size: atBSDMap + maxSlices*bsdEntry,
	order: binary.LittleEndian, magic: []Mark{{0, "\x57\x45\x56\x82"}},
	mine: func(s *super) bool { return s.u32(132) == s.u32(0) },
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
	// maxSlices fit into a sector. It is also the limit of NetBSD.
	maxSlices = 22
	// rawSlice, called c, is the whole slice or disk on every BSD.
	rawSlice = 2

	atBSDSector  = 40  // u32, bytes
	atBSDUID     = 64  // 8 bytes, of OpenBSD
	atBSDVersion = 114 // u16, of OpenBSD; 0 elsewhere
	atBSDCount   = 138 // u16
	atBSDMap     = 148 // of each slice: sectors, offset in sectors, size of a fragment, and the type, a byte
	bsdEntry     = 16
	atInSector   = 64 // of labels in sector 0, as those of Alpha and of parted
)

// bsdProber finds a disklabel in sector 1 of 512 bytes, in that of the disk, or in sector 0.
func bsdProber() Prober {
	p := bsd.prober()
	p.Probe = func(d disk.Disk) (*Volume, error) {
		for _, at := range []int64{units.SectorSize, d.SectorSize(), atInSector} {
			if v, err := bsd.probeAt(d, at); !errors.Is(err, ondisk.ErrNoMatch) {
				return v, err
			}
		}
		return nil, ondisk.ErrNoMatch
	}
	return p
}

// bsdTypes are the kinds of slices that all BSDs number alike. Source: sfdisk --label bsd --list-types; FreeBSD,
// sys/sys/disklabel.h.
var bsdTypes = []string{
	"unused", "swap", "Version 6", "Version 7", "System V", "4.1BSD", "Eighth Edition", "4.2BSD", "MS-DOS", "4.4LFS",
	"unknown", "HPFS", "ISO-9660", "boot",
}

// xor16 returns the checksum of BSD and Sun labels. It is zero if the label is sound.
func xor16(b []byte, order binary.ByteOrder) uint16 {
	sum := uint16(0)
	for ; len(b) >= 2; b = b[2:] {
		sum ^= order.Uint16(b)
	}
	return sum
}

func bsdVolume(s *super) *Volume {
	d := s.d
	v := &Volume{Kind: Disklabel, Label: bsdName(s.b[24:40]), Size: d.Size()}
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
			continue // NetBSD on a PC calls the whole disk d, without a type
		}
		if base == 0 && kind != 0 && off > d.Size()-size { // elsewhere the label lists other parts of its disk, too
			leaves(v, s.what, s.at+atBSDMap+i*bsdEntry, "slice "+name, off+size)
		}
		p := Part{Name: name, Kind: bsdType(kind), Start: off, Size: size}
		if !inside {
			p.Start = -1
			outside(v, p.Name)
		}
		v.Parts = append(v.Parts, p)
	}
	return v
}

// bsdBase finds the origin of the offsets, in bytes. The BSDs agree on the entries, but not on their meaning. FreeBSD
// subtracts the offset of the raw slice, which is 0 or the place of the slice on the disk; NetBSD stores that place
// there. The raw slice of OpenBSD is the disk, and its offsets are those of the disk.
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
		from = fmt.Sprintf("the disk, which has the slice at byte %d", off)
		v.Issues = append(v.Issues, ondisk.Issue{
			Code: "disklabel-offsets", Effect: ondisk.Warn, OnMove: true,
			Text: "the offsets in the disklabel count from the start of the disk, and are not rewritten: FreeBSD " +
				"subtracts the place of the slice that stands beside them; other systems do not, and would look at " +
				"the old places",
		})
	}
	v.Add("offsets count from", from)
	return off
}

// bsdPlace returns offset and size of a slice in bytes, at most 2^60 each. With OpenBSD's version 1 the size of a
// fragment has the upper halves of both.
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

// bsdName returns the name of the pack. "fictitious" is an empty name.
func bsdName(b []byte) string {
	if s := strings.TrimSpace(Text(b)); s != "fictitious" {
		return s
	}
	return ""
}

// outside refuses to move a container if a slice lies outside of it: the slice would be left behind.
func outside(v *Volume, slice string) {
	v.Note("slice-outside", ondisk.Refuse,
		fmt.Sprintf("slice %s of the disklabel does not lie inside of the partition, and would be left behind", slice),
		"correct the label in the guest")
}

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

// sgiTypes are the uses of a partition. Source: sfdisk --label sgi --list-types.
var sgiTypes = map[uint32]string{
	0: "SGI volhdr", 1: "SGI trkrepl", 2: "SGI secrepl", 3: "SGI raw", 4: "SGI bsd", 5: "SGI sysv", 6: "SGI volume",
	7: "SGI efs", 8: "SGI lvol", 9: "SGI rlvol", 10: "SGI xfs", 11: "SGI xfslog", 12: "SGI xlv", 13: "SGI xvm",
	0x82: "Linux swap", 0x83: "Linux native", 0x8e: "Linux LVM", 0xfd: "Linux RAID",
}

// sgi is the volume header of IRIX. Spec: IRIX, sys/dvh.h (struct volume_header); Linux, block/partitions/sgi.c.
var sgi = &row{
	kinds: []Traits{{Kind: SGI, Slices: "SGI volume header", Foreign: true, NeverStale: true}},
	what:  "sgi volume header", at: []int64{0}, size: 512, order: binary.BigEndian,
	magic: []Mark{{0, "\x0b\xe5\xa9\x41"}},
	volume: func(s *super) *Volume {
		const entries, header, trackReplace, sectorReplace, whole, atSum = 16, 0, 1, 2, 6, 504
		v := newTable(SGI, s.d)
		for i := range int64(entries) {
			at := 312 + 12*i
			use := s.u32(at + 8)
			if s.u32(at) == 0 {
				continue
			}
			entry(v, s.what, at, Part{
				Name: strconv.FormatInt(i+1, 10), Kind: cmp.Or(sgiTypes[use], fmt.Sprintf("type %#x", use)),
				Start: s.i64(at+4) * units.SectorSize, Size: s.i64(at) * units.SectorSize,
				Own: use == header || use == whole || use == trackReplace || use == sectorReplace,
			})
		}
		s.check(check{"checksum", atSum, 4, sum(func() uint64 { return uint64(s.u32(atSum) - sum32(s.b)) })})
		return v
	},
}
