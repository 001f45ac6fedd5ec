// Package vdi reads and writes the disks of VirtualBox: dynamic and fixed ones.
//
// Source: VirtualBox, src/VBox/Storage/VDICore.h and VDI.cpp, called VDICore.h below, and QEMU, block/vdi.c. Everything
// is little-endian.
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

// Fields by their offset in the file, in bytes, and their values. Spec: VDICore.h, VDIPREHEADER and VDIHEADER1PLUS.
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

	// Sizes of the header behind the version, with and without the second geometry.
	headerBytes = 400
	shortHeader = 384

	// unstored entries are those of blocks that were never written, and of blocks that were discarded.
	unstored = 0xfffffffe

	sector     = 512     // the only size
	tableCache = 4 << 20 // bytes of the table kept in memory
	maxBlock   = units.GiB
)

type geometry struct{ Cylinders, Heads, Sectors, SectorBytes uint32 }

// header is the file from the magic number on.
type header struct {
	Magic, Version                              uint32
	HeaderBytes, Type, Flags                    uint32
	Comment                                     [256]byte
	Table, Data                                 uint32 // offsets in the file, bytes
	Geometry                                    geometry
	_                                           uint32
	Size                                        uint64 // of the disk, bytes
	Block, Extra                                uint32 // bytes of a block, and what stands in front of each
	Blocks, Allocated                           uint32
	Created, Modified, Parent, ParentOfModified ondisk.GUID
	Logical                                     geometry
}

func detect(head, _ []byte) bool {
	return len(head) >= atVersion && binary.LittleEndian.Uint32(head[atMagic:]) == magic
}

// names returns which disk a snapshot completes: it has its UUID, and no name of a file.
func names(f driver.File) (driver.Names, error) {
	head, err := ondisk.Bytes(f, 0, min(f.Size(), atMagic+headerBytes))
	if err != nil || !detect(head, nil) {
		return driver.Names{}, err
	}
	var h header
	if _, err := ondisk.Decode(f, atMagic, &h); err != nil {
		return driver.Names{Broken: true}, nil //nolint:nilerr // what it completes is not known
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
	if g.Cylinders > 0 && g.Heads <= 255 && g.Sectors > 0 && g.Sectors <= 63 { // what the BIOS interface can say
		img.Heads, img.Sectors = int(g.Heads), int(g.Sectors)
	}
	return img, nil
}

// check refuses a header that cannot be right, or that this program does not read.
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
		return fmt.Errorf("vdi header: %w: type %d with parent %s: a snapshot does not name the file of its parent; "+
			"merge it, as VBoxManage clonemedium does", ondisk.ErrUnsupported, x.Type, x.Parent)
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

// checkPlaces checks the size of the disk against the table, and that against the file.
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
	// QEMU rounds such a size up too: no disk ends inside a sector.
	x.size = min(units.AlignUp(ondisk.I64(x.Size), units.SectorSize), most)
	return nil
}

// run returns the map: table entry, block. Neighbours that lie in order in the file are one run.
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
		r.Len = min(r.Len, block-into) // a block behind this one is not whole
	}
	if r.Off+r.Len > x.file.Size() {
		return disk.Run{}, x.outside(i, first)
	}
	return r, nil
}

// maxRun bounds the entries that are looked at for one run.
const maxRun = 4096

func (x *image) blocks() int64 { return (x.size-1)/int64(x.Block) + 1 }

func (x *image) entry(i int64) (uint32, error) { return x.tabs.U32(int64(x.Table) + 4*i) }

// outside is the error of an entry that points behind the end of the file.
func (x *image) outside(i int64, entry uint32) error {
	return &ondisk.FormatError{
		What: "vdi block table", Off: int64(x.Table) + 4*i, Field: "entry", Got: entry, Past: true,
		Want: fmt.Sprintf("a block of %d bytes that ends by byte %d, where the file does", x.Block, x.file.Size()),
	}
}

// faults walks the table once: a reader meets a block outside of the file, but never two parts of the disk that share
// one.
func (x *image) faults() ([]ondisk.Issue, error) {
	used := ondisk.NewPlaceSet(1)
	var stored, outside, shared int64
	first := ""
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
			if outside++; outside == 1 {
				first = x.outside(i, entry).Error()
			}
		case used.Add(uint64(entry)):
			if shared++; shared == 1 && first == "" {
				first = fmt.Sprintf("block %d of the file is used twice", entry)
			}
		}
		if outside+shared > maxFaults {
			break
		}
	}
	return x.issues(stored, outside+shared, first, used.Full()), nil
}

// maxFaults is when a table is no table, and is not read to its end.
const maxFaults = 1 << 16

func (x *image) issues(stored, faults int64, first string, full bool) (out []ondisk.Issue) {
	if faults > 0 {
		text := fmt.Sprintf("%d entries of blocks outside of the file or in use; first: %s", faults, first)
		return []ondisk.Issue{{
			Code: "vdi-tables", Effect: ondisk.Broken, Text: text,
			Err: fmt.Errorf("vdi block table: %w: %s", ondisk.ErrFormat, text),
		}}
	}
	orphans := int64(x.Allocated) - stored
	if orphans < 0 {
		out = append(out, ondisk.Issue{
			Code: "vdi-allocated", Effect: ondisk.Warn,
			Text: fmt.Sprintf("the header counts %s, and the table has %d: the next write of VirtualBox would hit one "+
				"that is in use", units.Counted(int64(x.Allocated), "block"), stored),
			Remedy: "do not start it before it is copied: a copy has them all, and the right count",
		})
	}
	if orphans > 0 {
		out = append(out, ondisk.Issue{
			Code: "orphaned-data", Effect: ondisk.Note,
			Text: fmt.Sprintf("%s of the file (%s) used by no part of the disk", units.Counted(orphans, "block"),
				units.Format(orphans*int64(x.Block))),
		})
	}
	if full {
		out = append(out, driver.Unchecked("vdi-tables-unchecked", "blocks"))
	}
	return out
}
