package volume

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
)

// apm is the driver map in block 0, with the partition map of Apple in the blocks behind it. Spec: Apple, Inside
// Macintosh: Devices, "Data Organization on SCSI Devices"; Linux, block/partitions/mac.h.
var apm = &row{
	kinds: []Traits{{Kind: APM, Slices: "Apple partition map", Foreign: true, NeverStale: true}},
	what:  "apple partition map", at: []int64{0}, size: 8, order: binary.BigEndian, magic: []Mark{{0, "ER"}},
	mine: func(s *super) bool { // two letters are too few
		if !PowerBetween(int64(s.u16(2)), 512, 4096) {
			return false
		}
		b, err := ReadBlock(s.d, int64(s.u16(2)), appleEntry)
		s.err = orNil(err)
		return err == nil && string(b[:2]) == "PM"
	},
	volume: func(s *super) *Volume {
		v, size := newTable(APM, s.d), int64(s.u16(2))
		for i, n := int64(1), int64(1); i <= n; i++ {
			b, err := ReadBlock(s.d, i*size, appleEntry)
			switch {
			case errors.Is(err, ondisk.ErrNoMatch):
				b = make([]byte, appleEntry)
			case err != nil:
				s.err = err
				return nil
			}
			if string(b[:2]) != "PM" {
				s.err = s.field(fmt.Sprintf("signature of entry %d", i), i*size, fmt.Sprintf("%q", b[:2]), `"PM"`)
				return v
			}
			if i == 1 {
				count := s.order.Uint32(b[4:])
				if s.check(check{"entry count", size + 4, 0, within(1, maxEntries).of(uint64(count))}); s.err != nil {
					return v
				}
				n = int64(count)
			}
			appleEntryOf(v, s, b, i)
		}
		return v
	},
}

const appleEntry = 80 // bytes of an entry, up to the type

// appleOwn are types of partitions that hold the map, drivers or nothing.
var appleOwn = []string{"Apple_partition_map", "Apple_Patches", "Apple_Void", "Apple_Scratch"}

// appleEntryOf adds the partition of entry i, unless it is free.
func appleEntryOf(v *Volume, s *super, b []byte, i int64) {
	start, count, kind := s.order.Uint32(b[8:]), s.order.Uint32(b[12:]), Text(b[48:80])
	if kind == "Apple_Free" || count == 0 {
		return
	}
	size := int64(s.u16(2))
	entry(v, s.what, i*size+8, Part{
		Name: strings.TrimSpace(strconv.FormatInt(i, 10) + " " + Label(b[16:48])), Kind: kind,
		Start: blocks(start, size), Size: blocks(count, size),
		Own: slices.Contains(appleOwn, kind) || strings.HasPrefix(kind, "Apple_Driver"),
	})
}
