// Package vhd reads and writes disks of Virtual PC and Hyper-V: fixed and dynamic. It reads differencing disks together
// with their parents.
//
// Specification: Microsoft, "Virtual Hard Disk Image Format Specification" 1.0 (2006), called VHD 1.0 below. Comments
// mark where real files differ. All fields are big-endian.
package vhd

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

const formatName = "vhd"

// Names of the subformats. A differencing disk is only read.
const (
	dynamicDisk      = "dynamic"
	fixedDisk        = "fixed"
	differencingDisk = "differencing"
)

// Format is VHD.
var Format = driver.Format{
	Name:       formatName,
	Title:      "VHD",
	Alias:      "vpc",
	Detect:     detect,
	Open:       open,
	Create:     create,
	Reports:    reports,
	Subformats: []string{dynamicDisk, fixedDisk},
	Names:      names,
	Extensions: []string{".vhd", ".avhd"},
}

// detect finds the footer at the end or its copy at the front. A truncated dynamic disk still has the copy.
func detect(head, tail []byte) bool {
	if bytes.HasPrefix(head, []byte(cookie)) {
		return true
	}
	for _, n := range []int{footerBytes, shortFooter} {
		if len(tail) >= n && bytes.HasPrefix(tail[len(tail)-n:], []byte(cookie)) {
			return true
		}
	}
	return false
}

func open(s *driver.Source) (*driver.Image, error) {
	f, issues, err := findFooter(s.File)
	if err != nil {
		return nil, err
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	var img *driver.Image
	if f.DiskType == typeFixed {
		img, err = openFixed(s, f)
	} else {
		img, err = openSparse(s, f)
	}
	if err != nil {
		return nil, err
	}
	img.Issues = append(append(issues, f.issues()...), img.Issues...)
	img.ContentID = hex.EncodeToString(f.UniqueID[:])
	img.Details = append(f.details(), img.Details...)
	if g := f.DiskGeometry; g.SectorsPerTrack <= 63 && g.sectors() > 0 { // the limits of the BIOS interface
		img.Heads, img.Sectors = int(g.Heads), int(g.SectorsPerTrack)
	}
	if f.DiskGeometry.sectors() > 0 {
		img.BIOS = f.reported()
	}
	return img, nil
}

// openFixed opens a fixed disk, which lies in front of the footer byte for byte.
func openFixed(s *driver.Source, f *footer) (*driver.Image, error) {
	size := f.size()
	if size > f.off {
		return nil, f.fault("current size", atCurrentSize, f.CurrentSize,
			fmt.Sprintf("at most the %d bytes in front of the footer", f.off))
	}
	img := &driver.Image{
		Subformat: fixedDisk, Template: &template{footer: f},
		Disk: disk.New(size, units.SectorSize, func(off int64) (disk.Run, error) {
			return disk.Run{Len: size - off, Src: s.File, Off: off}, nil
		}),
	}
	if size == f.off {
		img.Around = func(size int64, bios driver.Geometry) (driver.Around, error) {
			return f.around(size, s.File.Size()-f.off, bios)
		}
	}
	if size < f.off {
		img.Issues = append(img.Issues, ondisk.Issue{
			Code: "vhd-slack", Effect: ondisk.Warn,
			Text: fmt.Sprintf("%d bytes lie between the end of the disk and the vhd footer at %#x: by the footer "+
				"they are not part of the disk, and a copy omits them", f.off-size, f.off),
		})
	}
	return img, nil
}

// epoch is the origin of time stamps. Spec: VHD 1.0, "Hard Disk Footer Format".
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// details returns the metadata of the footer.
func (f *footer) details() []driver.Detail {
	g := f.DiskGeometry
	return []driver.Detail{
		{Name: "creator", Value: fmt.Sprintf("%q %d.%d", bytes.TrimRight(f.CreatorApplication[:], "\x00"),
			f.CreatorVersion>>16, f.CreatorVersion&0xffff)},
		{Name: "created", Value: epoch.Add(time.Duration(f.TimeStamp) * time.Second).Format(time.RFC3339)},
		{Name: "geometry", Value: fmt.Sprintf("%d/%d/%d", g.Cylinders, g.Heads, g.SectorsPerTrack)},
		{Name: "unique id", Value: hex.EncodeToString(f.UniqueID[:])},
	}
}

// maxLocator is the longest parent name in bytes: the limit of Windows for a path.
const maxLocator = 64 << 10

// platforms are the supported locators, in order of preference. Spec: VHD 1.0, "Parent Locator Entries".
var platforms = []struct {
	code   string
	decode func(b []byte) string
}{
	{"W2ru", func(b []byte) string { return ondisk.UTF16Z(b, binary.LittleEndian) }}, // relative to the child
	{"W2ku", func(b []byte) string { return ondisk.UTF16Z(b, binary.LittleEndian) }}, // absolute
	{"MacX", func(b []byte) string { return string(b) }},                             // a file URL, by XenServer
}

// parentNames returns the names of the parent of a differencing disk, in order of preference. bad describes an invalid
// locator, or is empty; the other names can still lead to the parent.
func parentNames(src driver.File, h *dynamicHeader, off int64) (names []string, bad string, err error) {
	for _, p := range platforms {
		if p.code == "MacX" { // the fallback of Windows too
			names = append(names, ondisk.UTF16Z(h.ParentUnicodeName[:], binary.BigEndian))
		}
		for i, l := range h.ParentLocators {
			if string(l.PlatformCode[:]) != p.code {
				continue
			}
			if !l.fits(src.Size()) {
				bad = fmt.Sprintf("parent locator %d at %#x has %d bytes at %#x, must be at most %d inside the "+
					"file of %d bytes",
					i, off+576+24*int64(i), l.PlatformDataLength, l.PlatformDataOffset, maxLocator, src.Size())
				continue
			}
			b, err := ondisk.Bytes(src, ondisk.I64(l.PlatformDataOffset), int64(l.PlatformDataLength))
			if err != nil {
				return nil, "", err
			}
			names = append(names, p.decode(b))
		}
	}
	return slices.DeleteFunc(names, func(n string) bool { return n == "" }), bad, nil
}

// fits reports whether the stored name lies in a file of size bytes.
func (l *locator) fits(size int64) bool {
	n, end := uint64(l.PlatformDataLength), ondisk.U64(size)
	return n <= maxLocator && l.PlatformDataOffset <= end && n <= end-l.PlatformDataOffset
}

// openParent opens the parent of a differencing disk.
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
			ondisk.Issue{Code: "vhd-parent-locator", Effect: ondisk.Warn, Text: bad + "; the parent was found by " +
				"another name"})
	}
	if n := x.parent.Disk.Size(); n != x.size {
		img.Issues = append(img.Issues, ondisk.Issue{
			Code: "vhd-parent-size", Effect: ondisk.Refuse, Err: ondisk.ErrReference,
			Text:   fmt.Sprintf("the differencing vhd has %d bytes, its parent %d: the sizes must match", x.size, n),
			Remedy: "put the right parent into the same folder, or merge the two on a host where they still match",
		})
	}
	x.keepLocators(h)
	return nil
}

// keepLocators adds the stored parent names to the metadata, which no block may overlap.
func (x *sparse) keepLocators(h *dynamicHeader) {
	for _, l := range h.ParentLocators {
		if l.PlatformDataLength > 0 && l.fits(x.end) {
			x.meta = append(x.meta, disk.Range{Off: ondisk.I64(l.PlatformDataOffset), Len: int64(l.PlatformDataLength)})
		}
	}
}

// names returns the names of the parent. It returns none for a file of another format and for a disk without parent.
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

// hasCookie reports whether a damaged file has the cookie of a VHD. It also returns true if the file cannot be read.
func hasCookie(src driver.File) bool {
	head, tail := make([]byte, min(src.Size(), footerBytes)), make([]byte, min(src.Size(), footerBytes))
	if ondisk.ReadFull(src, head, 0) != nil || ondisk.ReadFull(src, tail, src.Size()-int64(len(tail))) != nil {
		return true
	}
	return detect(head, tail)
}
