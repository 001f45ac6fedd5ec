package disk

import (
	"fmt"
	"slices"
)

// Section is the part r of d, as a disk of its own: a partition.
func Section(d Disk, r Range) Disk {
	if r.Off < 0 || r.Len < 0 || r.End() > d.Size() {
		panic(fmt.Sprintf("disk: section [%#x, %#x) of a disk of %#x bytes", r.Off, r.End(), d.Size()))
	}
	return New(r.Len, d.SectorSize(), func(off int64) (Run, error) {
		return Run{Len: r.Len - off, Src: d, Off: r.Off + off}, nil
	})
}

// Piece takes Len bytes of a source from From on and shows them at To.
type Piece struct{ From, To, Len int64 }

// Source is the range in the source.
func (p Piece) Source() Range { return Range{p.From, p.Len} }

// Dest is the range in the composed disk.
func (p Piece) Dest() Range { return Range{p.To, p.Len} }

// Compose is a disk of size bytes made of pieces of src; what no piece covers is zero. Pieces must be sorted by To, disjoint
// and inside both disks.
func Compose(src Disk, size int64, pieces []Piece) Disk {
	end := int64(0)
	for _, p := range pieces {
		if p.Len <= 0 || p.To < end || p.To+p.Len > size || p.From < 0 || p.From+p.Len > src.Size() {
			panic(fmt.Sprintf("disk: piece %+v out of order or out of bounds", p))
		}
		end = p.To + p.Len
	}
	return New(size, src.SectorSize(), func(off int64) (Run, error) {
		i, _ := slices.BinarySearchFunc(pieces, off, func(p Piece, off int64) int {
			if p.To+p.Len <= off {
				return -1
			}
			return 1
		})
		switch {
		case i == len(pieces):
			return Run{Len: size - off}, nil
		case off < pieces[i].To:
			return Run{Len: pieces[i].To - off}, nil
		}
		p := pieces[i]
		return Run{Len: p.To + p.Len - off, Src: src, Off: p.From + off - p.To}, nil
	})
}

// Patch replaces bytes at Off. Old and New have one length; Old is what the unpatched disk holds there.
type Patch struct {
	Off      int64
	Old, New []byte
	Reason   string
}

// Range is what the patch covers.
func (p Patch) Range() Range { return Range{p.Off, int64(len(p.New))} }

// Overlay is d with patches applied. Patches must be sorted, disjoint and inside d.
func Overlay(d Disk, patches []Patch) Disk {
	end := int64(0)
	for _, p := range patches {
		if p.Off < end || p.Range().End() > d.Size() || len(p.New) == 0 {
			panic(fmt.Sprintf("disk: patch at %#x out of order or out of bounds", p.Off))
		}
		end = p.Range().End()
	}
	if len(patches) == 0 {
		return d
	}
	return New(d.Size(), d.SectorSize(), func(off int64) (Run, error) {
		i, _ := slices.BinarySearchFunc(patches, off, func(p Patch, off int64) int {
			if p.Range().End() <= off {
				return -1
			}
			return 1
		})
		switch {
		case i == len(patches):
			return Run{Len: d.Size() - off, Src: d, Off: off}, nil
		case off < patches[i].Off:
			return Run{Len: patches[i].Off - off, Src: d, Off: off}, nil
		}
		p := patches[i]
		return Run{Len: p.Range().End() - off, Src: bytesAt(p.New), Off: off - p.Off}, nil
	})
}

// bytesAt reads from a slice. Unlike bytes.Reader it is a value that any number of readers can share without a copy.
type bytesAt []byte

func (b bytesAt) ReadAt(p []byte, off int64) (int, error) { return copy(p, b[off:]), nil }
