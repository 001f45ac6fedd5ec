// Package tarforge forges tar archives.
package tarforge

import (
	"fmt"

	"github.com/trueup/trueup/internal/disktest/forge"
)

// Member is one member of a forged archive. Headers of any kind can be made of it, right or wrong.
type Member struct {
	Name string
	Type byte // '0' when it is omitted
	Data []byte
	Size string              // the field, 12 bytes; empty: that of Data in octal
	Edit func(h forge.Bytes) // changes the header before its sum is made
	Sum  func(sum int) int   // changes the sum
}

// Tar block size and the places of fields. Spec: POSIX pax, "ustar Interchange Format".
const (
	tarBlock = 512
	tarSize  = 124
	tarType  = 156
)

// New returns an archive of the members, in ustar format and without the end.
func New(members ...Member) forge.Bytes {
	var out forge.Bytes
	for _, m := range members {
		h := make(forge.Bytes, tarBlock)
		h.Text(0, m.Name)
		h.Text(100, "0000644\x000001750\x000001751\x00")
		h.Text(tarSize, fmt.Sprintf("%011o\x00", len(m.Data)))
		if m.Size != "" {
			h.Text(tarSize, m.Size)
		}
		h.Text(136, "14000000000\x00")
		h.U8(tarType, '0')
		if m.Type != 0 {
			h.U8(tarType, m.Type)
		}
		h.Text(257, "ustar\x0000")
		h.Text(265, "somebody")
		if m.Edit != nil {
			m.Edit(h)
		}
		h.Text(148, "        ")
		sum := 0
		for _, b := range h {
			sum += int(b)
		}
		if m.Sum != nil {
			sum = m.Sum(sum)
		}
		h.Text(148, fmt.Sprintf("%06o\x00 ", sum))
		out = append(append(out, h...), m.Data...)
		out = append(out, make(forge.Bytes, (tarBlock-len(out)%tarBlock)%tarBlock)...)
	}
	return out
}

// End returns the bytes after the last member.
func End() forge.Bytes { return make(forge.Bytes, 2*tarBlock) }
