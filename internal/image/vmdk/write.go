package vmdk

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// template holds the metadata of a VMDK source for its copy.
type template struct {
	*descriptor
	grainSize int64 // sectors
}

const (
	defaultGrain      = 128 // sectors, the default of VMware and qemu-img
	descriptorSectors = 20  // sectors, likewise
)

func create(f driver.WriteFile, size int64, o driver.Options) (driver.Target, error) {
	from, grain := sourceOf(o.Template, o.BIOS)
	if o.SectorSize == units.SectorSize && from.sectorSize() != o.SectorSize {
		from = from.without(sectorSizeKey)
	}
	kind := o.Subformat
	if kind == "" {
		kind = monolithicSparse
	}
	switch {
	case o.Over != nil:
		return newViewTarget(f, size, from, o)
	case kind == splitSparse, kind == splitFlat:
		return newSplitTarget(f, kind, size, grain, from, o)
	case kind == monolithicSparse, kind == streamOptimized:
		e := fmt.Sprintf("RW %d SPARSE \"%s\"", size/units.SectorSize, plainName(o.Name))
		text := from.copyFor(kind, size, []string{e}, o.Seed, o.BIOS)
		if kind == streamOptimized {
			return newStreamTarget(f, size, text)
		}
		return newSparseTarget(f, size, grain, text)
	}
	data, name, err := o.Beside("-flat")
	if err != nil {
		return nil, err
	}
	flat, err := driver.NewFlat(data, o.Offset, size)
	if err != nil {
		return nil, err
	}
	e := fmt.Sprintf("RW %d FLAT \"%s\" %d", size/units.SectorSize, name, o.Offset/units.SectorSize)
	if kind == vmfs {
		e = fmt.Sprintf("RW %d VMFS \"%s\"", size/units.SectorSize, name) // ESXi omits the offset
	}
	lines := append([]string{e}, offsetMark(o.Offset)...)
	return &flatTarget{flat, f, from.copyFor(kind, size, lines, o.Seed, o.BIOS)}, nil
}

// plainName returns the file's own name for its extent line. Readers ignore it, so an invalid name is replaced.
func plainName(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 || r == 0x7f || r == '"' }) {
		return "disk.vmdk"
	}
	return name
}

// sourceOf returns the initial descriptor and the grain size, from a VMDK source or else the defaults.
func sourceOf(tmpl any, bios driver.Geometry) (*descriptor, int64) {
	switch t := tmpl.(type) {
	case *template:
		return t.descriptor, t.grainSize
	case *descriptor:
		return t, defaultGrain
	}
	return plainDescriptor(bios), defaultGrain
}

// flatTarget writes the flat extent, then the descriptor.
type flatTarget struct {
	*driver.Flat
	descriptor driver.WriteFile
	text       []byte
}

func (t *flatTarget) Finish() error {
	if err := t.Flat.Finish(); err != nil {
		return err
	}
	return writeText(t.descriptor, t.text)
}

// writeText writes a descriptor to its file.
func writeText(f driver.WriteFile, text []byte) error {
	if _, err := f.WriteAt(text, 0); err != nil {
		return err
	}
	return f.Sync()
}

// sparseTarget writes a sparse file: header, embedded descriptor if any, both directories with their tables, grains in
// disk order. Only the current table is in memory; the others are on disk or are holes.
type sparseTarget struct {
	driver.Blocks
	h     sparseHeader
	text  []byte
	next  int64 // first free sector
	table int64 // current table, -1 before the first
	dirty bool
	work  [gtBytes]byte
}

func newSparseTarget(f driver.WriteFile, size, grain int64, text []byte) (*sparseTarget, error) {
	h := sparseHeader{
		Version: 1, Flags: flagNewLine | flagRedundant, Capacity: ondisk.U64(size / units.SectorSize),
		GrainSize: ondisk.U64(grain), NumGTEsPerGT: gtes, NewLine: [4]byte{'\n', ' ', '\r', '\n'},
	}
	copy(h.Magic[:], magicSparse)
	h.RGDOffset = 1
	if text != nil {
		h.DescriptorOffset = 1
		h.DescriptorSize = ondisk.U64(max(descriptorSectors, sectorsFor(int64(len(text)))))
		h.RGDOffset += h.DescriptorSize
	}
	gdSectors, gtSectors := sectorsFor(h.gdBytes()), h.tables()*gtBytes/units.SectorSize
	h.GDOffset = h.RGDOffset + ondisk.U64(gdSectors+gtSectors)
	h.OverHead = ondisk.U64(units.AlignUp(ondisk.I64(h.GDOffset)+gdSectors+gtSectors, grain))
	if h.OverHead > math.MaxUint32 {
		return nil, fmt.Errorf("monolithicSparse of %d bytes: %w: its tables alone pass the 32-bit sector numbers",
			size, ondisk.ErrLimit)
	}
	t := &sparseTarget{h: h, text: text, next: ondisk.I64(h.OverHead), table: -1}
	t.Blocks = driver.Blocks{File: f, Size: h.grainBytes(), Allocate: t.allocate}
	return t, nil
}

func sectorsFor(n int64) int64 { return (n + units.SectorSize - 1) / units.SectorSize }

func (t *sparseTarget) Unit() int64 { return t.h.grainBytes() }

// allocate assigns the next place in the file to a grain.
func (t *sparseTarget) allocate(grain int64) (int64, error) {
	if grain/gtes != t.table {
		if err := t.flush(); err != nil {
			return 0, err
		}
		t.table = grain / gtes
	}
	if t.next+ondisk.I64(t.h.GrainSize) > math.MaxUint32 {
		return 0, fmt.Errorf("monolithicSparse: %w: more than 2 TiB of data; choose --to vmdk:monolithicFlat or raw",
			ondisk.ErrLimit)
	}
	place := t.next
	binary.LittleEndian.PutUint32(t.work[4*(grain%gtes):], ondisk.U32(place))
	t.next += ondisk.I64(t.h.GrainSize)
	t.dirty = true
	return place * units.SectorSize, nil
}

// tablePlace returns the byte offset of table i, behind the directory at sector gd.
func (t *sparseTarget) tablePlace(gd uint64, i int64) int64 {
	return (ondisk.I64(gd)+sectorsFor(t.h.gdBytes()))*units.SectorSize + i*gtBytes
}

// flush writes both copies of the current table. A table without a grain stays a hole.
func (t *sparseTarget) flush() error {
	if !t.dirty {
		return nil
	}
	for _, gd := range []uint64{t.h.RGDOffset, t.h.GDOffset} {
		if _, err := t.File.WriteAt(t.work[:], t.tablePlace(gd, t.table)); err != nil {
			return err
		}
	}
	clear(t.work[:])
	t.dirty = false
	return nil
}

// Finish writes tables, directories and descriptor, and the header last: before that the file is no VMDK.
func (t *sparseTarget) Finish() error {
	if err := t.flush(); err != nil {
		return err
	}
	if err := t.File.Truncate(t.next * units.SectorSize); err != nil {
		return err
	}
	for _, gd := range []uint64{t.h.RGDOffset, t.h.GDOffset} {
		if err := t.writeDirectory(gd); err != nil {
			return err
		}
	}
	return t.h.seal(t.File, t.text)
}

// writeDirectory writes one directory in pieces: for 64 TiB it has 8 MiB.
func (t *sparseTarget) writeDirectory(gd uint64) error {
	const piece = 16 << 10 // entries
	for i := int64(0); i < t.h.tables(); i += piece {
		n := min(piece, t.h.tables()-i)
		b := make([]byte, 4*n)
		for j := range n {
			binary.LittleEndian.PutUint32(b[4*j:], ondisk.U32(t.tablePlace(gd, i+j)/units.SectorSize))
		}
		if _, err := t.File.WriteAt(b, ondisk.I64(gd)*units.SectorSize+4*i); err != nil {
			return err
		}
	}
	return nil
}

const (
	// splitSize is VMware's extent size for a split disk, in bytes: 4192256 sectors, or 2 GB minus 1 MiB, so that the
	// tables of a sparse extent also fit below 2 GB. qemu-img uses a whole 2 GB. It is a multiple of every unit.
	splitSize = 4192256 * units.SectorSize
	// maxWritten limits the extents of a new disk, since all files are open at once.
	maxWritten = 512
)

// splitTarget writes a disk as extents of splitSize, and the descriptor when all of them are complete.
type splitTarget struct {
	extents    []driver.Target
	descriptor driver.WriteFile
	text       []byte
}

// newSplitTarget creates the extents of a disk.
func newSplitTarget(
	f driver.WriteFile, kind string, size, grain int64, from *descriptor, o driver.Options,
) (*splitTarget, error) {
	if most := maxWritten * splitSize; size > most {
		return nil, fmt.Errorf("%s of %d bytes: %w of %d bytes in %d files; choose --to vmdk:%s", kind, size,
			ondisk.ErrLimit, most, maxWritten, monolithicSparse)
	}
	t := &splitTarget{descriptor: f}
	var lines []string
	for off := int64(0); off < size; off += splitSize {
		line, err := t.add(kind, min(splitSize, size-off), grain, o)
		if err != nil {
			return nil, err
		}
		lines = append(lines, line)
	}
	t.text = from.copyFor(kind, size, append(lines, offsetMark(o.Offset)...), o.Seed, o.BIOS)
	return t, nil
}

// add creates the next extent and returns its line.
func (t *splitTarget) add(kind string, size, grain int64, o driver.Options) (string, error) {
	number := len(t.extents) + 1
	if kind == splitFlat {
		f, name, err := o.Beside(fmt.Sprintf("-f%03d", number))
		if err != nil {
			return "", err
		}
		x, err := driver.NewFlat(f, o.Offset, size)
		t.extents = append(t.extents, x)
		return fmt.Sprintf("RW %d FLAT \"%s\" %d", size/units.SectorSize, name, o.Offset/units.SectorSize), err
	}
	f, name, err := o.Beside(fmt.Sprintf("-s%03d", number))
	if err != nil {
		return "", err
	}
	x, err := newSparseTarget(f, size, grain, nil)
	t.extents = append(t.extents, x)
	return fmt.Sprintf("RW %d SPARSE \"%s\"", size/units.SectorSize, name), err
}

// Unit returns the unit of every extent.
func (t *splitTarget) Unit() int64 { return t.extents[0].Unit() }

// Reserve places the parts of a range in their extents.
func (t *splitTarget) Reserve(off, n int64) error {
	return cut(off, n, func(i int, into, _, n int64) error { return t.extents[i].Reserve(into, n) })
}

// WriteAt writes the parts of a range to their extents.
func (t *splitTarget) WriteAt(p []byte, off int64) (int, error) {
	done := 0
	err := cut(off, int64(len(p)), func(i int, into, at, n int64) error {
		m, err := t.extents[i].WriteAt(p[at:at+n], into)
		done += m
		return err
	})
	return done, err
}

// cut splits a range of the disk at extent boundaries. part gets the index of the extent, the offsets of the piece in
// the extent and in the range, and its length.
func cut(off, n int64, part func(i int, into, at, n int64) error) error {
	for at := int64(0); at < n; {
		i, into := (off+at)/splitSize, (off+at)%splitSize
		m := min(splitSize-into, n-at)
		if err := part(int(i), into, at, m); err != nil {
			return err
		}
		at += m
	}
	return nil
}

// Finish finishes the extents, then writes the descriptor, without which they are no disk.
func (t *splitTarget) Finish() error {
	for _, x := range t.extents {
		if err := x.Finish(); err != nil {
			return err
		}
	}
	return writeText(t.descriptor, t.text)
}

// A view is a flat disk that maps ranges inside the files of another disk. Sectors that differ from the other disk lie
// in an additional file, the head.

// viewFiles returns the files that the extents do not use in sequence from byte 0 on. mark is as in shifted.
func viewFiles(extents []*extent, mark int64) (names []string) {
	if shifted(extents, mark) {
		return nil
	}
	next, seen := map[string]int64{}, map[string]bool{}
	for _, e := range extents {
		if !e.flat() {
			continue
		}
		if e.off != next[e.name] && !seen[e.name] {
			seen[e.name] = true
			names = append(names, e.name)
		}
		next[e.name] = e.off + e.size
	}
	return names
}

// offsetKey is the key of the mark of a shifted disk: its offset in each of its files, in bytes. Without the mark, an
// extent at an offset lies inside a disk of its own.
const offsetKey = "ddb.trueup.offset"

// offsetMark returns the line that marks a disk at an offset, or no line at offset 0.
func offsetMark(offset int64) []string {
	if offset == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s = \"%d\"", offsetKey, offset)}
}

// shifted reports whether all extents lie at the marked offset of files of their own, as trueup offset writes them.
// mark is 0 without a mark.
func shifted(extents []*extent, mark int64) bool {
	return mark > 0 && !slices.ContainsFunc(extents, func(e *extent) bool { return e.off != mark || !e.flat() })
}

// viewIssue warns of a view: its offsets differ from the offsets in the storage below.
func (d *descriptor) viewIssue() []ondisk.Issue {
	names := viewFiles(d.extents, d.ddbInt(offsetKey))
	if len(names) == 0 {
		return nil
	}
	var lent, size int64
	for _, e := range d.extents {
		if size += e.size; slices.Contains(names, e.name) {
			lent += e.size
		}
	}
	in := fmt.Sprintf("%.256q", names[0])
	if n := len(names) - 1; n > 0 {
		in += fmt.Sprintf(" and %d more of its files", n)
	}
	return []ondisk.Issue{{
		Code: driver.CodeView, Effect: ondisk.Warn,
		Text: fmt.Sprintf("it is a view, not a complete disk: %d of its %d bytes are in %s, at the offsets of "+
			"another disk. The storage sees those offsets. Writes to the view change these files, and then the "+
			"other disk is no longer usable by itself", lent, size, in),
		Remedy: "convert it to a complete disk (trueup convert --to vmdk:monolithicFlat); keep all files until then",
	}}
}

// viewTarget writes the head of a view, then the descriptor.
type viewTarget struct {
	flatTarget
	own []disk.Piece // pieces in the head
}

// newViewTarget creates a disk from the files of o.Over, with a head for the rest. It uses the split type and FLAT
// extents for QEMU, which rejects the type custom and VMFS extents at an offset, and skips ZERO extents.
func newViewTarget(f driver.WriteFile, size int64, from *descriptor, o driver.Options) (*viewTarget, error) {
	head, name, err := o.Beside("-head")
	if err != nil {
		return nil, err
	}
	t := &viewTarget{}
	var end int64
	for _, r := range disk.Gaps(disk.Range{Len: size}, o.Over) {
		t.own = append(t.own, disk.Piece{Range: r, At: end})
		end += r.Len
	}
	all := slices.Concat(t.own, o.Over)
	slices.SortFunc(all, func(a, b disk.Piece) int { return int(min(max(a.Off-b.Off, -1), 1)) })
	lines := make([]string, 0, len(all))
	for _, p := range all {
		at := name
		if lent, ok := p.Src.(driver.File); ok {
			at = lent.Name()
		}
		lines = append(lines, fmt.Sprintf("RW %d FLAT \"%s\" %d", p.Len/units.SectorSize, at, p.At/units.SectorSize))
	}
	flat, err := driver.NewFlat(head, 0, end)
	t.flatTarget = flatTarget{flat, f, from.copyFor(splitFlat, size, lines, o.Seed, o.BIOS)}
	return t, err
}

// Unit returns the sector size: an extent can begin and end at any sector.
func (t *viewTarget) Unit() int64 { return units.SectorSize }

// WriteAt writes a range of the head.
func (t *viewTarget) WriteAt(b []byte, off int64) (int, error) {
	p := t.own[disk.Behind(t.own, off)]
	if !p.Contains(disk.Range{Off: off, Len: int64(len(b))}) {
		panic(fmt.Sprintf("vmdk: write of %d bytes at %#x, which lie in the files of another disk", len(b), off))
	}
	return t.flatTarget.WriteAt(b, p.At+off-p.Off)
}
