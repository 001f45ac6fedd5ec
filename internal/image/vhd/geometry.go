package vhd

import (
	"fmt"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// geometry is what an ATA disk of this size states.
type geometry struct {
	Cylinders       uint16
	Heads           uint8
	SectorsPerTrack uint8
}

// sectors returns how many sectors the geometry covers.
func (g geometry) sectors() int64 {
	return int64(g.Cylinders) * int64(g.Heads) * int64(g.SectorsPerTrack)
}

// general returns g as other packages know geometries.
func (g geometry) general() driver.Geometry {
	return driver.Geometry{
		Cylinders: int64(g.Cylinders), Heads: int64(g.Heads), Sectors: int64(g.SectorsPerTrack),
	}
}

// geometryFor returns the geometry of a copy of size bytes. Where a BIOS is to report that of bios, heads and sectors
// are those of own, the geometry of the source, if they lead to it: only the cylinders grow. It is the usual one where
// nothing depends on it, or no ATA disk can lead to it.
func geometryFor(size int64, bios driver.Geometry, own geometry) geometry {
	usual := geometryOf(size)
	x, ok := driver.ForATA(size, bios, own.general(), usual.general())
	if !ok {
		return usual
	}
	return geometry{
		Cylinders: uint16(ondisk.U32(x.Cylinders)), //nolint:gosec // at most 65535 by ForATA
		Heads:     ondisk.Byte(x.Heads), SectorsPerTrack: ondisk.Byte(x.Sectors),
	}
}

// maxGeometry is where the calculation ends. QEMU writes it too where the size is no product of three such numbers, and
// takes it for "believe the size field".
var maxGeometry = geometry{65535, 16, 255}

// geometryOf calculates the geometry of a disk of size bytes. It is rounded down: a part of the disk can lie behind
// its last cylinder. Spec: VHD 1.0, "Appendix: CHS Calculation".
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
		Cylinders: uint16(ondisk.U32(cylinderTimesHeads / heads)), //nolint:gosec // at most 65535 by the bound on total
		Heads:     ondisk.Byte(heads), SectorsPerTrack: ondisk.Byte(track),
	}
}

// geometryIssue reports a geometry that covers another size than the disk has. The size field is what counts, as in
// Hyper-V; Virtual PC counted by the geometry.
func (f *footer) geometryIssue() []ondisk.Issue {
	g := f.DiskGeometry
	covers := g.sectors() * units.SectorSize
	if covers == f.size() {
		return nil
	}
	i := ondisk.Issue{
		Code: "vhd-geometry", Effect: ondisk.Warn,
		Text: fmt.Sprintf("the geometry %d/%d/%d of the vhd covers %d bytes, its size field says %d; the "+
			"size field counts",
			g.Cylinders, g.Heads, g.SectorsPerTrack, covers, f.size()),
	}
	over := g.general().Over(f.size())
	if g == maxGeometry || g == geometryOf(f.size()) || g.general() == over || g.general() == over.Clipped() {
		// Rounded as the specification wants it, or to whole cylinders, those that programs can address; or no real
		// geometry.
		i.Effect = ondisk.Note
	}
	return []ondisk.Issue{i}
}

// reported returns what a BIOS reports of the disk.
func (f *rawFooter) reported() driver.Geometry {
	return f.DiskGeometry.general().Reported(ondisk.I64(f.CurrentSize))
}

// sizeCounts reports whether every reader takes the size from the size field, or gets the same one from the geometry.
// QEMU believes the size field of these creators only. Spec: QEMU 7.2 block/vpc.c, vpc_open.
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
