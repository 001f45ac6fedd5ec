package volume

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// A 3390, by which every DASD of Linux counts, has 15 tracks in a cylinder and 12 blocks of 4096 bytes in a track. An
// image does not say so.
const (
	dasdWhat   = "dasd label"
	dasdBlock  = 4096
	dasdTracks = 15
	dasdTrackB = 12 * dasdBlock // bytes
	dasdLabel  = 2 * dasdBlock  // the place of the label with a table of contents
)

// Marks of labels, in EBCDIC.
const (
	dasdCDL = "\xe5\xd6\xd3\xf1" // VOL1: compatible disk layout, with a table of contents
	dasdLDL = "\xd3\xd5\xe7\xf1" // LNX1: Linux disk layout, one partition
	dasdCMS = "\xc3\xd4\xe2\xf1" // CMS1: one partition
)

// dasd is the label of an IBM mainframe disk, in the places where Linux looks without the device: sector 1, block 1 and
// block 2, of blocks of 512 and 4096 bytes. Spec: Linux, arch/s390/include/uapi/asm/vtoc.h, and block/partitions/ibm.c,
// which reads them so.
var dasd = &row{
	kinds: []Traits{{Kind: DASD, Slices: "IBM DASD label", Foreign: true, NeverStale: true}},
	what:  dasdWhat, at: []int64{512, 1024, dasdBlock, dasdLabel}, size: 88, order: binary.BigEndian,
	magic: []Mark{{0, dasdCDL}, {0, dasdLDL}, {0, dasdCMS}},
	mine: func(s *super) bool {
		return string(s.b[:4]) != dasdCDL || (s.at == dasdLabel && string(s.b[4:8]) == dasdCDL)
	},
	volume: func(s *super) *Volume {
		v := newTable(DASD, s.d)
		switch string(s.b[:4]) {
		case dasdCDL:
			v.Label = ebcdic(s.b[8:14])
			v.Add("layout", "CDL (VOL1)")
			dasdContents(v, s)
		case dasdLDL:
			v.Label = ebcdic(s.b[4:10])
			v.Add("layout", "LDL (LNX1)")
			dasdOfLinux(v, s)
		default:
			v.Label = ebcdic(s.b[4:10])
			v.Add("layout", "CMS (CMS1)")
			dasdOfCMS(v, s)
		}
		return v
	},
}

// dasdContents lists the data sets of the table of contents: DSCBs of format 1 or 8. Formats are digits of EBCDIC, and
// the first one is 4.
func dasdContents(v *Volume, s *super) {
	const atFormat, atFirst, atLast, size = 44, 107, 111, 115
	first := dasdTrack(s.b[15:19]) + (int64(s.u8(19))-1)*dasdBlock
	for i := range int64(maxEntries) {
		at := first + i*dasdBlock
		b, err := ReadBlock(s.d, at, size)
		if err != nil && !errors.Is(err, ondisk.ErrNoMatch) {
			s.err = err
			return
		}
		format := byte(0)
		if err == nil {
			format = b[atFormat]
		}
		switch {
		case i == 0 && format != 0xf4:
			s.err = s.field("place of the table of contents", 15, fmt.Sprintf("byte %d", at),
				"a DSCB of format 4, by the geometry of a 3390 with blocks of 4096 bytes")
			return
		case format == 0xf4 || format == 0xf5 || format == 0xf7 || format == 0xf9:
		case format == 0xf1 || format == 0xf8:
			start := dasdTrack(b[atFirst:])
			dataset(v, at+atFirst, ebcdic(b[:atFormat]), start, dasdTrack(b[atLast:])+dasdTrackB-start)
		default:
			return
		}
	}
}

// dasdTrack returns the place of a track, which is a cylinder and a head; the upper 12 bits of the head are those of
// large cylinders.
func dasdTrack(b []byte) int64 {
	low, head := int64(binary.BigEndian.Uint16(b)), int64(binary.BigEndian.Uint16(b[2:]))
	return (((head&0xfff0)<<12|low)*dasdTracks + head&0x000f) * dasdTrackB
}

// dasdOfLinux adds the partition, whose blocks version 2 counts. Versions are digits of EBCDIC.
func dasdOfLinux(v *Volume, s *super) {
	block, end := int64(dasdBlock), v.Size
	if s.at < dasdBlock {
		block = units.SectorSize
	}
	if s.u8(79) == 0xf2 {
		if s.check(check{"formatted blocks", 80, 8, s.blocks(block)}); s.err != nil {
			return
		}
		end = ondisk.I64(s.u64(80)) * block
	}
	dataset(v, s.at+80, "", s.at+block, end-s.at-block)
}

// dasdOfCMS adds the partition, which a reserved minidisk moves.
func dasdOfCMS(v *Volume, s *super) {
	block, count := s.i64(12), s.i64(28)
	s.check(check{"block size", 12, 4, power(512, dasdBlock).says("512, 1024, 2048 or 4096")})
	if s.err != nil {
		return
	}
	start := s.at + block
	switch offset := s.i64(52); {
	case offset != 0:
		start, count = offset*block, count-1
	case s.at == units.SectorSize:
		start = 2 * block
	}
	dataset(v, s.at+28, "", start, count*block-start)
}

// dataset adds a partition, numbered as Linux does. Its place stands at byte off.
func dataset(v *Volume, off int64, name string, start, size int64) {
	entry(v, dasdWhat, off, Part{Name: strconv.Itoa(len(v.Parts) + 1), Kind: name, Start: start, Size: size})
}

// ebcdic returns a name in capitals, digits and the marks that data sets have; other characters are question marks.
func ebcdic(b []byte) string {
	marks := map[byte]byte{0x40: ' ', 0x4b: '.', 0x5b: '$', 0x60: '-', 0x7b: '#', 0x7c: '@', 0x00: ' '}
	out := make([]byte, len(b))
	for i, c := range b {
		low := c & 0x0f
		switch mark, ok := marks[c]; {
		case ok:
			out[i] = mark
		case c >= 0xf0 && low <= 9:
			out[i] = '0' + low
		case c >= 0xe0 && c < 0xf0 && low >= 2 && low <= 9:
			out[i] = 'S' + low - 2
		case c >= 0xd0 && c < 0xe0 && low >= 1 && low <= 9:
			out[i] = 'J' + low - 1
		case c >= 0xc0 && c < 0xd0 && low >= 1 && low <= 9:
			out[i] = 'A' + low - 1
		default:
			out[i] = '?'
		}
	}
	return strings.TrimRight(string(out), " ")
}
