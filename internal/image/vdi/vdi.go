// Package vdi reads and writes disks of VirtualBox, dynamic and fixed.
//
// Source: VirtualBox, src/VBox/Storage/VDICore.h and VDI.cpp, called VDICore.h below, and QEMU, block/vdi.c. All fields
// are little-endian.
package vdi

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

const (
	dynamicDisk = "dynamic"
	fixedDisk   = "fixed"
)

// Format is VDI.
var Format = driver.Format{
	Name:       "vdi",
	Title:      "VDI",
	Detect:     detect,
	Open:       open,
	Create:     create,
	Reports:    reports,
	Subformats: []string{dynamicDisk, fixedDisk},
	Names:      names,
	Extensions: []string{".vdi"},
}

// Byte offsets of fields in the file, and field values. Spec: VDICore.h, VDIPREHEADER and VDIHEADER1PLUS.
const (
	atMagic       = 0x40
	atVersion     = 0x44
	atHeaderBytes = 0x48
	atType        = 0x4c
	atTable       = 0x154
	atData        = 0x158
	atSector      = 0x168
	atSize        = 0x170
	atBlock       = 0x178
	atExtra       = 0x17c
	atBlocks      = 0x180
	atAllocated   = 0x184

	magic       = 0xbeda107f
	version     = 1<<16 | 1 // 1.1
	typeDynamic = 1
	typeFixed   = 2

	// Header sizes, counted from behind the version: with and without the second geometry.
	headerBytes = 400
	shortHeader = 384

	// unstored is the lowest table entry of an absent block, never written or discarded.
	unstored = 0xfffffffe

	sector     = 512     // the only size
	tableCache = 4 << 20 // bytes of the table kept in memory
	maxBlock   = units.GiB
)

type geometry struct{ Cylinders, Heads, Sectors, SectorBytes uint32 }

// header is the start of the file from the magic number on.
type header struct {
	Magic, Version                              uint32
	HeaderBytes, Type, Flags                    uint32
	Comment                                     [256]byte
	Table, Data                                 uint32 // offsets in the file, bytes
	Geometry                                    geometry
	_                                           uint32
	Size                                        uint64 // of the disk, bytes
	Block, Extra                                uint32 // bytes of a block, and of extra data in front of each
	Blocks, Allocated                           uint32
	Created, Modified, Parent, ParentOfModified ondisk.GUID
	Logical                                     geometry
}

func detect(head, _ []byte) bool {
	return len(head) >= atVersion && binary.LittleEndian.Uint32(head[atMagic:]) == magic
}

// names returns the UUID of the parent of a snapshot. The format stores no name of the parent's file.
func names(f driver.File) (driver.Names, error) {
	head, err := ondisk.Bytes(f, 0, min(f.Size(), atMagic+headerBytes))
	if err != nil || !detect(head, nil) {
		return driver.Names{}, err
	}
	var h header
	if _, err := ondisk.Decode(f, atMagic, &h); err != nil {
		return driver.Names{Broken: true}, nil //nolint:nilerr // its parent is unknown
	}
	if h.Parent == (ondisk.GUID{}) {
		return driver.Names{}, nil
	}
	return driver.Names{Lineage: h.Parent.String()}, nil
}

// image is an opened disk.
type image struct {
	header
	file driver.File
	tabs *ondisk.Pages
	size int64 // of the disk, bytes
}

func open(s *driver.Source) (*driver.Image, error) {
	x := &image{file: s.File, tabs: ondisk.NewPages(s.File, s.Memory(tableCache))}
	if _, err := ondisk.Decode(s.File, atMagic, &x.header); err != nil {
		return nil, fmt.Errorf("vdi header: %w", err)
	}
	if err := x.check(); err != nil {
		return nil, err
	}
	img := &driver.Image{
		ContentID: x.Created.String(), Template: &template{x.header}, BIOS: x.bios(),
		Subformat: dynamicDisk, Disk: disk.New(x.size, units.SectorSize, x.run), Check: x.faults,
		Details: []driver.Detail{
			{Name: "block size", Value: units.Format(int64(x.Block))},
			{Name: "unique id", Value: x.Created.String()},
		},
	}
	if comment, _, _ := bytes.Cut(x.Comment[:], []byte{0}); len(comment) > 0 {
		img.Details = append(img.Details, driver.Detail{Name: "comment", Value: fmt.Sprintf("%q", comment)})
	}
	if x.Type == typeFixed {
		img.Subformat = fixedDisk
	}
	g := x.Geometry
	if x.HeaderBytes >= headerBytes && g.Cylinders == 0 {
		g = x.Logical
	}
	if g.Cylinders > 0 && g.Heads <= 255 && g.Sectors > 0 && g.Sectors <= 63 { // the limits of the BIOS interface
		img.Heads, img.Sectors = int(g.Heads), int(g.Sectors)
	}
	return img, nil
}

// check returns an error for invalid headers and unsupported features.
func (x *image) check() error {
	fault := func(name string, off int64, got, want any) error {
		return ondisk.Field("vdi header", name, off, got, want)
	}
	switch {
	case x.Version != version:
		return fmt.Errorf("vdi header: %w: version %d.%d, want 1.1; convert it with VBoxManage clonemedium",
			ondisk.ErrUnsupported, x.Version>>16, x.Version&0xffff)
	case x.HeaderBytes < shortHeader:
		return fault("header size", atHeaderBytes, x.HeaderBytes, fmt.Sprintf("at least %d", shortHeader))
	case x.Type != typeDynamic && x.Type != typeFixed, x.Parent != ondisk.GUID{}, x.ParentOfModified != ondisk.GUID{}:
		return fmt.Errorf("vdi header: %w: type %d with parent %s: a snapshot does not name the file of its "+
			"parent; merge it with VBoxManage clonemedium", ondisk.ErrUnsupported, x.Type, x.Parent)
	case x.Geometry.SectorBytes != sector && x.Geometry.SectorBytes != 0:
		return fault("sector size", atSector, x.Geometry.SectorBytes, sector)
	case x.Extra != 0:
		return fmt.Errorf("vdi header: %w: %d bytes in front of each block; convert it with VBoxManage clonemedium",
			ondisk.ErrUnsupported, x.Extra)
	case x.Block < sector || int64(x.Block) > maxBlock || !units.IsPowerOfTwo(int64(x.Block)):
		return fault("block size", atBlock, x.Block, fmt.Sprintf("a power of two from %d to %d", sector, maxBlock))
	case x.Allocated > x.Blocks:
		return fault("blocks allocated", atAllocated, x.Allocated, fmt.Sprintf("at most %d, the number of blocks",
			x.Blocks))
	case x.Blocks >= unstored:
		return fault("number of blocks", atBlocks, x.Blocks, fmt.Sprintf("less than %d", uint32(unstored)))
	}
	return x.checkPlaces(fault)
}

// checkPlaces checks the disk size against the table, and the table against the file size.
func (x *image) checkPlaces(fault func(name string, off int64, got, want any) error) error {
	table, data, most := int64(x.Table), int64(x.Data), int64(x.Blocks)*int64(x.Block)
	switch {
	case x.Size == 0 || x.Size > ondisk.U64(most):
		return fault("disk size", atSize, x.Size, fmt.Sprintf("1 to %d, which the table has room for", most))
	case table < atHeaderBytes+int64(x.HeaderBytes):
		return fault("offset of the table", atTable, x.Table,
			fmt.Sprintf("at least %d", atHeaderBytes+int64(x.HeaderBytes)))
	case table+4*int64(x.Blocks) > x.file.Size():
		return &ondisk.FormatError{
			What: "vdi header", Off: atBlocks, Field: "number of blocks", Got: x.Blocks,
			Want: fmt.Sprintf("a table of 4 bytes for each that fits in the file from byte %d on", table), Past: true,
		}
	case data < table+4*int64(x.Blocks):
		return fault("offset of the data", atData, x.Data, fmt.Sprintf("at least %d, behind the table",
			table+4*int64(x.Blocks)))
	}
	// No disk ends inside a sector. QEMU rounds such a size up too.
	x.size = min(units.AlignUp(ondisk.I64(x.Size), units.SectorSize), most)
	return nil
}

// run maps a disk offset through the table. Consecutive blocks that are adjacent in the file form one run.
func (x *image) run(off int64) (disk.Run, error) {
	block := int64(x.Block)
	i, into := off/block, off%block
	first, err := x.entry(i)
	if err != nil {
		return disk.Run{}, err
	}
	last := i + 1
	for ; last < x.blocks() && last-i < maxRun; last++ {
		next, err := x.entry(last)
		if err != nil {
			return disk.Run{}, err
		}
		if (first < unstored) != (next < unstored) || first < unstored && int64(next) != int64(first)+last-i {
			break
		}
	}
	r := disk.Run{Len: min(last*block, x.size) - off}
	if first >= unstored {
		return r, nil
	}
	r.Src, r.Off = x.file, int64(x.Data)+int64(first)*block+into
	if r.Off+r.Len > x.file.Size() {
		r.Len = min(r.Len, block-into) // a later block exceeds the file
	}
	if r.Off+r.Len > x.file.Size() {
		return disk.Run{}, x.outside(i, first)
	}
	return r, nil
}

// maxRun limits the table entries of one run.
const maxRun = 4096

func (x *image) blocks() int64 { return (x.size-1)/int64(x.Block) + 1 }

func (x *image) entry(i int64) (uint32, error) { return x.tabs.U32(int64(x.Table) + 4*i) }

// outside returns the error of an entry past the end of the file.
func (x *image) outside(i int64, entry uint32) error {
	return &ondisk.FormatError{
		What: "vdi block table", Off: int64(x.Table) + 4*i, Field: "entry", Got: entry, Past: true,
		Want: fmt.Sprintf("a block of %d bytes that ends by byte %d, where the file does", x.Block, x.file.Size()),
	}
}

// Kinds of faults.
const (
	outside = "blocks outside of the file"
	shared  = "blocks at a place in use"
)

// maxFaults is the number of faults at which the check stops.
const maxFaults = 1 << 16

// faults walks the table once. Reads find a block outside of the file, but never two table entries with the same block.
func (x *image) faults() ([]ondisk.Issue, error) {
	var c driver.Faults
	used, stored := ondisk.NewPlaceSet(1), int64(0)
	for i := range x.blocks() {
		entry, err := x.entry(i)
		if err != nil {
			return nil, err
		}
		if entry >= unstored {
			continue
		}
		stored++
		size := min(int64(x.Block), x.size-i*int64(x.Block))
		switch {
		case int64(x.Data)+int64(entry)*int64(x.Block)+size > x.file.Size():
			c.Add(outside, "%v", x.outside(i, entry))
		case used.Add(uint64(entry)):
			c.Add(shared, "block %d of the file is used twice", entry)
		}
		if c.Count(outside)+c.Count(shared) > maxFaults {
			break
		}
	}
	if c.Any() {
		like := ondisk.Issue{Code: "vdi-tables", Effect: ondisk.Broken}
		return c.Issues(like, "vdi block table", outside, shared), nil
	}
	return x.issues(stored, used.Full()), nil
}

// issues returns the issues of a valid table. stored is its number of blocks; full means that some blocks were not
// compared.
func (x *image) issues(stored int64, full bool) (out []ondisk.Issue) {
	orphans := int64(x.Allocated) - stored
	if orphans < 0 {
		out = append(out, ondisk.Issue{
			Code: "vdi-allocated", Effect: ondisk.Warn,
			Text: fmt.Sprintf("the header counts %s, but the table has %d: the next write of VirtualBox would "+
				"overwrite a block in use", units.Counted(int64(x.Allocated), "block"), stored),
			Remedy: "copy the disk before you start the machine: a copy has all blocks and the correct count",
		})
	}
	if orphans > 0 {
		out = append(out, ondisk.Issue{
			Code: "orphaned-data", Effect: ondisk.Note,
			Text: fmt.Sprintf("%s of the file (%s) not used by the disk", units.Counted(orphans, "block"),
				units.Format(orphans*int64(x.Block))),
		})
	}
	if full {
		out = append(out, driver.Unchecked("vdi-tables-unchecked", "blocks"))
	}
	return out
}
