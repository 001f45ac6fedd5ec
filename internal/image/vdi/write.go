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
	// block is the only size of a block that QEMU reads and VirtualBox writes, in bytes.
	block = 1 << 20
	// tablePlace is where the table begins; it and the data are aligned as VirtualBox does it.
	tablePlace = 1 << 20
	// unit is the smallest hole worth leaving inside a block, in bytes.
	unit = 64 << 10
	// maxSize keeps the offset of the data below 4 GiB, in bytes.
	maxSize = 512 << 40
)

// target writes the blocks in the order of the disk.
type target struct {
	f       driver.WriteFile
	head    header
	fixed   bool
	table   *driver.Table
	data    int64 // where the first block lies
	next    uint32
	current int64 // number of the block that was begun last, -1 before the first
	slots   driver.Slots
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
		f: f, fixed: o.Subformat == fixedDisk, current: -1, data: units.AlignUp(tablePlace+4*blocks, units.MiB),
		table: driver.NewTable(f, tablePlace, 4*blocks, binary.LittleEndian),
	}
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

// template is the header of the source.
type template struct{ header }

// reports returns what a BIOS reports of a disk of size bytes that create makes: what o wants, or the source states.
// Zero leaves it to VirtualBox, which looks at the partition table.
func reports(size int64, o driver.Options) driver.Geometry {
	g := o.BIOS
	if from, ok := o.Template.(*template); ok && g == (driver.Geometry{}) {
		g = from.bios()
	}
	return g.Over(size).Clipped()
}

// bios returns the geometry for a BIOS, zero for none. VirtualBox reads the other one where the header ends in front
// of this. Source: VirtualBox, src/VBox/Storage/VDI.cpp, getImageLCHSGeometry.
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

// identity returns a UUID that follows from the copy.
func identity(seed []byte, of string) ondisk.GUID {
	h := sha256.New()
	h.Write([]byte(of))
	h.Write(seed)
	return ondisk.CustomGUID(h.Sum(nil))
}

// Unit returns less than a block: what is never written of a block stays a hole of the file.
func (*target) Unit() int64 { return unit }

// Reserve begins the blocks of [off, off+n) that were not begun yet.
func (t *target) Reserve(off, n int64) error {
	for end := off + n; off < end; {
		i := off / block
		if err := t.begin(i); err != nil {
			return err
		}
		piece := min(end, (i+1)*block) - off
		t.slots.Add(off, piece, t.data+int64(t.next-1)*block+off%block)
		off += piece
	}
	return nil
}

// begin gives the blocks up to i their places: of a fixed disk all, of others i alone.
func (t *target) begin(i int64) error {
	for t.current < i {
		t.current++
		if !t.fixed {
			t.current = i
		}
		if err := t.table.Set(t.current, t.next); err != nil {
			return err
		}
		t.next++
	}
	return nil
}

// WriteAt writes what was reserved.
func (t *target) WriteAt(p []byte, off int64) (int, error) { return t.slots.WriteAt(t.f, p, off) }

// Finish writes the table, and the header last: before that the file is no VDI.
func (t *target) Finish() error {
	if t.fixed {
		if err := t.begin(int64(t.head.Blocks) - 1); err != nil {
			return err
		}
	}
	t.head.Allocated = t.next
	if err := t.table.Finish(); err != nil {
		return err
	}
	if err := t.f.Truncate(t.data + int64(t.next)*block); err != nil {
		return err
	}
	if err := t.f.Sync(); err != nil {
		return err
	}
	front := make([]byte, atMagic)
	copy(front, title)
	if _, err := t.f.WriteAt(append(front, ondisk.Encode(binary.LittleEndian, &t.head)...), 0); err != nil {
		return err
	}
	return t.f.Sync()
}
