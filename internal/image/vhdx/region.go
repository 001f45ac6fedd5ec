package vhdx

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// Regions that the specification knows. Spec: 2.2.3.2.
var (
	regionBAT      = ondisk.MustGUID("2dc27766-f623-4200-9d64-115e9bfd4a08")
	regionMetadata = ondisk.MustGUID("8b7ca206-4790-4b9a-b8fe-575f050f886e")
)

const (
	regionTableSize = 64 << 10
	maxRegions      = 2047
)

// regionHeader begins a region table. Spec: 2.2.3.1.
type regionHeader struct {
	Signature  [4]byte // "regi"
	Checksum   uint32
	EntryCount uint32
	_          uint32
}

// regionEntry is one region. Spec: 2.2.3.2.
type regionEntry struct {
	GUID       ondisk.GUID
	FileOffset uint64
	Length     uint32
	Required   uint32 // bit 0
}

// structure is a part of the file that no block may touch.
type structure struct {
	disk.Range
	name string
}

// readRegions finds BAT and metadata. The table is in the file twice; the log keeps both equal.
func (x *image) readRegions() error {
	const what = "vhdx region table"
	var both [2]copyOf
	for i, at := range []int64{atRegions1, atRegions2} {
		var err error
		if both[i], err = readCopy(x.view, what, "regi", at, regionTableSize); err != nil {
			return err
		}
	}
	if err := x.oneOf(what, both[0], both[1]); err != nil {
		return err
	}
	cur := both[0]
	switch {
	case cur.err != nil:
		cur = both[1]
	case both[1].err == nil && !bytes.Equal(both[0].raw, both[1].raw):
		x.issues = append(x.issues, ondisk.Issue{
			Code: "vhdx-region-tables", Effect: ondisk.Refuse, Err: ondisk.ErrFormat,
			Text:   "the two region tables, at 0x30000 and 0x40000, are both whole and disagree",
			Remedy: "restore the image from a good copy, or take the first table with qemu-img convert",
		})
	}
	metadata, err := x.regions(cur)
	if err != nil {
		return err
	}
	if err := x.checkApart(); err != nil {
		return err
	}
	return x.meta.read(x.view, metadata)
}

// regions reads the entries of a table and gives the place of the metadata.
func (x *image) regions(c copyOf) (metadata disk.Range, err error) {
	x.used = []structure{{disk.Range{Len: mib}, "header section"}}
	if x.head.LogLength > 0 {
		x.used = append(x.used, structure{
			disk.Range{Off: ondisk.I64(x.head.LogOffset), Len: int64(x.head.LogLength)},
			"log",
		})
	}
	n := binary.LittleEndian.Uint32(c.raw[8:])
	if n > maxRegions {
		return metadata, ondisk.Field("vhdx region table", "entry count", c.at+8, n,
			fmt.Sprintf("at most %d", maxRegions))
	}
	seen := map[ondisk.GUID]bool{}
	for i := range int64(n) {
		at := int64(binary.Size(regionHeader{}) + int(i)*binary.Size(regionEntry{}))
		var e regionEntry
		if _, err := binary.Decode(c.raw[at:], binary.LittleEndian, &e); err != nil {
			return metadata, err
		}
		if err := e.check(c.at+at, x.view.Size(), seen); err != nil {
			return metadata, err
		}
		r := disk.Range{Off: ondisk.I64(e.FileOffset), Len: int64(e.Length)}
		switch e.GUID {
		case regionBAT:
			x.bat = r
			x.used = append(x.used, structure{r, "BAT"})
		case regionMetadata:
			metadata = r
			x.used = append(x.used, structure{r, "metadata"})
		default:
			x.used = append(x.used, structure{r, "region " + e.GUID.String()})
		}
	}
	for _, want := range []ondisk.GUID{regionBAT, regionMetadata} {
		if !seen[want] {
			return metadata, ondisk.Field("vhdx region table", "region", c.at, "none", want.String())
		}
	}
	return metadata, nil
}

// check checks one entry against the specification. at is its place in the file.
func (e *regionEntry) check(at, fileSize int64, seen map[ondisk.GUID]bool) error {
	field := func(name string, off int64, got, want any) error {
		return ondisk.Field("vhdx region table", name, at+off, got, want)
	}
	if seen[e.GUID] {
		return field("region", 0, e.GUID.String(), "each region once")
	}
	seen[e.GUID] = true
	switch {
	case e.GUID != regionBAT && e.GUID != regionMetadata && e.Required&1 != 0:
		return fmt.Errorf("vhdx region table at %#x: region %s is required: %w; it is not one of the specification's",
			at, e.GUID, ondisk.ErrUnsupported)
	case e.FileOffset%mib != 0 || e.FileOffset < mib:
		return field("file offset", 16, e.FileOffset, "a multiple of 1 MiB, from 1 MiB on")
	case e.Length%mib != 0 || e.Length == 0:
		return field("length", 24, e.Length, "a multiple of 1 MiB")
	case e.FileOffset > ondisk.U64(fileSize) || uint64(e.Length) > ondisk.U64(fileSize)-e.FileOffset:
		return field("file offset", 16, e.FileOffset,
			fmt.Sprintf("a place from which %d bytes fit into the file of %d bytes", e.Length, fileSize))
	}
	return nil
}

// checkApart sorts the structures and makes sure that no two of them overlap.
func (x *image) checkApart() error {
	slices.SortFunc(x.used, func(a, b structure) int { return cmp.Compare(a.Off, b.Off) })
	for i := 1; i < len(x.used); i++ {
		a, b := x.used[i-1], x.used[i]
		if a.Overlaps(b.Range) {
			return ondisk.Field("vhdx region table", b.name, b.Off, fmt.Sprintf("%d bytes at %#x", b.Len, b.Off),
				fmt.Sprintf("a place apart from the %s, %d bytes at %#x", a.name, a.Len, a.Off))
		}
	}
	return nil
}

// touches returns the structure that a block would overlap.
func (x *image) touches(r disk.Range) (structure, bool) {
	if hit := disk.Overlapping(x.used, r); len(hit) > 0 {
		return hit[0], true
	}
	return structure{}, false
}
