package image

import (
	"bytes"
	"sync"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// recognised is a format that has a name and no reader. It must never be taken for raw: the guest's disk is not where
// raw would look for it.
type recognised struct {
	name   string // as users write it
	detect func(head, tail []byte) bool
	remedy string // empty: qemu-img reads it
	kind   Kind   // empty: Unsupported
	// extension is that of files that are nothing else, with the dot; empty where there is none
	extension string
}

// headSize and tailSize are how much of a file detection sees, in bytes. The ISO 9660 descriptor is the deepest.
const (
	headSize = 36 << 10
	tailSize = 1024
)

// isoName is what users call the image of a CD.
const isoName = "ISO 9660"

// What detection looks at within the head, in bytes: magic numbers stand in the first block, the root of an XML text may come behind a
// long comment, and the mark of a CD has a place of its own.
const (
	magicBlock = 4 << 10
	textBlock  = 8 << 10
	isoMark    = 0x8000
	isoLength  = 16
)

// ends are buffers for the ends of a file, for use again: a scan recognises thousands.
type ends struct {
	head [headSize]byte
	tail [tailSize]byte
}

var spareEnds = sync.Pool{New: func() any { return new(ends) }}

// readHead reads of a file's head what detection looks at; the rest of it is zero.
func (e *ends) readHead(f driver.File) ([]byte, error) {
	clear(e.head[:])
	head := e.head[:min(f.Size(), headSize)]
	first := head[:min(len(head), magicBlock)]
	if err := ondisk.ReadFull(f, first, 0); err != nil {
		return nil, err
	}
	if text := bytes.TrimLeft(first, "\xef\xbb\xbf \t\r\n"); len(text) > 0 && text[0] == '<' {
		if err := ondisk.ReadFull(f, head[:min(len(head), textBlock)], 0); err != nil {
			return nil, err
		}
	}
	if len(head) < isoMark+isoLength {
		return head, nil
	}
	return head, ondisk.ReadFull(f, head[isoMark:isoMark+isoLength], isoMark)
}

// has reports whether magic stands at off of b; off may be outside of b.
func has(b []byte, off int, magic string) bool {
	return off >= 0 && off <= len(b) && bytes.HasPrefix(b[off:], []byte(magic))
}
