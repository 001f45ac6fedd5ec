package vhd

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// template holds the metadata of a VHD source for its copy.
type template struct {
	footer *footer
	block  int64 // bytes, 0 for a fixed disk
}

// maxSize is the largest disk of any type in Hyper-V and QEMU, in bytes.
const maxSize = 2040 * units.GiB

func create(f driver.WriteFile, size int64, o driver.Options) (driver.Target, error) {
	switch {
	case size > maxSize:
		return nil, fmt.Errorf("vhd of %d bytes: %w of %d bytes (2040 GiB); choose --to vhdx, qcow2 or raw", size,
			ondisk.ErrLimit, maxSize)
	case o.SectorSize > units.SectorSize:
		return nil, fmt.Errorf("vhd with sectors of %d bytes: %w, it has %d; choose --to vhdx or raw", o.SectorSize,
			ondisk.ErrUnsupported, units.SectorSize)
	case size <= 0 || size%units.SectorSize != 0:
		return nil, fmt.Errorf("vhd of %d bytes: %w, want whole sectors of %d bytes; choose --to raw", size,
			ondisk.ErrUnsupported, units.SectorSize)
	}
	from := templateOf(o)
	foot := from.footerFor(size, o.BIOS, o.Seed)
	if o.Subformat != fixedDisk {
		block := from.block
		if block == 0 {
			block = defaultBlock
		}
		return newDynamicTarget(f, foot, block), nil
	}
	flat, err := driver.NewFlat(f, 0, size)
	if err != nil {
		return nil, err
	}
	foot.DiskType, foot.DataOffset = typeFixed, noOffset
	return &fixedTarget{flat, size, foot}, nil
}

func templateOf(o driver.Options) *template {
	if from, _ := o.Template.(*template); from != nil {
		return from
	}
	return &template{}
}

// reports returns the geometry that a BIOS reports for a disk made by create.
func reports(size int64, o driver.Options) driver.Geometry {
	f := templateOf(o).footerFor(size, o.BIOS, o.Seed)
	return f.reported()
}

// Creator fields of a disk from another format, as Windows 10 writes them. With an unknown name, QEMU would derive the
// size from the geometry, which is rounded down.
const (
	creator        = "win "
	creatorVersion = 0x000a0000
	creatorHost    = "Wi2k"
)

// footerFor returns the footer of a copy of size bytes, with a new identifier. It keeps the time stamp of the source,
// and its creator if readers then see the right size.
func (t *template) footerFor(size int64, bios driver.Geometry, seed []byte) rawFooter {
	var own geometry
	if t.footer != nil {
		own = t.footer.DiskGeometry
	}
	f := rawFooter{
		Features: features, FileFormatVersion: version1, DiskGeometry: geometryFor(size, bios, own),
		// The original size is the size at creation, and the copy is created now. Spec: VHD 1.0, "Original Size".
		OriginalSize: ondisk.U64(size), CurrentSize: ondisk.U64(size),
	}
	copy(f.Cookie[:], cookie)
	h := sha256.New()
	if old := t.footer; old != nil {
		f.TimeStamp, f.CreatorApplication = old.TimeStamp, old.CreatorApplication
		f.CreatorVersion, f.CreatorHostOS = old.CreatorVersion, old.CreatorHostOS
		h.Write(old.UniqueID[:])
	}
	if t.footer == nil || !f.sizeCounts() {
		copy(f.CreatorApplication[:], creator)
		copy(f.CreatorHostOS[:], creatorHost)
		f.CreatorVersion = creatorVersion
	}
	h.Write(seed)
	copy(f.UniqueID[:], h.Sum(nil))
	// Mark the UUID as version 8, "custom", and the common variant. Spec: RFC 9562, 5.8.
	f.UniqueID[6] = f.UniqueID[6]&0x0f | 0x80
	f.UniqueID[8] = f.UniqueID[8]&0x3f | 0x80
	return f
}

// around returns the new footer of a fixed disk that is changed in place, cut to n bytes, the length of the old one.
func (f *footer) around(size, n int64, bios driver.Geometry) (driver.Around, error) {
	if size > maxSize {
		return driver.Around{}, fmt.Errorf("vhd of %d bytes: %w of %d bytes (2040 GiB)", size, ondisk.ErrLimit, maxSize)
	}
	foot := (&template{footer: f}).footerFor(size, bios, []byte("in place"))
	foot.DiskType, foot.DataOffset = typeFixed, noOffset
	return driver.Around{Tail: foot.encode()[:n]}, nil
}

// fixedTarget writes the disk, then the footer.
type fixedTarget struct {
	*driver.Flat
	size int64
	foot rawFooter
}

// Finish writes the footer last: before that the file is no VHD.
func (t *fixedTarget) Finish() error {
	if err := t.Flat.Finish(); err != nil {
		return err
	}
	if _, err := t.WriteAt(t.foot.encode(), t.size); err != nil {
		return err
	}
	return t.Sync()
}

// Layout of a dynamic disk: copy of the footer, header, table, blocks, footer.
const (
	headerPlace = footerBytes
	tablePlace  = headerPlace + headerBytes
	// payloadAlign is the file alignment of block data, in bytes. In the usual layout, the bitmaps shift all data off
	// the 4 KiB pages of the host disk.
	payloadAlign = 4 << 10
)

// dynamicTarget writes the blocks in the order of the disk.
type dynamicTarget struct {
	driver.Blocks
	foot    rawFooter
	entries int64
	next    int64 // end of the last block, byte offset
	table   *driver.Table
	ones    []byte // a full bitmap
}

func newDynamicTarget(f driver.WriteFile, foot rawFooter, block int64) *dynamicTarget {
	foot.DiskType, foot.DataOffset = typeDynamic, headerPlace
	t := &dynamicTarget{foot: foot}
	t.Blocks = driver.Blocks{File: f, Size: block, Allocate: t.begin}
	t.entries = (ondisk.I64(foot.CurrentSize)-1)/block + 1
	t.next = tablePlace + units.AlignUp(4*t.entries, units.SectorSize)
	// The table size is a multiple of the sector size. Spec: VHD 1.0, "Block Allocation Table and Data Blocks".
	t.table = driver.NewTable(f, tablePlace, t.next-tablePlace, binary.BigEndian)
	t.ones = bytes.Repeat([]byte{0xff}, int(bitmapBytes(block)))
	return t
}

// dynamicUnit is the smallest useful hole inside a block, in bytes.
const dynamicUnit = 64 << 10

// Unit returns less than a block, so that unwritten parts of a block stay holes.
func (t *dynamicTarget) Unit() int64 { return min(t.Size, dynamicUnit) }

// begin allocates the next place in the file to block i, sets its table entry, and writes a full bitmap.
func (t *dynamicTarget) begin(i int64) (int64, error) {
	bitmap := int64(len(t.ones))
	payload := units.AlignUp(t.next+bitmap, payloadAlign)
	sector := (payload - bitmap) / units.SectorSize
	if sector >= math.MaxUint32 {
		return 0, fmt.Errorf("dynamic vhd with blocks of %d bytes: %w: more than 2 TiB of data and bitmaps; choose "+
			"--to vhd:fixed, vhdx or raw", t.Size, ondisk.ErrLimit)
	}
	if err := t.table.Set(i, ondisk.U32(sector)); err != nil {
		return 0, err
	}
	t.next = payload + t.Size
	_, err := t.File.WriteAt(t.ones, payload-bitmap)
	return payload, err
}

// Finish writes table and header, and both footers last: before that the file is no VHD. The footer behind the last
// block extends the file to its full size.
func (t *dynamicTarget) Finish() error {
	if err := t.table.Finish(); err != nil {
		return err
	}
	if _, err := t.File.WriteAt(t.header(), headerPlace); err != nil {
		return err
	}
	if err := t.File.Sync(); err != nil {
		return err
	}
	b := t.foot.encode()
	for _, off := range []int64{t.next, 0} {
		if _, err := t.File.WriteAt(b, off); err != nil {
			return err
		}
	}
	return t.File.Sync()
}

func (t *dynamicTarget) header() []byte {
	h := dynamicHeader{
		DataOffset: noOffset, TableOffset: tablePlace, HeaderVersion: version1,
		MaxTableEntries: ondisk.U32(t.entries), BlockSize: ondisk.U32(t.Size),
	}
	copy(h.Cookie[:], headerCookie)
	b := ondisk.Encode(binary.BigEndian, &h)
	binary.BigEndian.PutUint32(b[atHeaderSum:], checksum(b, atHeaderSum))
	return b
}
