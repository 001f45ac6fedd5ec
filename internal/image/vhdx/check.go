package vhdx

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// space is a bitmap of the MiB of a file that are in use, in pages that exist only where something is.
type space struct {
	pages map[int64]*spacePage
	last  *spacePage // the one in work, number lastNo
	no    int64
	used  int64 // MiB
	full  bool  // the bound was reached: not everything was compared
}

type spacePage [512]uint64

const (
	cellsPerPage  = 64 * 512
	maxSpacePages = 1 << 12 // 16 MiB of memory for 128 TiB of file
)

// add marks a range, in whole MiB, and reports whether a part of it was in use.
func (s *space) add(r disk.Range) (taken bool) {
	for cell, end := r.Off/mib, (r.End()+mib-1)/mib; cell < end; {
		p := s.page(cell / cellsPerPage)
		if p == nil {
			s.full = true
			return taken
		}
		n := min(end-cell, 64-cell%64)
		mask := (^uint64(0) >> (64 - n)) << (cell % 64)
		word := &p[cell%cellsPerPage/64]
		taken = taken || *word&mask != 0
		s.used += int64(bits.OnesCount64(mask &^ *word))
		*word |= mask
		cell += n
	}
	return taken
}

func (s *space) page(no int64) *spacePage {
	if s.last != nil && s.no == no {
		return s.last
	}
	p := s.pages[no]
	if p == nil && len(s.pages) < maxSpacePages {
		p = new(spacePage)
		s.pages[no] = p
	}
	if p != nil {
		s.last, s.no = p, no
	}
	return p
}

// batFaults are the faults of the BAT.
type batFaults struct {
	driver.Faults
	x     *image
	space space
	kept  int64 // bytes of blocks that have a place and no data: they may keep it
}

// Kinds of faults.
const (
	faultEntry  = "BAT entries that are reserved or lead outside of the file's data area"
	faultShared = "blocks at a place in use"
	faultBitmap = "chunks without a valid sector bitmap"
)

// check walks the BAT once. A reader would meet an entry that leads outside of the file, but never two that share a
// place.
func (x *image) check() ([]ondisk.Issue, error) {
	c := &batFaults{x: x, space: space{pages: map[int64]*spacePage{}}}
	for _, s := range x.used {
		c.space.add(s.Range)
	}
	var buf [8 * slab]byte
	total := min(x.meta.entries(), x.bat.Len/8)
	for i := int64(0); i < total; {
		at := x.bat.Off + 8*i
		b := buf[:8*min(slab, total-i)]
		if err := x.tabs.Read(b, at); err != nil {
			return nil, err
		}
		n := int64(len(b) / 8)
		if ondisk.IsZero(b) {
			hole, err := x.holeAt(at)
			if err != nil {
				return nil, err
			}
			n = max(n, min(hole, total-i))
		} else {
			c.entries(b, i)
		}
		i += n
	}
	return c.issues(), nil
}

// entries looks at a few entries of the BAT, of which the first has number i.
func (c *batFaults) entries(b []byte, i int64) {
	for ; len(b) > 0; b, i = b[8:], i+1 {
		e, at := entry(binary.LittleEndian.Uint64(b)), c.x.bat.Off+8*i
		if c.x.isBitmap(i) {
			c.bitmap(e, at)
		} else if block := c.x.meta.blocksBefore(i); block < c.x.meta.blocks() {
			c.payload(e, block, at)
		}
	}
}

func (c *batFaults) payload(e entry, block, at int64) {
	x := c.x
	if e.state() == stateNotPresent || e.isZero() {
		if e.off() != 0 {
			c.kept += x.meta.blockSize
		}
		return
	}
	if err := x.checkBlock(e, block, at); err != nil {
		c.Add(faultEntry, "%v", err)
		return
	}
	if e.state() == statePartial {
		if _, err := x.bitmap(block); err != nil {
			c.Add(faultBitmap, "%v", err)
		}
	}
	if c.space.add(disk.Range{Off: e.off(), Len: x.meta.blockSize}) {
		c.Add(faultShared, "BAT entry at %#x leads to %#x", at, e.off())
	}
}

// bitmap looks at the entry of a sector bitmap. A disk without a parent has none, and qemu-img before 8.0.1 left
// rubbish there.
func (c *batFaults) bitmap(e entry, at int64) {
	if !c.x.meta.hasParent() || e.state() == stateNotPresent {
		return
	}
	off, err := c.x.bitmapAt(e, at)
	if err != nil {
		c.Add(faultBitmap, "%v", err)
		return
	}
	if c.space.add(disk.Range{Off: off, Len: mib}) {
		c.Add(faultShared, "sector bitmap entry at %#x leads to %#x", at, off)
	}
}

// issues makes one issue for each kind of damage.
func (c *batFaults) issues() []ondisk.Issue {
	out := c.Issues(ondisk.Issue{
		Code: "vhdx-bat", Effect: ondisk.Broken, Remedy: "restore the image from a good copy",
	}, "vhdx BAT", faultEntry, faultShared, faultBitmap)
	if c.space.full {
		return append(out, driver.Unchecked("vhdx-bat-unchecked", "blocks"))
	}
	if left := c.x.view.Size()/mib*mib - c.space.used*mib - c.kept; left > 0 && len(out) == 0 {
		out = append(out, ondisk.Issue{
			Code: "orphaned-data", Effect: ondisk.Note,
			Text: fmt.Sprintf("%d blocks (%s) of the file are neither metadata nor a part of the disk",
				(left+c.x.meta.blockSize-1)/c.x.meta.blockSize, units.Format(left)),
		})
	}
	return out
}
