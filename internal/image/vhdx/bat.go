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
	stateNotPresent = 0 // reads from the parent
	stateUndefined  = 1
	stateZero       = 2
	stateUnmapped   = 3
	statePresent    = 6 // also the state of a sector bitmap block
	statePartial    = 7 // the sector bitmap marks the present sectors
)

// entry is a BAT entry: 3 bits of state, 17 reserved bits, and the file offset in MiB.
type entry uint64

func (e entry) state() uint64 { return uint64(e) & 7 }

// off returns the file offset of the block in bytes, limited to 2^62, more than any file size.
func (e entry) off() int64 {
	const most = 1 << 42 // MiB
	return int64(min(uint64(e)>>20, most)) * mib
}

// isZero reports whether a block reads as zeros, also over a parent. For undefined and unmapped blocks, the
// specification leaves the content to the reader.
func (e entry) isZero() bool {
	return e.state() == stateUndefined || e.state() == stateZero || e.state() == stateUnmapped
}

// slab is the number of entries per read of run: 256 MiB of disk with the smallest blocks.
const slab = 256

// run maps an offset through the BAT entry to the block, and for a partial block through its sector bitmap. It returns
// the longest run within the entries read.
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

// entries reads BAT entries from block on, as many as fit into buf, and returns their file offset.
func (x *image) entries(buf []byte, block int64) ([]byte, int64, error) {
	i := x.meta.index(block)
	n := min(int64(len(buf))/8, x.meta.index(x.meta.blocks()-1)+1-i)
	at := x.bat.Off + 8*i
	return buf[:8*n], at, x.tabs.Read(buf[:8*n], at)
}

// absent counts the blocks from block on that are absent and read alike, from the parent or as zeros. It skips a hole
// of the file in the BAT at once: the BAT of 64 TiB can have 64 million entries.
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

// holeAt returns the number of BAT entries in the hole of the file at offset at.
func (x *image) holeAt(at int64) (int64, error) {
	e, err := x.view.Extent(at, x.bat.End()-at)
	if err != nil || !e.Zero {
		return 0, err
	}
	return e.Len / 8, nil
}

// isBitmap reports whether entry i belongs to a sector bitmap.
func (x *image) isBitmap(i int64) bool { return i%(x.meta.ratio()+1) == x.meta.ratio() }

// following counts the blocks from block on that are adjacent in the file. It ignores sector bitmap entries between
// them.
func (x *image) following(entries []byte, block int64) int64 {
	want := entry(binary.LittleEndian.Uint64(entries)).off()
	n, i := int64(0), x.meta.index(block)
	for j := 0; j < len(entries); j, i = j+8, i+1 {
		if x.isBitmap(i) {
			continue
		}
		e := entry(binary.LittleEndian.Uint64(entries[j:]))
		// An invalid block does not affect the blocks before it.
		if e.state() != statePresent || e.off() != want || (n > 0 && x.placeErr(e, block+n) != "") {
			break
		}
		n, want = n+1, want+x.meta.blockSize
	}
	return n
}

// placeErr describes the valid file offsets of a block whose entry is invalid, and returns "" for a valid one. The last
// block of the disk may be partial.
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

// checkBlock validates the entry of a stored block; at is the file offset of the entry.
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

// stored returns a run of the file after replay of the log.
func (x *image) stored(off, n int64) (disk.Run, error) {
	r, err := x.view.Run(off)
	r.Len = min(r.Len, n)
	return r, err
}

// bitmapBytes limits the part of a sector bitmap per run: 16 MiB of disk with sectors of 512 bytes.
const bitmapBytes = 4 << 10

// partial returns the run of sectors in the same state, present or the parent's, from byte into of a block. n is the
// size of the rest of the block.
func (x *image) partial(e entry, block, into, n int64) (disk.Run, error) {
	at, err := x.bitmap(block)
	if err != nil {
		return disk.Run{}, err
	}
	// Each sector has a bit, lowest first. Spec: 2.4.
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

// bitmap returns the file offset of the sector bitmap for a block's chunk.
func (x *image) bitmap(block int64) (int64, error) {
	chunk := x.meta.ratio()
	at := x.bat.Off + 8*(block/chunk*(chunk+1)+chunk)
	v, err := x.tabs.U64(at)
	if err != nil {
		return 0, err
	}
	return x.bitmapAt(entry(v), at)
}

// bitmapAt validates the entry of a sector bitmap and returns the bitmap's file offset. at is the file offset of the
// entry.
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

// sameBits returns the state of a bit, and the number of bits in that state from there on.
func sameBits(b []byte, from int) (set bool, n int64) {
	set = b[0]>>from&1 == 1
	for i, v := range b {
		if set {
			v = ^v // so that the loop looks for a 1
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

// batFaults counts faults of the BAT by kind, and records the file offsets in use.
type batFaults struct {
	driver.Faults
	x      *image
	places *ondisk.PlaceSet // MiB of the file in use
	used   int64            // their number
	kept   int64            // bytes of blocks without data that keep a file offset, as the specification allows
}

// use marks a range in whole MiB, and reports whether a part of it was in use.
func (c *batFaults) use(r disk.Range) (taken bool) {
	first := r.Off / mib
	free, taken := c.places.AddRange(ondisk.U64(first), ondisk.U64((r.End()+mib-1)/mib-first))
	c.used += ondisk.I64(free)
	return taken
}

// Kinds of faults.
const (
	faultEntry  = "BAT entries with a reserved state or outside of the file's data area"
	faultShared = "blocks at a place in use"
	faultBitmap = "chunks without a valid sector bitmap"
)

// check walks the BAT once. Reads find an entry past the end of the file, but never two entries with the same file
// offset.
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

// entries checks entries of the BAT; i is the index of the first.
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

// bitmap checks the entry of a sector bitmap. It ignores entries of a disk without parent, where qemu-img before 8.0.1
// left garbage.
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

// issues returns one issue for each kind of damage.
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
			Text: fmt.Sprintf("%d blocks (%s) of the file are neither metadata nor part of the disk",
				(left+c.x.meta.blockSize-1)/c.x.meta.blockSize, units.Format(left)),
		})
	}
	return out
}
