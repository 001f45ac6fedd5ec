package volume

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// Packed lists of names and values, in XDR: big-endian, texts filled up to four bytes. Spec: OpenZFS, module/nvpair/nvpair.c,
// "XDR encoding", and RFC 4506.
const (
	nvHeader  = 4 // encoding, byte order of the machine, two reserved
	nvVersion = 8 // version and flags in front of the pairs
	nvNumber  = 8
	nvText    = 9
	nvList    = 19
	nvMaxPair = 1024 // pairs of a list
	nvMaxText = 255  // bytes of a name. Spec: OpenZFS, include/sys/fs/zfs.h, ZFS_MAX_DATASET_NAME_LEN
)

// nvPair is one pair.
type nvPair struct {
	name  string
	kind  uint32
	value []byte
}

// isPackedList reports whether b begins as a list of ZFS does: in XDR, version 0, names that stand once.
func isPackedList(b []byte) bool {
	return b[0] == 1 && b[1] <= 1 && b[2] == 0 && b[3] == 0 && binary.BigEndian.Uint32(b[4:]) == 0 && binary.BigEndian.Uint32(b[8:]) == 1
}

// walkList calls visit for every pair of a list that begins with its version. Lists within it are values.
func walkList(b []byte, visit func(nvPair) error) error {
	off := int64(nvHeader)
	if len(b) < nvVersion {
		return field("zfs list", "length", off, len(b), "a version and flags")
	}
	b, off = b[nvVersion:], off+nvVersion
	for range nvMaxPair {
		if len(b) < 8 {
			return field("zfs list", "length", off, len(b), "a pair, or the end of the list")
		}
		size := int64(binary.BigEndian.Uint32(b))
		if size == 0 {
			return nil
		}
		if size < 20 || size > int64(len(b)) {
			return field("zfs list", "size of a pair", off, size, fmt.Sprintf("20 to %d", len(b)))
		}
		p, ok := decodePair(b[8:size])
		if !ok {
			return field("zfs list", "length of a name", off+8, binary.BigEndian.Uint32(b[8:]), fmt.Sprintf("less than %d", size))
		}
		if err := visit(p); err != nil {
			return err
		}
		b, off = b[size:], off+size
	}
	return field("zfs list", "pairs", off, "more", fmt.Sprintf("up to %d", nvMaxPair))
}

// decodePair takes a pair apart: name, type, number of elements, value.
func decodePair(b []byte) (nvPair, bool) {
	name, rest, ok := xdrText(b)
	if !ok || len(rest) < 8 {
		return nvPair{}, false
	}
	return nvPair{name: name, kind: binary.BigEndian.Uint32(rest), value: rest[8:]}, true
}

// xdrText takes a text from the front of b.
func xdrText(b []byte) (s string, rest []byte, ok bool) {
	if len(b) < 4 {
		return "", nil, false
	}
	n := int64(binary.BigEndian.Uint32(b))
	padded := (n + 3) &^ 3
	if padded > int64(len(b)-4) {
		return "", nil, false
	}
	return string(b[4 : 4+n]), b[4+padded:], true
}

// text is the value of a text, empty for anything else. Names are cut where those of ZFS end.
func (p nvPair) text() string {
	if p.kind != nvText {
		return ""
	}
	s, _, _ := xdrText(p.value)
	return strings.Clone(s[:min(len(s), nvMaxText)])
}

// number is the value of a number, 0 for anything else.
func (p nvPair) number() uint64 {
	if p.kind != nvNumber || len(p.value) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(p.value)
}
