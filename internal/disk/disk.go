// Package disk is the one abstraction of trueup: the disk a guest sees. An image format, a partition and the aligned
// result all implement Disk.
package disk

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"slices"
	"sort"
)

// Extent is a range of a disk in one state.
type Extent struct {
	Range
	Zero bool // reads as zero; the image file is not touched
}

// Disk is the disk a guest sees. Safe for concurrent use. All offsets are bytes.
type Disk interface {
	io.ReaderAt
	Size() int64
	SectorSize() int64                     // logical: 512 or 4096
	Extent(off, max int64) (Extent, error) // 1 to max bytes from off in one state
}

// SectorSizes lists the sector sizes of partition tables and volumes, in bytes. Images and devices use the first or the
// last.
var SectorSizes = []int64{512, 1024, 2048, 4096}

// Map returns the run at an offset. A format supplies only its map; New adds the read loop, so that it exists once.
type Map func(off int64) (Run, error)

// Run locates consecutive bytes of a disk in their source.
type Run struct {
	Len int64
	Src io.ReaderAt // nil means zeros
	Off int64
}

// Mapped is a Disk with a map to its sources. Every disk from New is one.
type Mapped interface {
	Disk
	// Run returns the run at off, which must be on the disk. The run ends with the disk and is never empty.
	Run(off int64) (Run, error)
}

// Sparse is implemented by sources that report their own holes: files and disks.
type Sparse interface {
	Extent(off, max int64) (Extent, error)
}

var errOutside = fmt.Errorf("%w: outside the disk", fs.ErrInvalid)

// New returns the disk of a map. It calls the map only for offsets in [0, size).
func New(size, sectorSize int64, m Map) Mapped {
	return &mapped{size: size, sector: sectorSize, at: m}
}

type mapped struct {
	size, sector int64
	at           Map
}

func (d *mapped) Size() int64       { return d.size }
func (d *mapped) SectorSize() int64 { return d.sector }

// ReadAt follows the contract of io.ReaderAt.
func (d *mapped) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read at %#x: %w", off, errOutside)
	}
	done := 0
	for done < len(p) {
		if off >= d.size {
			return done, io.EOF
		}
		run, err := d.Run(off)
		if err != nil {
			return done, err
		}
		part := p[done : done+int(min(run.Len, int64(len(p)-done)))]
		if err := fill(part, run); err != nil {
			return done, err
		}
		done += len(part)
		off += int64(len(part))
	}
	return done, nil
}

// Run calls the map and enforces its contract.
func (d *mapped) Run(off int64) (Run, error) {
	run, err := d.at(off)
	if err != nil {
		return run, err
	}
	if run.Len <= 0 {
		panic(fmt.Sprintf("disk: map gave %d bytes at %#x", run.Len, off))
	}
	run.Len = min(run.Len, d.size-off)
	return run, nil
}

func fill(p []byte, run Run) error {
	if run.Src == nil {
		clear(p)
		return nil
	}
	n, err := run.Src.ReadAt(p, run.Off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		// A map never points past the end of its file, so the file has shrunk since it was opened.
		err = fmt.Errorf("read %d bytes at %#x of the image file: %w", len(p), run.Off, io.ErrUnexpectedEOF)
	}
	return err // names file and offset already
}

func (d *mapped) Extent(off, limit int64) (Extent, error) {
	if off < 0 || off >= d.size || limit <= 0 {
		return Extent{}, fmt.Errorf("extent of %d bytes at %#x: %w", limit, off, errOutside)
	}
	limit = min(limit, d.size-off)
	var e Extent
	for e.Len < limit {
		part, ends, err := d.part(off+e.Len, limit-e.Len)
		if err != nil {
			return Extent{}, err
		}
		if e.Len > 0 && part.Zero != e.Zero {
			break
		}
		e = Extent{Range{off, e.Len + part.Len}, part.Zero}
		if ends || e.Len >= extentEnough {
			break
		}
	}
	return e, nil
}

// extentEnough bounds the work of one Extent call: a range of this length is returned as it is.
const extentEnough = 64 << 20

// Extents yields the extents of r in order. It stops after the first error.
func Extents(d Sparse, r Range) iter.Seq2[Extent, error] {
	return func(yield func(Extent, error) bool) {
		for off := r.Off; off < r.End(); {
			e, err := d.Extent(off, r.End()-off)
			if !yield(e, err) || err != nil {
				return
			}
			off = e.End()
		}
	}
}

// Stored returns the number of bytes of d that are not known to be zero.
func Stored(d Disk) (n int64, err error) {
	for e, err := range Extents(d, Range{Len: d.Size()}) {
		if err != nil {
			return 0, err
		}
		if !e.Zero {
			n += e.Len
		}
	}
	return n, nil
}

// part returns the state of the run at off, refined by the holes of its source. ends reports that the source found a
// border within the run. The bytes past a border usually have the other state. A second call, only to exclude them,
// would double the calls at each disk below.
func (d *mapped) part(off, limit int64) (e Extent, ends bool, err error) {
	run, err := d.Run(off)
	if err != nil {
		return Extent{}, false, err
	}
	e = Extent{Range{off, min(run.Len, limit)}, run.Src == nil}
	if s, ok := run.Src.(Sparse); ok && !e.Zero {
		inner, err := s.Extent(run.Off, e.Len)
		if err != nil {
			return Extent{}, false, err
		}
		ends = inner.Len < e.Len
		e.Len, e.Zero = inner.Len, inner.Zero
	}
	return e, ends, nil
}

// Range is half-open: [Off, Off+Len). Bytes.
type Range struct{ Off, Len int64 }

// End returns the first byte behind the range.
func (r Range) End() int64 { return r.Off + r.Len }

// Contains reports whether o lies in r completely.
func (r Range) Contains(o Range) bool { return o.Off >= r.Off && o.End() <= r.End() }

// Overlaps reports whether r and o share a byte.
func (r Range) Overlaps(o Range) bool {
	return r.Off < o.End() && o.Off < r.End() && r.Len > 0 && o.Len > 0
}

func (r Range) span() Range { return r }

// spanned is a Range, or a struct that embeds one.
type spanned interface {
	End() int64
	span() Range
}

// Merge sorts ranges and joins touching or overlapping ones. It reuses their memory.
func Merge(ranges []Range) []Range {
	slices.SortFunc(ranges, func(a, b Range) int { return cmp.Compare(a.Off, b.Off) })
	joined := ranges[:0]
	for _, r := range ranges {
		if k := len(joined) - 1; k >= 0 && r.Off <= joined[k].End() {
			joined[k].Len = max(joined[k].End(), r.End()) - joined[k].Off
			continue
		}
		joined = append(joined, r)
	}
	return joined
}

// Append appends r to ranges. If r begins at the end of the last range, Append extends that range.
func Append(ranges []Range, r Range) []Range {
	if k := len(ranges) - 1; k >= 0 && ranges[k].End() == r.Off {
		ranges[k].Len += r.Len
		return ranges
	}
	return append(ranges, r)
}

// Behind returns the index of the first range that ends after off: the one that covers off, or the next one. The ranges
// are sorted and disjoint.
func Behind[R interface{ End() int64 }](ranges []R, off int64) int {
	return sort.Search(len(ranges), func(i int) bool { return ranges[i].End() > off })
}

// Overlapping returns the part of ranges that shares bytes with r. The ranges are sorted, disjoint and not empty.
func Overlapping[R spanned](ranges []R, r Range) []R {
	if r.Len <= 0 {
		return nil
	}
	ranges = ranges[Behind(ranges, r.Off):]
	return ranges[:sort.Search(len(ranges), func(i int) bool { return ranges[i].span().Off >= r.End() })]
}

// Gaps returns the parts of r outside of all ranges, which must be sorted and disjoint.
func Gaps[R spanned](r Range, ranges []R) (gaps []Range) {
	from := r.Off
	for _, x := range Overlapping(ranges, r) {
		if off := x.span().Off; off > from {
			gaps = append(gaps, Range{from, off - from})
		}
		from = x.End()
	}
	if from < r.End() {
		gaps = append(gaps, Range{from, r.End() - from})
	}
	return gaps
}

// Intersect returns the bytes that two lists of sorted, disjoint ranges share.
func Intersect(a, b []Range) (common []Range) {
	for _, r := range a {
		for _, x := range Overlapping(b, r) {
			from := max(r.Off, x.Off)
			common = append(common, Range{from, min(r.End(), x.End()) - from})
		}
	}
	return common
}

// Section returns the range r of d as a disk of its own, such as a partition.
func Section(d Disk, r Range) Disk {
	if r.Off < 0 || r.Len < 0 || r.End() > d.Size() {
		panic(fmt.Sprintf("disk: section [%#x, %#x) of a disk of %#x bytes", r.Off, r.End(), d.Size()))
	}
	return New(r.Len, d.SectorSize(), func(off int64) (Run, error) {
		return Run{Len: r.Len - off, Src: d, Off: r.Off + off}, nil
	})
}

// Piece is a range of a disk and its place in one source.
type Piece struct {
	Range
	Src io.ReaderAt // nil means zeros
	At  int64       // in Src, bytes
}

// Pieces returns the map of a disk of size bytes that shows pieces, and below elsewhere. A nil below means zeros.
// Pieces must be sorted by Off, disjoint, not empty and inside the disk.
func Pieces(size int64, pieces []Piece, below Map) Map {
	end := int64(0)
	for _, p := range pieces {
		if p.Len <= 0 || p.Off < end || p.End() > size {
			panic(fmt.Sprintf("disk: piece at %#x of %d bytes out of order or out of bounds", p.Off, p.Len))
		}
		end = p.End()
	}
	return func(off int64) (Run, error) {
		i := Behind(pieces, off)
		if i < len(pieces) && pieces[i].Off <= off {
			p := pieces[i]
			return Run{Len: p.End() - off, Src: p.Src, Off: p.At + off - p.Off}, nil
		}
		end := size
		if i < len(pieces) {
			end = pieces[i].Off
		}
		if below == nil {
			return Run{Len: end - off}, nil
		}
		run, err := below(off)
		run.Len = min(run.Len, end-off)
		return run, err
	}
}

// Leaf follows the maps below d from off down to the source that stores the bytes. depth counts these maps.
func Leaf(d Disk, off int64) (run Run, depth int, err error) {
	for run = (Run{Len: d.Size() - off, Src: d, Off: off}); ; depth++ {
		m, ok := run.Src.(Mapped)
		if !ok {
			return run, depth, nil
		}
		below, err := m.Run(run.Off)
		if err != nil {
			return run, depth, err
		}
		below.Len = min(below.Len, run.Len)
		run = below
	}
}

// Shift maps Len bytes at From in a source to To.
type Shift struct{ From, To, Len int64 }

// Source returns the range in the source.
func (s Shift) Source() Range { return Range{s.From, s.Len} }

// Dest returns the range in the composed disk.
func (s Shift) Dest() Range { return Range{s.To, s.Len} }

// Compose returns a disk of size bytes made of shifted ranges of src and zeros elsewhere. Shifts must be sorted by To,
// disjoint and inside both disks.
func Compose(src Disk, size int64, shifts []Shift) Disk {
	pieces := make([]Piece, 0, len(shifts))
	for _, s := range shifts {
		if s.From < 0 || s.Source().End() > src.Size() {
			panic(fmt.Sprintf("disk: shift %+v out of the source", s))
		}
		pieces = append(pieces, Piece{s.Dest(), src, s.From})
	}
	return New(size, src.SectorSize(), Pieces(size, pieces, nil))
}

// Patch replaces bytes at Off. Old and New have one length; Old holds the bytes before the patch.
type Patch struct {
	Off      int64
	Old, New []byte
	Reason   string
}

// Range returns the range of the disk that the patch overwrites.
func (p Patch) Range() Range { return Range{p.Off, int64(len(p.New))} }

// Overlay returns d with patches applied. Patches must be sorted, disjoint and inside d.
func Overlay(d Disk, patches []Patch) Disk {
	if len(patches) == 0 {
		return d
	}
	pieces := make([]Piece, 0, len(patches))
	for _, p := range patches {
		pieces = append(pieces, Piece{p.Range(), bytesAt(p.New), 0})
	}
	return New(d.Size(), d.SectorSize(), Pieces(d.Size(), pieces, Whole(d, d.Size())))
}

// InSectors returns d with another sector size, or d itself if it has that size.
func InSectors(d Disk, sector int64) Disk {
	if d.SectorSize() == sector {
		return d
	}
	return New(d.Size(), sector, Whole(d, d.Size()))
}

// Whole returns the map of a disk of the first size bytes of src.
func Whole(src io.ReaderAt, size int64) Map {
	return func(off int64) (Run, error) { return Run{Len: size - off, Src: src, Off: off}, nil }
}

// bytesAt reads from a slice. Unlike bytes.Reader it is a value: any number of readers can share it without a copy.
type bytesAt []byte

func (b bytesAt) ReadAt(p []byte, off int64) (int, error) { return copy(p, b[off:]), nil }
