package vhdx

import (
	"encoding/binary"
	"fmt"
	"unicode/utf16"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// template holds the metadata of a VHDX source for its copy.
type template struct {
	identifier fileIdentifier
	dataWrite  ondisk.GUID
	meta       metadata
}

// Layout of a new file, as in Hyper-V: header section, log, metadata, BAT, blocks.
const (
	newLog       = 1 * mib
	newMetadata  = 2 * mib
	newBAT       = 3 * mib
	defaultBlock = 32 * mib // bytes; as in Hyper-V
	// defaultPhysical is Hyper-V's physical sector size for a new disk, also with logical sectors of 512 bytes.
	defaultPhysical = 4096
	// writeUnit is the smallest useful hole inside a block, in bytes.
	writeUnit = 64 << 10
)

// target writes a VHDX. Only the current BAT page is in memory: the BAT of 64 TiB can have 512 MiB.
type target struct {
	driver.Blocks
	meta  metadata
	ids   identity
	size  int64 // bytes of the BAT region
	next  int64 // file offset of the next block
	page  int64 // index of the current BAT page
	work  [batPage]byte
	dirty bool
}

// batPage is the size of a BAT page in bytes.
const batPage = 4 << 10

func create(f driver.WriteFile, size int64, o driver.Options) (driver.Target, error) {
	t := &target{}
	from, _ := o.Template.(*template)
	t.meta = metadata{blockSize: defaultBlock, logical: o.SectorSize, physical: defaultPhysical, size: size}
	if t.meta.logical == 0 {
		t.meta.logical = units.SectorSize
	}
	if from != nil {
		t.meta.blockSize, t.meta.physical = from.meta.blockSize, from.meta.physical
	}
	if o.Subformat == fixed {
		t.meta.flags = flagLeaveAllocated
	}
	if size > maxDisk {
		return nil, fmt.Errorf("VHDX of %d bytes: %w of 64 TiB; choose --to raw", size, ondisk.ErrLimit)
	}
	if size <= 0 || size%t.meta.logical != 0 {
		return nil, fmt.Errorf("VHDX of %d bytes: %w, want a multiple of its sectors of %d bytes; choose --to raw",
			size, ondisk.ErrUnsupported, t.meta.logical)
	}
	t.ids = newIdentity(from, o.Seed)
	t.meta.diskID = t.ids.disk
	t.size = units.AlignUp(8*t.meta.entries(), mib)
	t.next = t.firstBlock()
	t.Blocks = driver.Blocks{File: f, Size: t.meta.blockSize, Allocate: t.allocate}
	end := t.next
	if o.Subformat == fixed {
		end += t.meta.blocks() * t.meta.blockSize
	}
	return t, f.Truncate(end)
}

func (t *target) firstBlock() int64 { return newBAT + t.size }

func (t *target) isFixed() bool { return t.meta.flags&flagLeaveAllocated != 0 }

// Unit returns less than a block, so that unwritten parts of a block stay holes.
func (t *target) Unit() int64 { return writeUnit }

// allocate returns the file offset of a block: a fixed one on a fixed disk, otherwise the end of the file.
func (t *target) allocate(block int64) (int64, error) {
	if t.isFixed() {
		return t.firstBlock() + block*t.meta.blockSize, nil
	}
	place := t.next
	t.next += t.meta.blockSize
	return place, t.place(block, place)
}

// place sets the BAT entry of a block to file offset off.
func (t *target) place(block, off int64) error {
	at := 8 * t.meta.index(block)
	if page := at / batPage; page != t.page {
		if err := t.flush(); err != nil {
			return err
		}
		t.page = page
	}
	binary.LittleEndian.PutUint64(t.work[at%batPage:], ondisk.U64(off)/mib<<20|statePresent)
	t.dirty = true
	return nil
}

// flush writes the current BAT page. A page without a block stays a hole.
func (t *target) flush() error {
	if !t.dirty {
		return nil
	}
	_, err := t.File.WriteAt(t.work[:], newBAT+t.page*batPage)
	clear(t.work[:])
	t.dirty = false
	return err
}

// Finish writes BAT, metadata, region tables and headers, and the file identifier last: before that the file is no
// VHDX.
func (t *target) Finish() error {
	steps := []func() error{
		t.flush, t.writeFixedBAT, t.writeMetadata, t.writeRegions, t.writeHeaders, t.File.Sync,
		t.writeIdentifier, t.File.Sync,
	}
	if !t.isFixed() {
		steps = append([]func() error{func() error { return t.File.Truncate(t.next) }}, steps...)
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// writeFixedBAT sets the BAT entries of a fixed disk.
func (t *target) writeFixedBAT() error {
	if !t.isFixed() {
		return nil
	}
	for block := range t.meta.blocks() {
		if err := t.place(block, t.firstBlock()+block*t.meta.blockSize); err != nil {
			return err
		}
	}
	return t.flush()
}

// writeMetadata writes the five items of a disk without parent, one behind the other.
func (t *target) writeMetadata() error {
	le := binary.LittleEndian
	items := []struct {
		id    ondisk.GUID
		flags uint32
		value []byte
	}{
		{itemParameters, itemIsRequired, le.AppendUint32(le.AppendUint32(nil, ondisk.U32(t.meta.blockSize)),
			t.meta.flags)},
		{itemDiskSize, itemIsRequired | itemIsDisk, le.AppendUint64(nil, ondisk.U64(t.meta.size))},
		{itemDiskID, itemIsRequired | itemIsDisk, t.meta.diskID[:]},
		{itemLogical, itemIsRequired | itemIsDisk, le.AppendUint32(nil, ondisk.U32(t.meta.logical))},
		{itemPhysical, itemIsRequired | itemIsDisk, le.AppendUint32(nil, ondisk.U32(t.meta.physical))},
	}
	head := metadataHeader{EntryCount: uint16(len(items))} //nolint:gosec // always five
	copy(head.Signature[:], "metadata")
	table := ondisk.Encode(le, head)
	var values []byte
	for _, i := range items {
		table = append(table, ondisk.Encode(le, metadataEntry{
			ItemID: i.id, Offset: ondisk.U32(metadataTableSize + int64(len(values))),
			Length: ondisk.U32(int64(len(i.value))), Flags: i.flags,
		})...)
		values = append(values, i.value...)
	}
	if _, err := t.File.WriteAt(table, newMetadata); err != nil {
		return err
	}
	_, err := t.File.WriteAt(values, newMetadata+metadataTableSize)
	return err
}

// writeRegions writes both copies of the region table. The rest of each table stays a hole.
func (t *target) writeRegions() error {
	regions := []regionEntry{
		{GUID: regionBAT, FileOffset: newBAT, Length: ondisk.U32(t.size), Required: 1},
		{GUID: regionMetadata, FileOffset: newMetadata, Length: mib, Required: 1},
	}
	head := regionHeader{EntryCount: ondisk.U32(int64(len(regions)))}
	copy(head.Signature[:], "regi")
	used := ondisk.Encode(binary.LittleEndian, head, regions)
	table := make([]byte, regionTableSize)
	copy(table, used)
	seal(table)
	for _, at := range []int64{atRegions1, atRegions2} {
		if _, err := t.File.WriteAt(table[:len(used)], at); err != nil {
			return err
		}
	}
	return nil
}

// writeHeaders writes both headers; the second is the current one.
func (t *target) writeHeaders() error {
	for i, at := range []int64{atHeader1, atHeader2} {
		h := fileHeader{
			SequenceNumber: ondisk.U64(int64(i) + 1), FileWriteGUID: t.ids.fileWrite, DataWriteGUID: t.ids.dataWrite,
			Version: 1, LogLength: mib, LogOffset: newLog,
		}
		copy(h.Signature[:], "head")
		b := ondisk.Encode(binary.LittleEndian, h)
		seal(b)
		if _, err := t.File.WriteAt(b, at); err != nil {
			return err
		}
	}
	return nil
}

func (t *target) writeIdentifier() error {
	_, err := t.File.WriteAt(t.ids.identifier[:], 0)
	return err
}

// newIdentifier returns the file identifier for a source that is no VHDX.
func newIdentifier() (id fileIdentifier) {
	copy(id[:], signature)
	for i, u := range utf16.Encode([]rune("trueup")) {
		binary.LittleEndian.PutUint16(id[len(signature)+2*i:], u)
	}
	return id
}
