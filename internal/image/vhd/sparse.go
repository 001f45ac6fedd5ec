package vhd

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

const (
	headerCookie = "cxsparse"
	headerBytes  = 1024
)

// dynamicHeader is the header of a dynamic or differencing disk. Spec: VHD 1.0, "Dynamic Disk Header Format".
type dynamicHeader struct {
	Cookie            [8]byte
	DataOffset        uint64 // unused, all ones
	TableOffset       uint64 // byte offset of the block allocation table
	HeaderVersion     uint32
	MaxTableEntries   uint32
	BlockSize         uint32 // bytes of data in a block, without its bitmap
	Checksum          uint32
	ParentUniqueID    [16]byte
	ParentTimeStamp   uint32
	_                 uint32
	ParentUnicodeName [512]byte // UTF-16, big-endian
	ParentLocators    [8]locator
	_                 [256]byte
}

// locator locates the name of the parent in the notation of one platform.
type locator struct {
	PlatformCode       [4]byte
	PlatformDataSpace  uint32 // sectors in the specification; Hyper-V writes bytes
	PlatformDataLength uint32 // bytes
	_                  uint32
	PlatformDataOffset uint64 // byte offset in the file
}

// Byte offsets of the fields in messages.
const (
	atTableOffset = 16
	atHeaderVer   = 24
	atMaxEntries  = 28
	atBlockSize   = 32
	atHeaderSum   = 36
)

// Supported block sizes in bytes. The specification requires a power of two of sectors; all writers use 2 MiB.
const (
	minBlock     = 4 << 10
	maxBlock     = 256 << 20
	defaultBlock = 2 << 20
)

// headerFault returns an error for a field of the header at off.
func headerFault(off int64, field string, at int64, got, want any) error {
	return ondisk.Field("vhd dynamic header", field, off+at, got, want)
}

// readHeader reads the header at the data offset of f and validates cookie, checksum, version and block size. The table
// fields are left to checkTable.
func readHeader(src driver.File, f *footer) (*dynamicHeader, int64, error) {
	if f.DataOffset < footerBytes || f.DataOffset > ondisk.U64(f.end) || f.end-ondisk.I64(f.DataOffset) < headerBytes {
		return nil, 0, f.fault("data offset", atDataOffset, f.DataOffset,
			fmt.Sprintf("a place of the dynamic header, %d bytes, behind the copy of the footer and in front of byte "+
				"%d", headerBytes, f.end))
	}
	off := ondisk.I64(f.DataOffset)
	b, err := ondisk.Bytes(src, off, headerBytes)
	if err != nil {
		return nil, 0, err
	}
	h := &dynamicHeader{}
	ondisk.Fill(b, binary.BigEndian, h)
	sum := checksum(b, atHeaderSum)
	switch {
	case string(h.Cookie[:]) != headerCookie:
		err = headerFault(off, "cookie", 0, string(h.Cookie[:]), fmt.Sprintf("%q", headerCookie))
	case h.Checksum != sum:
		err = headerFault(off, "checksum", atHeaderSum, fmt.Sprintf("%#x", h.Checksum), fmt.Sprintf("%#x", sum))
	case h.HeaderVersion>>16 != version1>>16:
		err = fmt.Errorf("vhd dynamic header at %#x: header version %#x: %w, known is %#x", off+atHeaderVer,
			h.HeaderVersion, ondisk.ErrUnsupported, version1)
	case h.BlockSize < minBlock || h.BlockSize > maxBlock || !units.IsPowerOfTwo(int64(h.BlockSize)):
		err = headerFault(off, "block size", atBlockSize, h.BlockSize,
			fmt.Sprintf("a power of two from %d to %d bytes", minBlock, maxBlock))
	}
	return h, off, err
}

// checkTable checks that the table has an entry for each block and lies inside the file, apart from header and footers.
// Since the table must fit into the file, the file size bounds the disk size.
func (h *dynamicHeader) checkTable(f *footer, off int64) error {
	blocks := (f.size()-1)/int64(h.BlockSize) + 1
	if blocks > int64(h.MaxTableEntries) {
		return headerFault(off, "max table entries", atMaxEntries, h.MaxTableEntries,
			fmt.Sprintf("at least %d, the blocks of a disk of %d bytes", blocks, f.size()))
	}
	n := 4 * int64(h.MaxTableEntries)
	if h.TableOffset < footerBytes || h.TableOffset > ondisk.U64(f.end) || n > f.end-ondisk.I64(h.TableOffset) {
		return headerFault(off, "table offset", atTableOffset, h.TableOffset,
			fmt.Sprintf("a place for %d entries of 4 bytes behind the copy of the footer and in front of byte %d",
				h.MaxTableEntries, f.end))
	}
	if (disk.Range{Off: off, Len: headerBytes}).Overlaps(disk.Range{Off: ondisk.I64(h.TableOffset), Len: n}) {
		return headerFault(off, "table offset", atTableOffset, h.TableOffset,
			fmt.Sprintf("a place apart from the dynamic header at %#x", off))
	}
	return nil
}

const (
	absent     = math.MaxUint32 // table entry of an absent block
	tableCache = 4 << 20        // bytes of tables and bitmaps kept in memory
)

// sparse is an opened disk with a block allocation table: dynamic or differencing.
type sparse struct {
	file   driver.File
	tabs   *ondisk.Pages
	parent *driver.Image // nil for a dynamic disk
	size   int64         // of the disk, bytes
	bat    int64         // byte offset of the table
	block  int64         // bytes of data in a block
	bitmap int64         // bytes of the bitmap in front of the data
	end    int64         // end of the data in the file, byte offset
	meta   []disk.Range  // metadata in the file, by offset; no block may overlap it
	behind int64         // end of the last metadata range
}

// bitmapBytes returns the bitmap size of a block: a bit per sector, rounded up to whole sectors. Spec: VHD 1.0, "Block
// Allocation Table and Data Blocks".
func bitmapBytes(block int64) int64 {
	return units.AlignUp(block/units.SectorSize/8, units.SectorSize)
}

func openSparse(s *driver.Source, f *footer) (*driver.Image, error) {
	h, off, err := readHeader(s.File, f)
	if err != nil {
		return nil, err
	}
	if err := h.checkTable(f, off); err != nil {
		return nil, err
	}
	x := &sparse{
		file: s.File, tabs: ondisk.NewPages(s.File, s.Memory(tableCache)), size: f.size(),
		bat:   ondisk.I64(h.TableOffset),
		block: int64(h.BlockSize), bitmap: bitmapBytes(int64(h.BlockSize)), end: f.end,
	}
	x.meta = []disk.Range{
		{Len: footerBytes},
		{Off: off, Len: headerBytes},
		{Off: x.bat, Len: 4 * int64(h.MaxTableEntries)},
	}
	img := &driver.Image{
		Subformat: dynamicDisk, Template: &template{footer: f, block: x.block}, Check: x.check,
		Details: []driver.Detail{{Name: "block size", Value: units.Format(x.block)}},
	}
	if f.DiskType == typeDifferencing {
		if err := x.openParent(s, h, off, img); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(x.meta, func(a, b disk.Range) int { return cmp.Compare(a.Off, b.Off) })
	for _, m := range x.meta {
		x.behind = max(x.behind, m.End())
	}
	img.Disk = disk.New(x.size, units.SectorSize, x.run)
	return img, nil
}

// blocks returns the number of blocks of the disk, of which the last may be partial.
func (x *sparse) blocks() int64 { return (x.size-1)/x.block + 1 }

// run maps a disk offset through table entry and bitmap to the data. Absent blocks and sectors read from the parent, or
// as zeros.
func (x *sparse) run(off int64) (disk.Run, error) {
	i, into := off/x.block, off%x.block
	entry, err := x.tabs.BE32(x.bat + 4*i)
	if err != nil {
		return disk.Run{}, err
	}
	if entry == absent {
		n, err := x.absent(i)
		return driver.Below(x.parent, off, n*x.block-into), err
	}
	at, err := x.place(i, entry)
	if err != nil {
		return disk.Run{}, err
	}
	stored, n, err := x.bits(at, into/units.SectorSize)
	if err != nil {
		return disk.Run{}, err
	}
	n = n*units.SectorSize - into%units.SectorSize
	if !stored {
		return driver.Below(x.parent, off, n), nil
	}
	return disk.Run{Len: n, Src: x.file, Off: at + x.bitmap + into}, nil
}

// Bounds of one scan over absent blocks: a disk of 64 TiB can have 32 million of them.
const (
	scanEntries = 512
	maxScans    = 64
)

// absent returns the number of consecutive blocks from i on that are not stored.
func (x *sparse) absent(i int64) (n int64, err error) {
	var buf [4 * scanEntries]byte
	for range maxScans {
		b := buf[:4*min(scanEntries, x.blocks()-i-n)]
		if err := x.tabs.Read(b, x.bat+4*(i+n)); err != nil {
			return 0, err
		}
		for j := 0; j < len(b); j += 4 {
			if binary.BigEndian.Uint32(b[j:]) != absent {
				return n, nil
			}
			n++
		}
		if i+n == x.blocks() {
			break
		}
	}
	return n, nil
}

// place returns the byte offset of the bitmap of block i, from its table entry in sectors. The last block may be cut at
// the end of the disk.
func (x *sparse) place(i int64, entry uint32) (int64, error) {
	r := disk.Range{Off: int64(entry) * units.SectorSize, Len: x.bitmap + min(x.block, x.size-i*x.block)}
	if r.Off >= x.behind && r.End() <= x.end {
		return r.Off, nil // the usual layout: all metadata precedes the blocks
	}
	want := ""
	if r.End() > x.end {
		want = fmt.Sprintf("a sector from which %d bytes fit in front of byte %d, where the data of the file ends",
			r.Len, x.end)
	}
	for _, m := range x.meta {
		if want == "" && m.Overlaps(r) {
			want = fmt.Sprintf("a place for %d bytes apart from the metadata at %#x", r.Len, m.Off)
		}
	}
	if want == "" {
		return r.Off, nil
	}
	return 0, &ondisk.FormatError{
		What: "vhd block allocation table", Off: x.bat + 4*i, Field: "entry", Got: entry,
		Want: want, Past: r.End() > x.end,
	}
}

// bits reads the bitmap at byte offset at. It returns the state of sector first of the block, and the number of sectors
// from there in the same state. The most significant bit of a byte is its first sector. Spec: VHD 1.0, "Block
// Allocation Table and Data Blocks"; bit order by Virtual PC.
func (x *sparse) bits(at, first int64) (stored bool, n int64, err error) {
	const word = 64 // bits
	sectors := x.block / units.SectorSize
	for s := first; s < sectors; {
		w, err := x.tabs.BE64(at + s/word*8)
		if err != nil {
			return false, 0, err
		}
		w <<= s % word
		if s == first {
			stored = w>>(word-1) == 1
		}
		if stored {
			w = ^w
		}
		left := min(word-s%word, sectors-s)
		same := min(int64(bits.LeadingZeros64(w)), left)
		n, s = n+same, s+same
		if same < left {
			break
		}
	}
	return stored, n, nil
}

// maxPlaces limits the number of blocks whose offsets are compared. It needs 8 MiB of memory and, with blocks of 2 MiB,
// allows twice the largest Hyper-V disk.
const maxPlaces = 2 << 20

// maxDamage is the number of faults at which the check stops. A sparse table of 16 GiB costs an attacker nothing.
const maxDamage = 1 << 16

// tableFaults collects the faults of the block allocation table. It keeps the offset of each block: writers that align
// their data leave gaps, so the distance of two blocks need not be a multiple of a block.
type tableFaults struct {
	driver.Faults
	x      *sparse
	places []uint32 // table entries
	full   bool     // more than maxPlaces blocks
	hidden hidden
}

// Kinds of faults.
const (
	outside = "blocks outside of the file's data area"
	shared  = "blocks at a place in use"
)

// check walks the table once. Reads find an entry past the end of the file, but never two blocks at one offset.
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
	if len(out) == 0 { // a wrong offset leads to no bitmap
		out = c.hidden.issues()
	}
	if c.full {
		return append(out, driver.Unchecked("vhd-tables-unchecked", "blocks"))
	}
	if orphans > 0 {
		out = append(out, ondisk.Issue{
			Code: "orphaned-data", Effect: ondisk.Note,
			Text: fmt.Sprintf("%d blocks (%s) of the file are not used by the disk", orphans,
				units.Format(orphans*c.x.block)),
		})
	}
	return out
}

// compare adds a fault for each block that overlaps a previous one, in the sorted offsets. It returns the number of
// blocks that would fit into the gaps.
func (c *tableFaults) compare() (orphans int64) {
	x := c.x
	whole := x.bitmap + x.block
	used := int64(0) // end of the space in use so far
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

// room returns the number of blocks of n bytes that fit between two file offsets without overlapping metadata.
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

// CodeHidden is the issue code of stored data that read as zeros.
const CodeHidden = "vhd-hidden-data"

// Limits of the scan for hidden data. Each block has its own bitmap, so that the scan needs reads all over the file. A
// writer that omits bits does so from its first blocks on.
const (
	maxBitmaps = 1024
	maxHidden  = 16 * units.MiB // bytes of sectors without a bit
)

// hidden counts sectors of a dynamic disk with data but without a bit in the bitmap. They are zeros by VHD 1.0, "Block
// Allocation Table and Data Blocks"; qemu-img 7.2 ignores the bitmap and shows the data.
type hidden struct {
	x       *sparse
	sectors int64
	first   int64 // disk offset of the first sector, bytes
	bitmaps int
	bytes   int64 // bytes scanned
}

// look counts the hidden data in block i, whose bitmap is at byte offset at of the file.
func (h *hidden) look(i, at int64) error {
	x := h.x
	if x.parent != nil || h.bitmaps == maxBitmaps {
		return nil // sectors without a bit read from the parent
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

// count adds the nonzero sectors of the file range r, which maps to disk offset off.
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
		Text: fmt.Sprintf("%s%d sectors of the file hold data, but their bits in the block bitmaps are clear, the "+
			"first at byte %d of the disk: by the specification they read as zeros, and a copy would lose the "+
			"data; qemu-img shows it", least, h.sectors, h.first),
		Remedy: "if the program that wrote the file ignores bitmaps, copy it with qemu-img convert -f vpc -O raw, " +
			"which keeps the data, and align that copy",
	}}
}
