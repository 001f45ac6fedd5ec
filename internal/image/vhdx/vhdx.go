// Package vhdx reads and writes disks of Hyper-V in the VHDX format, fixed and dynamic. It only reads differencing
// disks.
//
// Specification: [MS-VHDX] Virtual Hard Disk v2 (VHDX) File Format; section numbers are from the revision of 2018. All
// numbers are little-endian.
package vhdx

import (
	"bytes"
	"cmp"
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

const name = "vhdx"

// Names of the subformats. A differencing disk is only read.
const (
	dynamic      = "dynamic"
	fixed        = "fixed"
	differencing = "differencing"
)

// Format is VHDX.
var Format = driver.Format{
	Name:        name,
	Title:       "VHDX",
	Detect:      detect,
	Open:        open,
	Create:      create,
	Subformats:  []string{dynamic, fixed},
	Names:       names,
	Glance:      glance,
	Extensions:  []string{".vhdx", ".avhdx"},
	SectorSizes: true,
}

// Fixed sizes of the specification, in bytes, and the cache size.
const (
	mib        = 1 << 20
	sectorSize = 4 << 10 // size of a log sector
	tableCache = 4 << 20 // cache for BAT and sector bitmaps
)

const signature = "vhdxfile"

func detect(head, _ []byte) bool { return bytes.HasPrefix(head, []byte(signature)) }

// image is an opened VHDX.
type image struct {
	file   driver.File
	view   disk.Mapped // the file after replay of the log
	head   fileHeader
	used   []structure // structures other than blocks, by offset
	bat    disk.Range
	meta   metadata
	tabs   *ondisk.Pages
	parent *driver.Image // nil without parent
	issues []ondisk.Issue
}

func open(s *driver.Source) (*driver.Image, error) {
	x, err := load(s.File, s.Memory(tableCache))
	if err != nil {
		return nil, err
	}
	if x.meta.hasParent() {
		if err := x.openParent(s); err != nil {
			return nil, err
		}
	}
	id, err := ondisk.Bytes(s.File, 0, int64(len(fileIdentifier{})))
	if err != nil {
		return nil, err
	}
	img := &driver.Image{
		Disk:      disk.New(x.meta.size, x.meta.logical, x.run),
		Subformat: x.meta.subformat(),
		Issues:    x.issues,
		Check:     x.check,
		Template:  &template{fileIdentifier(id), x.head.DataWriteGUID, x.meta},
		ContentID: x.head.DataWriteGUID.String(),
	}
	img.Details = []driver.Detail{
		{Name: "creator", Value: ondisk.UTF16Z(id[len(signature):], binary.LittleEndian)},
		{Name: "block size", Value: units.Format(x.meta.blockSize)},
		{Name: "physical sector size", Value: units.Format(x.meta.physical)},
		{Name: "virtual disk id", Value: x.meta.diskID.String()},
		{Name: "data write guid", Value: x.head.DataWriteGUID.String()},
	}
	return img, nil
}

// load reads the file up to the metadata; cache is in bytes. It reads only headers and log before the replay. Spec:
// 2.3.3.
func load(f driver.File, cache int64) (*image, error) {
	x := &image{file: f}
	for _, step := range []func() error{x.readHeaders, x.replay, x.readRegions, x.readBATSize} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	x.tabs = ondisk.NewPages(x.view, cache)
	return x, nil
}

// readBATSize checks the size of the BAT against the disk size.
func (x *image) readBATSize() error {
	if need := 8 * x.meta.entries(); need > x.bat.Len {
		return ondisk.Field("vhdx region table", "length of the BAT", x.bat.Off, x.bat.Len,
			fmt.Sprintf("at least %d bytes for the %d entries of a disk of %d bytes", need, x.meta.entries(),
				x.meta.size))
	}
	return nil
}

// openParent opens the parent, which holds the data of absent blocks.
func (x *image) openParent(s *driver.Source) error {
	ref, err := x.meta.locator.ref()
	if err != nil {
		return err
	}
	x.parent, err = s.Parent(ref)
	if err != nil {
		return err
	}
	if got := x.parent.Disk.SectorSize(); got != x.meta.logical {
		return ondisk.Field("vhdx metadata", "logical sector size", x.meta.at, x.meta.logical,
			fmt.Sprintf("%d, which the parent has", got))
	}
	return nil
}

// fileIdentifier is the start of the file. Spec: 2.2.1.
type fileIdentifier [520]byte

// names returns the names of the parent in a VHDX, and none for a file of another format.
func names(f driver.File) (driver.Names, error) {
	head := make([]byte, min(f.Size(), int64(len(signature))))
	if err := ondisk.ReadFull(f, head, 0); err != nil {
		return driver.Names{}, err
	}
	if !detect(head, nil) {
		return driver.Names{}, nil
	}
	x, err := load(f, tableCache)
	switch {
	case damaged(err):
		return driver.Names{Broken: true}, nil
	case err != nil:
		return driver.Names{}, err
	}
	return driver.Names{Parents: x.meta.locator.paths()}, nil
}

// glance is names for a file with an empty log. It skips the checksums of the region tables, which cover most of the
// bytes to read. If only the second table is valid, it can miss a parent, which opening the file then finds.
func glance(f driver.File) (driver.Names, error) {
	x := &image{file: f}
	if err := x.readHeaders(); err != nil || x.head.LogGUID != (ondisk.GUID{}) {
		return names(f)
	}
	x.view = disk.New(f.Size(), sectorSize, disk.Whole(f, f.Size()))
	table, err := ondisk.Bytes(f, atRegions1, glanced)
	if err != nil || string(table[:4]) != "regi" || binary.LittleEndian.Uint32(table[8:]) > maxGlanced {
		return names(f)
	}
	metadata, err := x.regions(copyOf{at: atRegions1, raw: table})
	if err != nil || x.meta.read(f, metadata) != nil || x.meta.hasParent() {
		return names(f)
	}
	return driver.Names{}, nil
}

// Bytes of a region table read by glance, and the number of entries in them.
const (
	glanced    = 4 << 10
	maxGlanced = (glanced - 16) / 32
)

// damaged reports whether an error is due to the content of a file and not to reading it.
func damaged(err error) bool {
	if _, refused := errors.AsType[*ondisk.Refusal](err); refused {
		return true
	}
	return ondisk.Understood(err) || errors.Is(err, ondisk.ErrReference)
}

// change is one change that the log makes to the file.
type change struct {
	disk.Range
	sector *logSector // nil for zeros
}

// logSector is the source of a change of 4 KiB, read on demand. Its descriptor in the log holds the first 8 and the
// last 4 bytes.
type logSector struct {
	src      io.ReaderAt
	at       int64 // file offset of the data sector
	leading  [8]byte
	trailing [4]byte
}

// ReadAt reads from the restored sector.
func (s *logSector) ReadAt(p []byte, off int64) (int, error) {
	var b [sectorSize]byte
	if err := ondisk.ReadFull(s.src, b[:], s.at); err != nil {
		return 0, err
	}
	copy(b[:], s.leading[:])
	copy(b[sectorSize-len(s.trailing):], s.trailing[:])
	n := copy(p, b[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// newest is a heap of the changes that cover the current offset, with the latest on top.
type newest struct {
	of    []change
	index []int
}

func (h *newest) Len() int           { return len(h.index) }
func (h *newest) Less(i, j int) bool { return h.index[i] > h.index[j] }
func (h *newest) Swap(i, j int)      { h.index[i], h.index[j] = h.index[j], h.index[i] }
func (h *newest) Push(v any)         { h.index = append(h.index, v.(int)) }

// Pop removes and returns the last element.
func (h *newest) Pop() any {
	last := h.index[len(h.index)-1]
	h.index = h.index[:len(h.index)-1]
	return last
}

func (h *newest) top() change { return h.of[h.index[0]] }

// drop removes changes from the top that end at pos or before.
func (h *newest) drop(pos int64) {
	for h.Len() > 0 && h.top().End() <= pos {
		heap.Pop(h)
	}
}

// flatten returns sorted, disjoint changes with the same effect. It cuts only changes to zeros: all offsets are
// multiples of 4 KiB, the size of a data sector.
func flatten(changes []change) []disk.Piece {
	order := make([]int, len(changes))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(changes[a].Off, changes[b].Off) })
	open := &newest{of: changes}
	var out []disk.Piece
	for pos := int64(0); ; {
		for len(order) > 0 && changes[order[0]].Off <= pos {
			heap.Push(open, order[0])
			order = order[1:]
		}
		open.drop(pos)
		end := int64(math.MaxInt64)
		if len(order) > 0 {
			end = changes[order[0]].Off
		}
		if open.Len() > 0 {
			c := open.top()
			end = min(end, c.End())
			p := disk.Piece{Range: disk.Range{Off: pos, Len: end - pos}}
			if c.sector != nil {
				p.Src = c.sector
			}
			out = append(out, p)
		} else if len(order) == 0 {
			return out
		}
		pos = end
	}
}
