package image

import (
	"bytes"

	"github.com/trueup/trueup/internal/ovf"
)

// recognised is a format that has a name and no reader. It must never be taken for raw: the guest's disk is not where
// raw would look for it.
type recognised struct {
	name   string // as users write it
	detect func(head, tail []byte) bool
	remedy string // empty: qemu-img reads it
}

// headSize and tailSize are how much of a file detection sees, in bytes. The ISO 9660 descriptor is the deepest.
const (
	headSize = 36 << 10
	tailSize = 1024
)

var others = []recognised{
	{name: "QED", detect: prefix("QED\x00")},
	{name: "VDI", detect: func(head, _ []byte) bool { return at(head, 0x40, "\x7f\x10\xda\xbe") }},
	{name: "Parallels HDD", detect: func(head, _ []byte) bool {
		return at(head, 0, "WithoutFreeSpace") || at(head, 0, "WithouFreSpacExt")
	}},
	{name: "EWF (E01)", detect: prefix("EVF\x09\x0d\x0a\xff\x00"), remedy: "export it to raw with ewfexport"},
	{name: "ISO 9660", detect: func(head, _ []byte) bool { return at(head, 0x8001, "CD001") }, remedy: "it is a medium to read from, and alignment does not matter on it"},
	{name: "DMG", detect: func(_, tail []byte) bool { return at(tail, len(tail)-512, "koly") }},
	{name: packageOVA, remedy: "a package inside of a package is no disk", detect: func(head, _ []byte) bool { return at(head, 257, "ustar") }},
	{name: packageOVF, remedy: "the text of a package is no disk", detect: func(head, _ []byte) bool { return ovf.Looks(head) }},
}

func prefix(magic string) func(head, tail []byte) bool {
	return func(head, _ []byte) bool { return at(head, 0, magic) }
}

// at tells whether magic stands at off of b; off may be outside of b.
func at(b []byte, off int, magic string) bool {
	return off >= 0 && off <= len(b) && bytes.HasPrefix(b[off:], []byte(magic))
}
