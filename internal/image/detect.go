package image

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/ondisk"
)

// recognised is a format that has a name and no reader. It must never be taken for raw: the guest's disk is not where
// raw would look for it.
type recognised struct {
	name   string                       // as users write it
	detect func(head, tail []byte) bool // nil: only its extension is known
	remedy string                       // empty: qemu-img reads it
	kind   Kind                         // empty: Unsupported
	// extension is that of files that are nothing else, with the dot; empty where there is none
	extension string
	// over is the name of a format that is read, has the same magic number, and is not meant; empty for none
	over string
	// table is set of a file without a format that has a partition table and the start of a partition
	table bool
}

// headSize and tailSize are how much of a file detection sees, in bytes. The ISO 9660 descriptor is the deepest.
const (
	headSize = 36 << 10
	tailSize = 1024
)

// isoName is what users call the image of a CD.
const isoName = "ISO 9660"

// What detection looks at within the head, in bytes: magic numbers stand in the first block, the root of an XML text
// may come behind a long comment, and the mark of a CD has a place of its own.
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

// detect finds the one format that the content has. Two matches are an error: whichever came first would be a guess,
// and a guest can write what looks like a header into its own disk. says names what wants the format: the command line,
// or a child.
func detect(f driver.File, want, says string) (driver.Format, error) {
	found, names, other, err := recognise(f)
	switch {
	case err != nil:
		return found, err
	case want == raw.Format.Name && says == userSays: // an order, whatever the content looks like
		return raw.Format, nil
	case len(names) > 1:
		return found, ondisk.Field("image", "format", 0, strings.Join(names, " and "),
			"the content of one format; if the guest wrote one of the headers, remove it inside the guest")
	case want != "" && !matches(want, found.Name, names):
		return found, ondisk.Field("image", "format", 0, contentName(names), want+", as "+says+" says")
	case len(names) == 1 && found.Name == raw.Format.Name:
		remedy := other.remedy
		if remedy == "" {
			remedy = "convert it with qemu-img convert -O vmdk (or raw), and take the result"
		}
		return found, fmt.Errorf("%s: recognised, %w; %s", names[0], ondisk.ErrUnsupported, remedy)
	}
	return found, nil
}

// recognise lists the formats that the content has: the last one that is read, the names of all, and the last one that
// is not read.
func recognise(f driver.File) (found driver.Format, names []string, other recognised, err error) {
	size := f.Size()
	e, _ := spareEnds.Get().(*ends)
	defer spareEnds.Put(e)
	head, err := e.readHead(f)
	if err != nil {
		return found, nil, other, err
	}
	tail := e.tail[:min(size, tailSize)]
	if beyond(f) != nil {
		clear(tail) // formats with a header have none there
	} else if err := ondisk.ReadFull(f, tail, size-int64(len(tail))); err != nil {
		return found, nil, other, err
	}
	found = raw.Format
	for _, c := range Formats {
		if c.Detect(head, tail) {
			found, names = c, append(names, c.Name)
		}
	}
	for _, c := range others {
		if c.detect != nil && c.detect(head, tail) && (c.kind != Packed || !raw.HasTable(head)) {
			if c.over != "" && c.over == found.Name {
				found, names = raw.Format, names[:len(names)-1]
			}
			names, other = append(names, c.name), c
		}
	}
	if len(names) == 0 {
		if c := companionOf(f.Name(), head); c != nil {
			text, remedy := CompanionText(c.name, f.Name())
			return found, []string{c.name}, recognised{name: c.name, kind: Companion, remedy: text + "; " + remedy}, nil
		}
	}
	for _, c := range others {
		if c.detect == nil && len(names) == 0 && strings.EqualFold(filepath.Ext(f.Name()), c.extension) {
			names, other = append(names, c.name), c
		}
	}
	other.table = len(names) == 0 && raw.HoldsPartition(head, size)
	return found, names, other, nil
}

func matches(want, found string, names []string) bool {
	if len(names) == 0 {
		return want == raw.Format.Name
	}
	return strings.EqualFold(want, names[0]) || (want == found && found != raw.Format.Name)
}

func contentName(names []string) string {
	if len(names) == 0 {
		return "no known header"
	}
	return names[0]
}
