package vhd

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

const (
	cookie      = "conectix"
	footerBytes = 512
	// shortFooter is the size of the footer of Virtual PC before 2004, which lacks the last byte. Spec: VHD 1.0, "Hard
	// Disk Footer Format".
	shortFooter = 511
)

// Disk types.
const (
	typeFixed        = 2
	typeDynamic      = 3
	typeDifferencing = 4
)

// rawFooter is the footer, the last sector of the file. A file with a block allocation table has a copy in the first
// sector. Spec: VHD 1.0, "Hard Disk Footer Format".
type rawFooter struct {
	Cookie             [8]byte
	Features           uint32
	FileFormatVersion  uint32
	DataOffset         uint64 // byte offset of the dynamic header, all ones in a fixed disk
	TimeStamp          uint32 // seconds since 2000-01-01 UTC
	CreatorApplication [4]byte
	CreatorVersion     uint32
	CreatorHostOS      [4]byte
	OriginalSize       uint64
	CurrentSize        uint64 // bytes
	DiskGeometry       geometry
	DiskType           uint32
	Checksum           uint32
	UniqueID           [16]byte
	SavedState         uint8
	_                  [427]byte
}

// Byte offsets of the fields in messages.
const (
	atVersion     = 12
	atDataOffset  = 16
	atCurrentSize = 48
	atDiskType    = 60
	atChecksum    = 64
	atSavedState  = 84
)

const (
	features = 2          // the reserved bit that is always set
	version1 = 0x00010000 // of footer and dynamic header
	noOffset = math.MaxUint64
)

// footer is a decoded footer of a file.
type footer struct {
	rawFooter
	off   int64 // file offset, bytes
	bytes [footerBytes]byte
	// end is the end of the data in the file: the offset of the footer, or the file size without one.
	end int64
	err error // the reason to reject it
}

func (f *footer) fault(field string, at int64, got, want any) error {
	return ondisk.Field("vhd footer", field, f.off+at, got, want)
}

// checksum returns the one's complement of the sum of all bytes, without the checksum field at offset at. Spec: VHD
// 1.0, "Hard Disk Footer Format", "Checksum".
func checksum(b []byte, at int) uint32 {
	var sum uint32
	for i, v := range b {
		if i < at || i >= at+4 {
			sum += uint32(v)
		}
	}
	return ^sum
}

// readFooter decodes a footer of n bytes at off. An invalid footer has err set.
func readFooter(src ondisk.Source, off int64, n int) (*footer, error) {
	f := &footer{off: off}
	if err := ondisk.ReadFull(src, f.bytes[:n], off); err != nil {
		return nil, err
	}
	ondisk.Fill(f.bytes[:], binary.BigEndian, &f.rawFooter)
	if !f.hasCookie() {
		f.err = f.fault("cookie", 0, string(f.Cookie[:]), fmt.Sprintf("%q", cookie))
	} else if sum := checksum(f.bytes[:], atChecksum); sum != f.Checksum {
		f.err = f.fault("checksum", atChecksum, fmt.Sprintf("%#x", f.Checksum), fmt.Sprintf("%#x", sum))
	}
	return f, nil
}

// sound reports whether the footer is valid.
func (f *footer) sound() bool { return f.err == nil }

func (f *footer) hasCookie() bool { return string(f.Cookie[:]) == cookie }

// lastFooter reads the footer at the end of the file, of 512 or 511 bytes.
func lastFooter(src ondisk.Source) (*footer, error) {
	var last *footer
	for _, n := range []int{footerBytes, shortFooter} {
		off := src.Size() - int64(n)
		if off < 0 {
			continue
		}
		f, err := readFooter(src, off, n)
		if err != nil || f.hasCookie() {
			return f, err
		}
		if last == nil {
			last = f
		}
	}
	if last == nil {
		last = &footer{}
		last.err = last.fault("file size", 0, src.Size(),
			fmt.Sprintf("at least %d bytes, the size of the footer", shortFooter))
	}
	return last, nil
}

// findFooter returns the footer at the end of the file or, if it is invalid, the copy at the front. A file with a block
// allocation table has both. The front of a fixed disk is its first sector.
func findFooter(src driver.File) (*footer, []ondisk.Issue, error) {
	last, err := lastFooter(src)
	if err != nil {
		return nil, nil, err
	}
	last.end = last.off
	if src.Size() < footerBytes || last.off == 0 {
		return last, nil, last.err
	}
	head, err := readFooter(src, 0, footerBytes)
	if err != nil {
		return nil, nil, err
	}
	if head.end = src.Size(); last.hasCookie() {
		head.end = last.off // a damaged footer is still no place for data
	}
	if !last.sound() {
		switch {
		case head.sound() && head.DiskType != typeFixed:
			return head, footersIssue("the vhd footer at the end is missing or damaged (%v); its copy at 0x0 is used, "+
				"and the file may have lost its end", last.err), nil
		case !last.hasCookie() && head.hasCookie() && !head.sound():
			return nil, nil, head.err
		}
		return nil, nil, last.err
	}
	switch {
	case last.DiskType == typeFixed:
		return last, guestCookie(last, head), nil
	case !head.sound():
		return last, footersIssue("the copy of the vhd footer at 0x0 is missing or damaged (%v); the footer at %#x is "+
			"used", head.err, last.off), nil
	}
	return last, compareCopies(last, head), nil
}

func footersIssue(format string, args ...any) []ondisk.Issue {
	return []ondisk.Issue{{
		Code: "vhd-footers", Effect: ondisk.Refuse, Err: ondisk.ErrFormat, Text: fmt.Sprintf(format, args...),
		Remedy: "take the disk from a backup, or let Hyper-V repair and compact it (Optimize-VHD), and compare the " +
			"content",
	}}
}

// guestCookie returns an issue if the first sector of a fixed disk is a footer, which no writer puts there. Programs
// that read the front first would see another disk.
func guestCookie(last, head *footer) []ondisk.Issue {
	if !head.hasCookie() {
		return nil
	}
	return []ondisk.Issue{{
		Code: "vhd-footers", Effect: ondisk.Refuse, Err: ondisk.ErrFormat,
		Text: fmt.Sprintf("the fixed vhd with its footer at %#x has another footer at 0x0, inside the disk: "+
			"programs that look there first see another disk", last.off),
		Remedy: "if the guest wrote it there, remove it inside the guest",
	}}
}

// compareCopies returns an issue if footer and copy differ. It ignores the last byte, which a short footer lacks.
func compareCopies(last, head *footer) []ondisk.Issue {
	for i := range shortFooter {
		if last.bytes[i] != head.bytes[i] {
			return footersIssue("the vhd footer at %#x and its copy at 0x0 disagree, first in byte %d: %#02x and "+
				"%#02x; the one at the end is used", last.off, i, last.bytes[i], head.bytes[i])
		}
	}
	return nil
}

// check validates the fields of the footer. The callers compare them with the file size.
func (f *footer) check() error {
	switch {
	case f.FileFormatVersion>>16 != version1>>16:
		return fmt.Errorf("vhd footer at %#x: file format version %#x: %w, known is %#x", f.off+atVersion,
			f.FileFormatVersion, ondisk.ErrUnsupported, version1)
	case f.DiskType != typeFixed && f.DiskType != typeDynamic && f.DiskType != typeDifferencing:
		return f.fault("disk type", atDiskType, f.DiskType, "2 (fixed), 3 (dynamic) or 4 (differencing)")
	case f.CurrentSize == 0 || f.CurrentSize > math.MaxInt64 || f.CurrentSize%uint64(units.SectorSize) != 0:
		return f.fault("current size", atCurrentSize, f.CurrentSize,
			fmt.Sprintf("a multiple of %d from %d to %d", units.SectorSize, units.SectorSize, int64(math.MaxInt64)))
	}
	return nil
}

func (f *footer) size() int64 { return ondisk.I64(f.CurrentSize) }

// issues returns the issues that a copy must respect: a saved state and an odd geometry.
func (f *footer) issues() []ondisk.Issue {
	var out []ondisk.Issue
	if f.SavedState != 0 {
		out = append(out, ondisk.Issue{
			Code: "vhd-saved-state", Effect: ondisk.Refuse, Err: ondisk.ErrBusy,
			Text: fmt.Sprintf("the vhd belongs to a suspended machine (saved state at %#x is %d), which depends on "+
				"the present content of the disk", f.off+atSavedState, f.SavedState),
			Remedy: "resume the virtual machine and shut it down; the suspended state is lost otherwise",
		})
	}
	return append(out, f.geometryIssue()...)
}

// encode returns the footer with its checksum.
func (f *rawFooter) encode() []byte {
	f.Checksum = 0
	b := ondisk.Encode(binary.BigEndian, f)
	f.Checksum = checksum(b, atChecksum)
	binary.BigEndian.PutUint32(b[atChecksum:], f.Checksum)
	return b
}

// geometry is the CHS geometry of the disk as an ATA disk.
type geometry struct {
	Cylinders       uint16
	Heads           uint8
	SectorsPerTrack uint8
}

// sectors returns the number of sectors that the geometry covers.
func (g geometry) sectors() int64 {
	return int64(g.Cylinders) * int64(g.Heads) * int64(g.SectorsPerTrack)
}

// general converts g to a driver.Geometry.
func (g geometry) general() driver.Geometry {
	return driver.Geometry{
		Cylinders: int64(g.Cylinders), Heads: int64(g.Heads), Sectors: int64(g.SectorsPerTrack),
	}
}

// geometryFor returns the geometry of a copy of size bytes. If a BIOS must report bios, it prefers the heads and
// sectors of own, the geometry of the source, and grows only the cylinders. It returns the geometry of the
// specification if bios is zero, so that nothing depends on it, or if no ATA geometry gives bios.
func geometryFor(size int64, bios driver.Geometry, own geometry) geometry {
	usual := geometryOf(size)
	x, ok := driver.ForATA(size, bios, own.general(), usual.general())
	if !ok {
		return usual
	}
	return geometry{
		Cylinders: uint16(ondisk.U32(x.Cylinders)), //nolint:gosec // at most 65535, by ForATA
		Heads:     ondisk.Byte(x.Heads), SectorsPerTrack: ondisk.Byte(x.Sectors),
	}
}

// maxGeometry is the upper limit of the calculation. QEMU also writes it for a size that is no product of three such
// numbers, and then reads the size field.
var maxGeometry = geometry{65535, 16, 255}

// geometryOf calculates the geometry of a disk of size bytes, rounded down: the disk can end past its last cylinder.
// Spec: VHD 1.0, "Appendix: CHS Calculation".
func geometryOf(size int64) geometry {
	total := min(size/units.SectorSize, maxGeometry.sectors())
	var heads, track, cylinderTimesHeads int64
	if total >= 65535*16*63 {
		track, heads = 255, 16
		cylinderTimesHeads = total / track
	} else {
		track = 17
		cylinderTimesHeads = total / track
		heads = max(4, (cylinderTimesHeads+1023)/1024)
		if cylinderTimesHeads >= heads*1024 || heads > 16 {
			track, heads = 31, 16
			cylinderTimesHeads = total / track
		}
		if cylinderTimesHeads >= heads*1024 {
			track, heads = 63, 16
			cylinderTimesHeads = total / track
		}
	}
	return geometry{
		Cylinders: uint16(ondisk.U32(cylinderTimesHeads / heads)), //nolint:gosec // at most 65535, by total
		Heads:     ondisk.Byte(heads), SectorsPerTrack: ondisk.Byte(track),
	}
}

// geometryIssue reports a geometry that does not cover the disk exactly. The size field wins, as in Hyper-V; Virtual PC
// used the geometry.
func (f *footer) geometryIssue() []ondisk.Issue {
	g := f.DiskGeometry
	covers := g.sectors() * units.SectorSize
	if covers == f.size() {
		return nil
	}
	i := ondisk.Issue{
		Code: "vhd-geometry", Effect: ondisk.Warn,
		Text: fmt.Sprintf("the geometry %d/%d/%d of the vhd covers %d bytes, its size field has %d; the size field "+
			"counts", g.Cylinders, g.Heads, g.SectorsPerTrack, covers, f.size()),
	}
	over := g.general().Over(f.size())
	if g == maxGeometry || g == geometryOf(f.size()) || g.general() == over || g.general() == over.Clipped() {
		// Rounded by the specification, or to whole cylinders, or to addressable ones; or the placeholder geometry.
		i.Effect = ondisk.Note
	}
	return []ondisk.Issue{i}
}

// reported returns the geometry that a BIOS reports.
func (f *rawFooter) reported() driver.Geometry {
	return f.DiskGeometry.general().Reported(ondisk.I64(f.CurrentSize))
}

// sizeCounts reports whether every reader gets the right size, from the size field or from an exact geometry. QEMU uses
// the size field only for these creators. Spec: QEMU 7.2 block/vpc.c, vpc_open.
func (f *rawFooter) sizeCounts() bool {
	if g := f.DiskGeometry; g == maxGeometry || ondisk.U64(g.sectors()*units.SectorSize) == f.CurrentSize {
		return true
	}
	switch string(f.CreatorApplication[:]) {
	case "win ", "qem2", "d2v ", "tap\x00", "CTXS":
		return true
	}
	return false
}
