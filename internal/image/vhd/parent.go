package vhd

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// maxLocator is the longest name that is read, in bytes: what Windows allows in a path.
const maxLocator = 64 << 10

// platforms are the locators that are followed, in this order. Spec: VHD 1.0, "Parent Locator Entries".
var platforms = []struct {
	code   string
	decode func(b []byte) string
}{
	{"W2ru", func(b []byte) string { return ondisk.UTF16Z(b, binary.LittleEndian) }}, // relative to the child
	{"W2ku", func(b []byte) string { return ondisk.UTF16Z(b, binary.LittleEndian) }}, // absolute
	{"MacX", func(b []byte) string { return string(b) }},                             // a file URL, of XenServer
}

// parentNames returns what a differencing disk calls its parent, in order of preference. bad is the error of a
// locator, empty when nothing is; the other names can lead to the parent all the same.
func parentNames(src driver.File, h *dynamicHeader, off int64) (names []string, bad string, err error) {
	add := func(name string) {
		if name != "" {
			names = append(names, name)
		}
	}
	ownName := func() { add(ondisk.UTF16Z(h.ParentUnicodeName[:], binary.BigEndian)) }
	for _, p := range platforms {
		if p.code == "MacX" {
			ownName() // what Windows itself falls back to
		}
		for i, l := range h.ParentLocators {
			if string(l.PlatformCode[:]) != p.code {
				continue
			}
			if !l.fits(src.Size()) {
				bad = fmt.Sprintf("parent locator %d at %#x takes %d bytes at %#x, want at most %d inside the "+
					"file of %d bytes",
					i, off+576+24*int64(i), l.PlatformDataLength, l.PlatformDataOffset, maxLocator, src.Size())
				continue
			}
			b, err := ondisk.Bytes(src, ondisk.I64(l.PlatformDataOffset), int64(l.PlatformDataLength))
			if err != nil {
				return nil, "", err
			}
			add(p.decode(b))
		}
	}
	return names, bad, nil
}

// fits reports whether the name lies in a file of size bytes.
func (l *locator) fits(size int64) bool {
	n, end := uint64(l.PlatformDataLength), ondisk.U64(size)
	return n <= maxLocator && l.PlatformDataOffset <= end && n <= end-l.PlatformDataOffset
}

// openParent opens the image that a differencing disk completes.
func (x *sparse) openParent(s *driver.Source, h *dynamicHeader, off int64, img *driver.Image) error {
	list, bad, err := parentNames(s.File, h, off)
	if err != nil {
		return err
	}
	ref := driver.ParentRef{Names: list, Format: formatName, ID: hex.EncodeToString(h.ParentUniqueID[:])}
	if x.parent, err = s.Parent(ref); err != nil {
		return err
	}
	img.Subformat = differencingDisk
	img.Details = append(img.Details, driver.Detail{Name: "parent", Value: ref.ID})
	if bad != "" {
		img.Issues = append(img.Issues,
			ondisk.Issue{Code: "vhd-parent-locator", Effect: ondisk.Warn, Text: bad +
				"; another name has led to the parent"})
	}
	if n := x.parent.Disk.Size(); n != x.size {
		img.Issues = append(img.Issues, ondisk.Issue{
			Code: "vhd-parent-size", Effect: ondisk.Refuse, Err: ondisk.ErrReference,
			Text:   fmt.Sprintf("the differencing vhd has %d bytes, its parent %d: the sizes must match", x.size, n),
			Remedy: "put the right parent beside it, or merge them where both still belong together",
		})
	}
	x.keepLocators(h)
	return nil
}

// keepLocators keeps blocks off the names of the parent.
func (x *sparse) keepLocators(h *dynamicHeader) {
	for _, l := range h.ParentLocators {
		if l.PlatformDataLength > 0 && l.fits(x.end) {
			x.meta = append(x.meta, disk.Range{Off: ondisk.I64(l.PlatformDataOffset), Len: int64(l.PlatformDataLength)})
		}
	}
}

// names reads what a file calls its parent; nothing for a file that is no VHD or completes none.
func names(src driver.File) (driver.Names, error) {
	f, _, err := findFooter(src)
	if errors.Is(err, ondisk.ErrFormat) {
		return driver.Names{Broken: hasCookie(src)}, nil
	}
	if err != nil {
		return driver.Names{}, err
	}
	if f.DiskType != typeDifferencing {
		return driver.Names{}, nil
	}
	h, off, err := readHeader(src, f)
	if errors.Is(err, ondisk.ErrFormat) || errors.Is(err, ondisk.ErrUnsupported) {
		return driver.Names{Broken: true}, nil
	}
	if err != nil {
		return driver.Names{}, err
	}
	list, bad, err := parentNames(src, h, off)
	return driver.Names{Parents: list, Broken: bad != "" || len(list) == 0}, err
}

// hasCookie reports whether a file that cannot be read is a VHD at all.
func hasCookie(src driver.File) bool {
	head, tail := make([]byte, min(src.Size(), footerBytes)), make([]byte, min(src.Size(), footerBytes))
	if ondisk.ReadFull(src, head, 0) != nil || ondisk.ReadFull(src, tail, src.Size()-int64(len(tail))) != nil {
		return true
	}
	return detect(head, tail)
}
