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

// States of a BAT entry. Spec: 2.5.1.1 and 2.5.1.2.
const (
	stateNotPresent = 0 // the parent shows through
	stateUndefined  = 1
	stateZero       = 2
	stateUnmapped   = 3
	statePresent    = 6 // also that of a sector bitmap block
	statePartial    = 7 // a sector bitmap has the sectors that are present
)

// entry is one entry of the BAT: 3 bits of state, 17 reserved ones, and the place in MiB.
type entry uint64

func (e entry) state() uint64 { return uint64(e) & 7 }

// off returns the place of the block in the file, in bytes; one that passes 63 bits is more than any file has.
func (e entry) off() int64 {
	const most = 1 << 42 // MiB
	return int64(min(uint64(e)>>20, most)) * mib
}

// isZero reports whether a block reads as zero whatever the parent holds. Undefined and unmapped blocks may: the
// specification leaves it to the reader.
func (e entry) isZero() bool {
	return e.state() == stateUndefined || e.state() == stateZero || e.state() == stateUnmapped
}

// slab is how many entries run looks at: of the smallest blocks that is 256 MiB of disk.
const slab = 256

// run returns the map: BAT entry, block, and for a partial one its sector bitmap. It gives the longest run that the
// entries at hand show.
func (x *image) run(off int64) (disk.Run, error) {
	block, into := off/x.meta.blockSize, off%x.meta.blockSize
	var buf [8 * slab]byte
	entries, at, err := x.entries(buf[:], block)
	if err != nil {
		return disk.Run{}, err
	}
	first := entry(binary.LittleEndian.Uint64(entries))
	if first.state() == stateNotPresent || first.isZero() {
		n, err := x.absent(entries, at, block)
		if err != nil {
			return disk.Run{}, err
		}
		n = min(n*x.meta.blockSize, x.meta.size-block*x.meta.blockSize) - into
		if first.isZero() {
			return disk.Run{Len: n}, nil
		}
		return driver.Below(x.parent, off, n), nil
	}
	n := int64(1)
	if first.state() == statePresent {
		n = x.following(entries, block)
	}
	if err := x.checkBlock(first, block, at); err != nil {
		return disk.Run{}, err
	}
	n = min(n*x.meta.blockSize, x.meta.size-block*x.meta.blockSize) - into
	if first.state() == statePartial {
		return x.partial(first, block, into, n)
	}
	return x.stored(first.off()+into, n)
}

// entries reads BAT entries from that of a block on, at most as many as fit into buf, and gives their place in the
// file.
func (x *image) entries(buf []byte, block int64) ([]byte, int64, error) {
	i := x.meta.index(block)
	n := min(int64(len(buf))/8, x.meta.index(x.meta.blocks()-1)+1-i)
	at := x.bat.Off + 8*i
	return buf[:8*n], at, x.tabs.Read(buf[:8*n], at)
}

// absent counts the blocks from one on that have no place in the file and read alike: the parent's, or zeros. Where
// the BAT lies in a hole of the file, all that it covers are counted at once: that of 64 TiB can have 64 million
// entries.
func (x *image) absent(entries []byte, at, block int64) (int64, error) {
	first := entry(binary.LittleEndian.Uint64(entries))
	end := x.meta.index(block)
	for i := 0; i < len(entries); i, end = i+8, end+1 {
		e := entry(binary.LittleEndian.Uint64(entries[i:]))
		if x.isBitmap(end) || e.state() == first.state() || (e.isZero() && (first.isZero() || x.parent == nil)) ||
			(x.parent == nil && e.state() == stateNotPresent) {
			continue
		}
		return x.meta.blocksBefore(end) - block, nil
	}
	hole, err := x.holeAt(at)
	if err != nil {
		return 0, err
	}
	if first.state() == stateNotPresent {
		end = max(end, (at-x.bat.Off)/8+hole)
	}
	return min(x.meta.blocksBefore(end), x.meta.blocks()) - block, nil
}

// holeAt returns how many entries from a place of the BAT on lie in a hole of the file.
func (x *image) holeAt(at int64) (int64, error) {
	e, err := x.view.Extent(at, x.bat.End()-at)
	if err != nil || !e.Zero {
		return 0, err
	}
	return e.Len / 8, nil
}

// isBitmap reports whether entry i is that of a sector bitmap.
func (x *image) isBitmap(i int64) bool { return i%(x.meta.ratio()+1) == x.meta.ratio() }

// following counts the blocks from one on that lie in the file one behind the other. What stands in the entry of a
// sector bitmap in between does not matter.
func (x *image) following(entries []byte, block int64) int64 {
	want := entry(binary.LittleEndian.Uint64(entries)).off()
	n, i := int64(0), x.meta.index(block)
	for j := 0; j < len(entries); j, i = j+8, i+1 {
		if x.isBitmap(i) {
			continue
		}
		e := entry(binary.LittleEndian.Uint64(entries[j:]))
		// A block that the file cuts short or that meets something else does not spoil those in front of it.
		if e.state() != statePresent || e.off() != want || (n > 0 && x.placeErr(e, block+n) != "") {
			break
		}
		n, want = n+1, want+x.meta.blockSize
	}
	return n
}

// placeErr says where the block of an entry should be, empty when it is there. The last block of the disk may be cut
// by its size.
func (x *image) placeErr(e entry, block int64) string {
	size := min(x.meta.blockSize, x.meta.size-block*x.meta.blockSize)
	if e.off() < mib || size > x.view.Size() || e.off() > x.view.Size()-size {
		return fmt.Sprintf("a place from 1 MiB on from which %d bytes fit into the file of %d bytes", size,
			x.view.Size())
	}
	if s, ok := x.touches(disk.Range{Off: e.off(), Len: size}); ok {
		return fmt.Sprintf("a place apart from the %s, %d bytes at %#x", s.name, s.Len, s.Off)
	}
	return ""
}

// checkBlock checks the entry of a stored block, at a place of the BAT, against the specification.
func (x *image) checkBlock(e entry, block, at int64) error {
	fault := func(want string) error {
		past := e.state() == statePresent && e.off() >= x.view.Size()
		return &ondisk.FormatError{
			What: "vhdx BAT", Off: at, Field: "entry", Got: fmt.Sprintf("0x%x", uint64(e)), Want: want, Past: past,
		}
	}
	switch e.state() {
	case statePresent, statePartial:
	default:
		return fault("a state that is not reserved")
	}
	if e.state() == statePartial && !x.meta.hasParent() {
		return fault("no partially present block, since the disk has no parent")
	}
	if want := x.placeErr(e, block); want != "" {
		return fault(want)
	}
	return nil
}

// stored returns the run of bytes of the file, as the log leaves them.
func (x *image) stored(off, n int64) (disk.Run, error) {
	r, err := x.view.Run(off)
	r.Len = min(r.Len, n)
	return r, err
}

// bitmapBytes is how much of a sector bitmap run looks at: 16 MiB of disk with sectors of 512 bytes.
const bitmapBytes = 4 << 10

// partial returns the run of sectors from byte into of a block that are all present or all the parent's. n is what
// remains of the block.
func (x *image) partial(e entry, block, into, n int64) (disk.Run, error) {
	at, err := x.bitmap(block)
	if err != nil {
		return disk.Run{}, err
	}
	// Each sector has a bit, the first of a byte is the lowest. Spec: 2.4.
	sector := into / x.meta.logical
	at += block % x.meta.ratio() * (x.meta.blockSize / x.meta.logical / 8)
	var buf [bitmapBytes]byte
	last := (into + n - 1) / x.meta.logical
	bitmap := buf[:min(last/8-sector/8+1, int64(len(buf)))]
	if err := x.tabs.Read(bitmap, at+sector/8); err != nil {
		return disk.Run{}, err
	}
	present, same := sameBits(bitmap, int(sector%8))
	n = min(n, same*x.meta.logical-into%x.meta.logical)
	if present {
		return x.stored(e.off()+into, n)
	}
	return driver.Below(x.parent, block*x.meta.blockSize+into, n), nil
}

// bitmap returns the place of the part of the file that holds the sector bitmap of a block's chunk.
func (x *image) bitmap(block int64) (int64, error) {
	at := x.bat.Off + 8*x.meta.bitmapIndex(block)
	v, err := x.tabs.U64(at)
	if err != nil {
		return 0, err
	}
	return x.bitmapAt(entry(v), at)
}

// bitmapAt checks the entry of a sector bitmap, which is at a place of the BAT.
func (x *image) bitmapAt(e entry, at int64) (int64, error) {
	var want string
	switch s, hit := x.touches(disk.Range{Off: e.off(), Len: mib}); {
	case e.state() != statePresent:
		want = "a sector bitmap that is present, since blocks of its chunk are present in part"
	case e.off() < mib || e.off() > x.view.Size()-mib:
		want = fmt.Sprintf("a place from 1 MiB on from which 1 MiB fits into the file of %d bytes", x.view.Size())
	case hit:
		want = fmt.Sprintf("a place apart from the %s, %d bytes at %#x", s.name, s.Len, s.Off)
	default:
		return e.off(), nil
	}
	return 0, ondisk.Field("vhdx BAT", "sector bitmap entry", at, fmt.Sprintf("0x%x", uint64(e)), want)
}

// sameBits reports whether a bit is set, and how many bits from there on are like it.
func sameBits(b []byte, from int) (set bool, n int64) {
	set = b[0]>>from&1 == 1
	for i, v := range b {
		if set {
			v = ^v // so that the bits looked for are zero
		}
		if i == 0 {
			v = v >> from << from
		}
		if v != 0 {
			return set, int64(8*i + bits.TrailingZeros8(v) - from)
		}
	}
	return set, int64(8*len(b) - from)
}

// batFaults are the faults of the BAT.
type batFaults struct {
	driver.Faults
	x      *image
	places *ondisk.PlaceSet // MiB of the file that are in use
	used   int64            // how many
	kept   int64            // bytes of blocks that have a place and no data: they may keep it
}

// use marks a range, in whole MiB, and reports whether a part of it was in use.
func (c *batFaults) use(r disk.Range) (taken bool) {
	first := r.Off / mib
	free, taken := c.places.AddRange(ondisk.U64(first), ondisk.U64((r.End()+mib-1)/mib-first))
	c.used += ondisk.I64(free)
	return taken
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
	c := &batFaults{x: x, places: ondisk.NewPlaceSet(1)}
	for _, s := range x.used {
		c.use(s.Range)
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
	if c.use(disk.Range{Off: e.off(), Len: x.meta.blockSize}) {
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
	if c.use(disk.Range{Off: off, Len: mib}) {
		c.Add(faultShared, "sector bitmap entry at %#x leads to %#x", at, off)
	}
}

// issues makes one issue for each kind of damage.
func (c *batFaults) issues() []ondisk.Issue {
	out := c.Issues(ondisk.Issue{
		Code: "vhdx-bat", Effect: ondisk.Broken, Remedy: "restore the image from a good copy",
	}, "vhdx BAT", faultEntry, faultShared, faultBitmap)
	if c.places.Full() {
		return append(out, driver.Unchecked("vhdx-bat-unchecked", "blocks"))
	}
	if left := c.x.view.Size()/mib*mib - c.used*mib - c.kept; left > 0 && len(out) == 0 {
		out = append(out, ondisk.Issue{
			Code: "orphaned-data", Effect: ondisk.Note,
			Text: fmt.Sprintf("%d blocks (%s) of the file are neither metadata nor a part of the disk",
				(left+c.x.meta.blockSize-1)/c.x.meta.blockSize, units.Format(left)),
		})
	}
	return out
}
