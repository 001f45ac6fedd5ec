package disk

import (
	"fmt"
	"io"
)

// Section returns the part r of d, as a disk of its own: a partition.
func Section(d Disk, r Range) Disk {
	if r.Off < 0 || r.Len < 0 || r.End() > d.Size() {
		panic(fmt.Sprintf("disk: section [%#x, %#x) of a disk of %#x bytes", r.Off, r.End(), d.Size()))
	}
	return New(r.Len, d.SectorSize(), func(off int64) (Run, error) {
		return Run{Len: r.Len - off, Src: d, Off: r.Off + off}, nil
	})
}

// Piece is a stretch of a disk that is stored in one place.
type Piece struct {
	Range
	Src io.ReaderAt // nil: zero
	At  int64       // in Src, bytes
}

// Pieces returns the map of a disk of size bytes that shows pieces, and below where no piece lies (nil: zeros). Pieces
// must be sorted by Off, disjoint, not empty and inside of the disk.
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

// Leaf follows the maps below d from off down to what really holds the bytes. depth counts these maps.
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

// Shift takes Len bytes of a source from From on and shows them at To.
type Shift struct{ From, To, Len int64 }

// Source returns the range in the source.
func (s Shift) Source() Range { return Range{s.From, s.Len} }

// Dest returns the range in the composed disk.
func (s Shift) Dest() Range { return Range{s.To, s.Len} }

// Compose returns a disk of size bytes made of shifted ranges of src; what none covers is zero. Shifts must be sorted
// by To, disjoint and inside both disks.
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

// Patch replaces bytes at Off. Old and New have one length; Old is what the unpatched disk holds there.
type Patch struct {
	Off      int64
	Old, New []byte
	Reason   string
}

// Range returns what the patch covers.
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

// InSectors returns d with sectors of another size. d itself is returned if it has them.
func InSectors(d Disk, sector int64) Disk {
	if d.SectorSize() == sector {
		return d
	}
	return New(d.Size(), sector, Whole(d, d.Size()))
}

// Whole returns the map of a disk that is the first size bytes of src.
func Whole(src io.ReaderAt, size int64) Map {
	return func(off int64) (Run, error) { return Run{Len: size - off, Src: src, Off: off}, nil }
}

// bytesAt reads from a slice. Unlike bytes.Reader it is a value that any number of readers can share without a copy.
type bytesAt []byte

func (b bytesAt) ReadAt(p []byte, off int64) (int, error) { return copy(p, b[off:]), nil }
