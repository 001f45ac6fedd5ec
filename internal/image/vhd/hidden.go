package vhd

import (
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// CodeHidden is the code of the issue of data that read as zeros.
const CodeHidden = "vhd-hidden-data"

// How much is looked at for hidden data. A bitmap lies in front of each block, so that many of them are many reads
// all over the file; a writer that leaves bits out does so from its first blocks on.
const (
	maxBitmaps = 1024
	maxHidden  = 16 * units.MiB // bytes of sectors without a bit
)

// hidden are sectors of a dynamic disk that hold data and have no bit in the bitmap of their block. By VHD 1.0,
// "Block Allocation Table and Data Blocks", they are zeros; qemu-img 7.2 reads no bitmap and shows the data.
type hidden struct {
	x       *sparse
	sectors int64
	first   int64 // byte offset of the first one on the disk
	bitmaps int
	bytes   int64 // looked at
}

// look counts those of block i, whose bitmap is at a byte offset of the file.
func (h *hidden) look(i, at int64) error {
	x := h.x
	if x.parent != nil || h.bitmaps == maxBitmaps {
		return nil // what has no bit is the parent's
	}
	h.bitmaps++
	end := min(x.block, x.size-i*x.block) / units.SectorSize
	for s := int64(0); s < end; {
		stored, n, err := x.bits(at, s)
		if err != nil {
			return err
		}
		n = min(n, end-s)
		if !stored {
			if err := h.count(i*x.block+s*units.SectorSize,
				disk.Range{Off: at + x.bitmap + s*units.SectorSize, Len: n * units.SectorSize}); err != nil {
				return err
			}
		}
		s += n
	}
	return nil
}

// count adds the sectors of a range of the file that are not zero; it shows as byte off of the disk.
func (h *hidden) count(off int64, r disk.Range) error {
	for at := r.Off; at < r.End() && h.bytes < maxHidden; {
		e, err := h.x.file.Extent(at, r.End()-at)
		if err != nil {
			return err
		}
		if n := units.AlignDown(e.Len, units.SectorSize); e.Zero && n > 0 {
			at += n
			continue
		}
		b, err := ondisk.Bytes(h.x.file, at, min(r.End()-at, maxHidden-h.bytes, 64*units.KiB))
		if err != nil {
			return err
		}
		for data := range ondisk.DataRuns(b, units.SectorSize) {
			if h.sectors == 0 {
				h.first = off + at + data.Off - r.Off
			}
			h.sectors += data.Len / units.SectorSize
		}
		at += int64(len(b))
		h.bytes += int64(len(b))
	}
	return nil
}

func (h *hidden) issues() []ondisk.Issue {
	if h.sectors == 0 {
		return nil
	}
	least := ""
	if h.bitmaps == maxBitmaps || h.bytes >= maxHidden {
		least = "at least "
	}
	return []ondisk.Issue{{
		Code: CodeHidden, Effect: ondisk.Refuse,
		Text: fmt.Sprintf("%s%d sectors of the file hold data and have no bit in the bitmap of their block, the "+
			"first at byte %d of the disk: "+
			"by the specification they are zeros, and so they are read, and a copy would lose them; qemu-img shows "+
			"the data", least, h.sectors, h.first),
		Remedy: "the program that wrote the file may ignore bitmaps: copy it by qemu-img convert -f vpc -O raw, " +
			"which takes the data along, and align that copy",
	}}
}
