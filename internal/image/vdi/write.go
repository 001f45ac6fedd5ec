package vdi

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

const (
	// title is the text at the start of the file.
	title = "<<< Oracle VM VirtualBox Disk Image >>>\n"
	// block is the block size that VirtualBox writes, in bytes, and the only one that QEMU reads.
	block = 1 << 20
	// tablePlace is the offset of the table. Table and data are aligned as in VirtualBox.
	tablePlace = 1 << 20
	// unit is the smallest useful hole inside a block, in bytes.
	unit = 64 << 10
	// maxSize is the largest disk that create accepts, in bytes. It keeps the data offset below 4 GiB.
	maxSize = 512 << 40
)

// target writes the blocks in the order of the disk.
type target struct {
	driver.Blocks
	head    header
	fixed   bool
	table   *driver.Table
	data    int64 // file offset of the first block, bytes
	next    uint32
	current int64 // last allocated block, -1 before the first
}

func create(f driver.WriteFile, size int64, o driver.Options) (driver.Target, error) {
	switch {
	case size > maxSize:
		return nil, fmt.Errorf("vdi of %d bytes: %w of %d bytes (512 TiB); choose --to vhdx, qcow2 or raw", size,
			ondisk.ErrLimit, int64(maxSize))
	case o.SectorSize > units.SectorSize:
		return nil, fmt.Errorf("vdi with sectors of %d bytes: %w, it has %d; choose --to vhdx or raw", o.SectorSize,
			ondisk.ErrUnsupported, units.SectorSize)
	case size <= 0 || size%units.SectorSize != 0:
		return nil, fmt.Errorf("vdi of %d bytes: %w, want whole sectors of %d bytes; choose --to raw", size,
			ondisk.ErrUnsupported, units.SectorSize)
	}
	blocks := (size-1)/block + 1
	t := &target{
		fixed: o.Subformat == fixedDisk, current: -1, data: units.AlignUp(tablePlace+4*blocks, units.MiB),
		table: driver.NewTable(f, tablePlace, 4*blocks, binary.LittleEndian),
	}
	t.Blocks = driver.Blocks{File: f, Size: block, Allocate: t.begin}
	t.head = header{
		Magic: magic, Version: version, HeaderBytes: headerBytes, Type: typeDynamic,
		Table: tablePlace, Data: ondisk.U32(t.data), Geometry: stated(driver.Geometry{}),
		Logical: stated(reports(size, o)),
		Size:    ondisk.U64(size), Block: block, Blocks: ondisk.U32(blocks),
		Created: identity(o.Seed, "created"), Modified: identity(o.Seed, "modified"),
	}
	if t.fixed {
		t.head.Type = typeFixed
	}
	return t, nil
}

// template is the header of a VDI source.
type template struct{ header }

// reports returns the BIOS geometry of a disk of size bytes made by create, from o or else from the source. The zero
// value leaves the choice to VirtualBox, which reads the partition table.
func reports(size int64, o driver.Options) driver.Geometry {
	g := o.BIOS
	if from, ok := o.Template.(*template); ok && g == (driver.Geometry{}) {
		g = from.bios()
	}
	return g.Over(size).Clipped()
}

// bios returns the BIOS geometry, or the zero value if the header has none. VirtualBox uses the first geometry if the
// header is too short for the second. Source: VirtualBox, src/VBox/Storage/VDI.cpp, getImageLCHSGeometry.
func (h *header) bios() driver.Geometry {
	x := h.Geometry
	if h.HeaderBytes >= headerBytes {
		x = h.Logical
	}
	g := driver.Geometry{Cylinders: int64(x.Cylinders), Heads: int64(x.Heads), Sectors: int64(x.Sectors)}
	if !g.Addressable() {
		return driver.Geometry{}
	}
	return g.Clipped()
}

func stated(g driver.Geometry) geometry {
	return geometry{ondisk.U32(g.Cylinders), ondisk.U32(g.Heads), ondisk.U32(g.Sectors), sector}
}

// identity derives a UUID from the seed and the name of its field, such as "created".
func identity(seed []byte, of string) ondisk.GUID {
	h := sha256.New()
	h.Write([]byte(of))
	h.Write(seed)
	return ondisk.CustomGUID(h.Sum(nil))
}

// Unit returns less than a block, so that unwritten parts of a block stay holes.
func (*target) Unit() int64 { return unit }

// begin allocates block i and returns its file offset. A fixed disk gets all blocks up to i.
func (t *target) begin(i int64) (int64, error) {
	for t.current < i {
		t.current++
		if !t.fixed {
			t.current = i
		}
		if err := t.table.Set(t.current, t.next); err != nil {
			return 0, err
		}
		t.next++
	}
	return t.data + int64(t.next-1)*block, nil
}

// Finish writes the table, and the header last: before that the file is no VDI.
func (t *target) Finish() error {
	if t.fixed {
		if _, err := t.begin(int64(t.head.Blocks) - 1); err != nil {
			return err
		}
	}
	t.head.Allocated = t.next
	if err := t.table.Finish(); err != nil {
		return err
	}
	if err := t.File.Truncate(t.data + int64(t.next)*block); err != nil {
		return err
	}
	if err := t.File.Sync(); err != nil {
		return err
	}
	front := make([]byte, atMagic)
	copy(front, title)
	if _, err := t.File.WriteAt(append(front, ondisk.Encode(binary.LittleEndian, &t.head)...), 0); err != nil {
		return err
	}
	return t.File.Sync()
}
