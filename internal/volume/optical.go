package volume

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
)

// iso9660 is the primary volume descriptor of a CD. A CD that a Macintosh starts from has a partition map too, whose
// partitions are files of the CD. Spec: ECMA-119, 8.4 and 8.5. Numbers stand there twice, little-endian and big-endian.
var iso9660 = &row{
	kinds: []Traits{{Kind: ISO9660, Title: "ISO 9660", Hides: APM}},
	what:  "iso 9660 volume descriptor", at: []int64{isoAt}, size: 882, order: binary.LittleEndian,
	magic: []Mark{{0, "\x01CD001\x01"}},
	checks: func(s *super) {
		big := binary.BigEndian
		s.check(
			check{"block size", 0x80, 2, power(512, 2048).says("512, 1024 or 2048")},
			check{"block size, big-endian", 0x82, 0, equal(uint64(s.u16(0x80))).of(uint64(big.Uint16(s.b[0x82:])))},
			check{
				"volume space size, big-endian", 0x54, 0,
				equal(uint64(s.u32(0x50))).of(uint64(big.Uint32(s.b[0x54:]))),
			},
			check{"file structure version", 0x371, 1, equal(1)},
			check{"volume space size", 0x50, 4, s.blocks(int64(s.u16(0x80)))},
		)
	},
	volume: func(s *super) *Volume {
		const created, modified = 0x32d, 0x33e
		v := &Volume{
			Kind: ISO9660, Label: s.label(0x28, 32), UUID: cmp.Or(isoDate(s, modified), isoDate(s, created)),
			BlockSize: int64(s.u16(0x80)), Size: s.i64(0x50) * int64(s.u16(0x80)),
		}
		s.err = isoFurther(v, s)
		return v
	},
}

const isoAt = 32 << 10

// isoFurther reads the descriptors behind the first. Joliet has a longer label, and the descriptors of UDF make the
// volume a bridge. The escape sequences are those of UCS-2. Spec: Joliet Specification, "SVD Escape Sequences Field".
func isoFurther(v *Volume, s *super) error {
	const sector, most, supplementary, end = 2048, 64, 2, 255
	ended := false
	for i := int64(1); i < most; i++ {
		b, err := ReadBlock(s.d, isoAt+i*sector, s.size)
		if err != nil {
			return orNil(err)
		}
		switch id := string(b[1:6]); {
		case ended && (id == "NSR02" || id == "NSR03"):
			v.Addf("UDF", "bridge, %s", id)
			return nil
		case ended && id == "BEA01":
		case ended || id != "CD001":
			return nil
		case b[0] == end:
			ended = true
		case b[0] == supplementary && slices.Contains([]string{"%/@", "%/C", "%/E"}, Text(b[0x58:0x5c])):
			v.Add("names", "Joliet")
			// A plain name can be the same cut at 16 characters, or longer.
			name := ondisk.UTF16Z(b[0x28:0x48], binary.BigEndian)
			if name != "" && !strings.HasPrefix(string(s.b[0x28:0x48]), name) {
				v.Label = strings.TrimRight(name, " ")
			}
		}
	}
	return nil
}

// isoDate formats a date as libblkid does: year, month, day, hour, minute, second, hundredths. All zeros are an empty
// text.
func isoDate(s *super, off int64) string {
	digits := string(s.b[off : off+16])
	if strings.Trim(digits, "0123456789") != "" || (strings.Trim(digits, "0") == "" && s.b[off+16] == 0) {
		return ""
	}
	parts := []string{digits[:4]}
	for i := 4; i < len(digits); i += 2 {
		parts = append(parts, digits[i:i+2])
	}
	return strings.Join(parts, "-")
}
