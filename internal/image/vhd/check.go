package vhd

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// maxPlaces bounds the blocks whose places are compared: 8 MiB of memory, and with blocks of 2 MiB twice the largest
// disk that Hyper-V makes.
const maxPlaces = 2 << 20

// maxDamage is when a table is no table: a hole of 16 GiB costs nothing to make, and is not counted to its end.
const maxDamage = 1 << 16

// tableFaults lists the errors of the block allocation table. Blocks of one file need not lie in step with each
// other, since writers that align their data leave gaps; so their places are kept one by one.
type tableFaults struct {
	driver.Faults
	x      *sparse
	places []uint32 // table entries
	full   bool     // there are more
	hidden hidden
}

// Kinds of faults.
const (
	outside = "blocks outside of the file's data area"
	shared  = "blocks at a place in use"
)

// check walks the table once. A reader would meet an entry that points outside of the file, but never two blocks that
// share a place.
func (x *sparse) check() ([]ondisk.Issue, error) {
	c := &tableFaults{x: x, places: make([]uint32, 0, min(x.blocks(), maxPlaces)), hidden: hidden{x: x}}
	var buf [4 * scanEntries]byte
	for i := int64(0); i < x.blocks() && c.Count(outside) < maxDamage; i += scanEntries {
		b := buf[:4*min(scanEntries, x.blocks()-i)]
		if err := x.tabs.Read(b, x.bat+4*i); err != nil {
			return nil, err
		}
		for j := 0; j < len(b); j += 4 {
			if entry := binary.BigEndian.Uint32(b[j:]); entry != absent {
				if err := c.add(i+int64(j/4), entry); err != nil {
					return nil, err
				}
			}
		}
	}
	c.full = c.full || c.Count(outside) >= maxDamage
	slices.Sort(c.places)
	return c.issues(), nil
}

func (c *tableFaults) add(i int64, entry uint32) error {
	at, err := c.x.place(i, entry)
	switch {
	case err != nil:
		c.Add(outside, "%v", err)
	case len(c.places) == maxPlaces:
		c.full = true
	default:
		c.places = append(c.places, entry)
	}
	if err != nil {
		return nil //nolint:nilerr // counted
	}
	return c.hidden.look(i, at)
}

func (c *tableFaults) issues() []ondisk.Issue {
	orphans := c.compare()
	out := c.Issues(ondisk.Issue{Code: "vhd-tables", Effect: ondisk.Broken},
		"vhd block allocation table", outside, shared)
	if len(out) == 0 { // what a wrong place holds is no bitmap
		out = c.hidden.issues()
	}
	if c.full {
		return append(out, driver.Unchecked("vhd-tables-unchecked", "blocks"))
	}
	if orphans > 0 {
		out = append(out, ondisk.Issue{
			Code: "orphaned-data", Effect: ondisk.Note,
			Text: fmt.Sprintf("%d blocks (%s) of the file are used by no part of the disk", orphans,
				units.Format(orphans*c.x.block)),
		})
	}
	return out
}

// compare looks at the sorted places for blocks that overlap one in front of them, and returns how many would fit
// between those there are.
func (c *tableFaults) compare() (orphans int64) {
	x := c.x
	whole := x.bitmap + x.block
	used := int64(0) // end of what is in use so far
	for _, p := range c.places {
		at := int64(p) * units.SectorSize
		if at < used {
			c.Add(shared, "a block at sector %d of the file", p)
		}
		orphans += x.room(used, at, whole)
		used = max(used, at+whole)
	}
	return orphans + x.room(used, x.end, whole)
}

// room returns how many blocks of n bytes fit between two places without lying on metadata.
func (x *sparse) room(from, to, n int64) (blocks int64) {
	for _, m := range x.meta {
		if m.End() <= from || m.Off >= to {
			continue
		}
		blocks += max(0, m.Off-from) / n
		from = m.End()
	}
	return blocks + max(0, to-from)/n
}

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
