package vmdk

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// readFooter takes the places of the directories from the footer, where the header says that they are at the end. The
// file ends with three sectors: a marker, the footer, and the marker of the end.
func (x *sparse) readFooter() error {
	if x.h.GDOffset != gdAtEnd {
		return nil
	}
	size := x.file.Size()
	start := size - endSectors*units.SectorSize
	if size%units.SectorSize != 0 || start < units.SectorSize {
		return field("file size", 0, size, "whole sectors that end in a footer: the file is cut short")
	}
	b, err := ondisk.Bytes(x.file, start, endSectors*units.SectorSize)
	if err != nil {
		return err
	}
	if m := decodeMarker(b); m != (marker{1, 0, markerFooter}) {
		return markerErr(start, "footer", b[:16],
			"the marker of a footer (value 1, size 0, type 3) 1536 bytes before the end: the file is cut short or "+
				"has something behind its end")
	}
	last := size - units.SectorSize
	if m := decodeMarker(b[last-start:]); m != (marker{}) {
		return markerErr(last, "end of stream", b[last-start:][:16], "zeros in the last sector")
	}
	var foot sparseHeader
	if _, err := binary.Decode(b[units.SectorSize:], binary.LittleEndian, &foot); err != nil {
		return fmt.Errorf("decode %T: %w", foot, err)
	}
	if err := x.h.checkFooter(&foot, start+units.SectorSize); err != nil {
		return err
	}
	x.h.GDOffset, x.h.RGDOffset = foot.GDOffset, foot.RGDOffset
	return x.h.checkPlaces(size)
}

// unpack fills dst with a grain of a streamOptimized file.
func (x *sparse) unpack(dst []byte, grain int64) error {
	sector, at, err := x.entry(grain)
	if err != nil {
		return err
	}
	if err := x.checkGrains(sector, 1, grain, at); err != nil {
		return err
	}
	off := int64(sector) * units.SectorSize
	size, err := x.grainAt(off, grain)
	if err != nil {
		return err
	}
	i := inflaters.Get().(*inflater) // there is nothing else in it
	defer inflaters.Put(i)
	packed := i.buffer(size)
	if err := ondisk.ReadFull(x.file, packed, off+grainMarker); err != nil {
		return err
	}
	return i.inflate(dst, packed, x.h.cut(grain), off+grainMarker)
}

// entry returns the table entry of a grain that is stored, and where it stands.
func (x *sparse) entry(grain int64) (sector uint32, at int64, err error) {
	loc, _, err := x.table(grain / gtes)
	if err != nil {
		return 0, 0, err
	}
	at = loc + 4*(grain%gtes)
	sector, err = x.tabs.U32(at)
	return sector, at, err
}

// grainAt reads the marker of a grain at a byte offset of the file and gives the size of its data.
func (x *sparse) grainAt(off, grain int64) (int64, error) {
	var b [grainMarker]byte
	if err := ondisk.ReadFull(x.file, b[:], off); err != nil {
		return 0, err
	}
	lba, size := binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint32(b[8:])
	if want := ondisk.U64(grain) * x.h.GrainSize; lba != want {
		return 0, markerErr(off, "lba", lba, fmt.Sprintf("%d, as the grain table says", want))
	}
	if err := x.h.checkSize(size, off+8); err != nil {
		return 0, err
	}
	if rest := x.file.Size() - off - grainMarker; int64(size) > rest {
		return 0, markerErr(off+8, "size", size, fmt.Sprintf("at most the %d bytes to the end of the file", rest))
	}
	return int64(size), nil
}
