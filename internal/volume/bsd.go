package volume

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// bsd finds the table of slices of a BSD.
var bsd = Prober{
	Kinds: []Traits{{Kind: Disklabel, Slices: "BSD disklabel", NeverStale: true}},
	Marks: []Mark{{Off: atInSector, Bytes: bsdMark}, {Off: 512, Bytes: bsdMark}, {Off: 4096, Bytes: bsdMark}},
	Probe: probeDisklabel,
}

// bsdLabel is the head of a disklabel. Spec: FreeBSD, sys/sys/disk/bsd.h (struct disklabel); OpenBSD,
// sys/sys/disklabel.h, where some spare words have a use; NetBSD, sys/sys/disklabel.h.
type bsdLabel struct {
	Magic        uint32
	_            [20]byte // type of the disk
	PackName     [16]byte
	SectorSize   uint32 // bytes
	_            [5]uint32
	UID          [8]byte // of OpenBSD
	_            [42]byte
	Version      uint16 // of OpenBSD; 0 elsewhere
	_            [4]uint32
	Magic2       uint32
	Checksum     uint16
	Partitions   uint16
	_            [2]uint32 // sizes of boot blocks and superblocks
	PartitionMap [maxSlices]bsdSlice
}

// bsdSlice is one of its partitions.
type bsdSlice struct {
	Sectors uint32
	Offset  uint32 // sectors
	// FragSize is the size of a fragment in bytes; with OpenBSD's version 1 the upper halves of the offset and of the
	// size.
	FragSize uint32
	Type     uint8
	_        [3]byte
}

const (
	bsdWhat  = "bsd disklabel"
	bsdMagic = 0x82564557
	bsdMark  = "\x57\x45\x56\x82" // the same, as it stands
	// maxSlices fit into a sector. It is also the limit of NetBSD.
	maxSlices = 22
	// rawSlice, called c, is the whole slice or disk on every BSD.
	rawSlice = 2

	atBSDMap   = 148
	bsdEntry   = 16
	atInSector = 64 // of labels in sector 0, as those of Alpha and of parted
)

// bsdTypes are the kinds of slices that all BSDs number alike. Source: sfdisk --label bsd --list-types; FreeBSD,
// sys/sys/disklabel.h.
var bsdTypes = []string{
	"unused", "swap", "Version 6", "Version 7", "System V", "4.1BSD", "Eighth Edition", "4.2BSD", "MS-DOS", "4.4LFS",
	"unknown", "HPFS", "ISO-9660", "boot",
}

func probeDisklabel(d disk.Disk) (*Volume, error) {
	for _, at := range []int64{units.SectorSize, d.SectorSize(), atInSector} {
		l, err := readDisklabel(d, at)
		switch {
		case errors.Is(err, ondisk.ErrNoMatch):
			continue
		case l == nil:
			return nil, err
		}
		return l.volume(d, at), err
	}
	return nil, ondisk.ErrNoMatch
}

// readDisklabel reads a label at a byte offset. Both magic numbers identify it. A label with a wrong checksum is
// returned with the error: the BSDs do not use it, but parted makes such labels.
func readDisklabel(d disk.Disk, at int64) (*bsdLabel, error) {
	l := &bsdLabel{}
	b, err := Superblock(d, at, binary.LittleEndian, l)
	if err != nil {
		return nil, err
	}
	switch {
	case l.Magic != bsdMagic || l.Magic2 != bsdMagic:
		return nil, ondisk.ErrNoMatch
	case l.Partitions > maxSlices:
		return nil, ondisk.Field(bsdWhat, "partition count", at+138, l.Partitions, fmt.Sprintf("at most %d", maxSlices))
	case !units.IsPowerOfTwo(int64(l.SectorSize)) || l.SectorSize < 512 || l.SectorSize > 4096:
		return nil, ondisk.Field(bsdWhat, "sector size", at+40, l.SectorSize, "512, 1024, 2048 or 4096")
	}
	if sum := xor16(b[:atBSDMap+int(l.Partitions)*bsdEntry], binary.LittleEndian); sum != 0 {
		return l, ondisk.Field(bsdWhat, "checksum", at+136, hex16(l.Checksum), hex16(l.Checksum^sum))
	}
	return l, nil
}

// xor16 returns the checksum of BSD and Sun labels. It is zero if the label is sound.
func xor16(b []byte, order binary.ByteOrder) uint16 {
	sum := uint16(0)
	for ; len(b) >= 2; b = b[2:] {
		sum ^= order.Uint16(b)
	}
	return sum
}

func hex16(n uint16) string { return fmt.Sprintf("%#04x", n) }

func (l *bsdLabel) volume(d disk.Disk, at int64) *Volume {
	v := &Volume{Kind: Disklabel, Label: bsdName(l.PackName[:]), Size: d.Size()}
	if l.Version > 0 && l.UID != [8]byte{} {
		v.UUID = hex.EncodeToString(l.UID[:])
	}
	base := l.base(d.Size(), v)
	for i := range int(l.Partitions) {
		s := l.PartitionMap[i]
		off, size := l.place(s)
		off -= base
		inside := v.OnDisk || (off >= 0 && off+size <= d.Size())
		if size == 0 || i == rawSlice || (s.Type == 0 && !inside) {
			continue // NetBSD on a PC calls the whole disk d, without a type
		}
		if base == 0 && s.Type != 0 && off > d.Size()-size { // elsewhere the label lists other parts of its disk, too
			leaves(v, bsdWhat, at+atBSDMap+int64(i)*bsdEntry, "slice "+string(rune('a'+i)), off+size)
		}
		p := Part{Name: string(rune('a' + i)), Kind: bsdType(s.Type), Start: off, Size: size}
		if !inside {
			p.Start = -1
			outside(v, p.Name)
		}
		v.Parts = append(v.Parts, p)
	}
	return v
}

// base finds the origin of the offsets, in bytes. The BSDs agree on the entries, but not on their meaning. FreeBSD
// subtracts the offset of the raw slice, which is 0 or the place of the slice on the disk; NetBSD stores that place
// there. The raw slice of OpenBSD is the disk, and its offsets are those of the disk.
func (l *bsdLabel) base(size int64, v *Volume) int64 {
	off, length := l.place(l.PartitionMap[rawSlice])
	if l.Partitions <= rawSlice {
		off, length = 0, 0
	}
	from := "the slice"
	switch {
	case l.Version > 0 || (off == 0 && length > size):
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

// place returns offset and size of a slice in bytes, at most 2^60 each.
func (l *bsdLabel) place(s bsdSlice) (off, size int64) {
	off, size = int64(s.Offset), int64(s.Sectors)
	if l.Version > 0 {
		off |= int64(s.FragSize&0xffff) << 32
		size |= int64(s.FragSize>>16) << 32
	}
	return off * int64(l.SectorSize), size * int64(l.SectorSize)
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
