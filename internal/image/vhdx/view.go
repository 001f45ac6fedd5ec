package vhdx

import (
	"cmp"
	"container/heap"
	"io"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// change is what a descriptor of the log does to the file.
type change struct {
	disk.Range
	sector *logSector // nil: zeros
}

// logSector is the source of a change: 4 KiB, of which the log keeps the first 8 and the last 4 bytes in the
// descriptor. The others are read when they are needed.
type logSector struct {
	src      io.ReaderAt
	at       int64 // of the data sector in the file
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

// overlay returns a file of size bytes, behind its end zeros, with changes done, of which a later one hides an earlier
// one.
func overlay(f driver.File, size int64, changes []change) disk.Mapped {
	kept := disk.Pieces(size, []disk.Piece{{Range: disk.Range{Len: min(f.Size(), size)}, Src: f}}, nil)
	return disk.New(size, sectorSize, disk.Pieces(size, flatten(changes), kept))
}

// newest is a heap of changes that reach over the place in work, the latest on top.
type newest struct {
	of    []change
	index []int
}

func (h *newest) Len() int           { return len(h.index) }
func (h *newest) Less(i, j int) bool { return h.index[i] > h.index[j] }
func (h *newest) Swap(i, j int)      { h.index[i], h.index[j] = h.index[j], h.index[i] }
func (h *newest) Push(v any)         { h.index = append(h.index, v.(int)) }

// Pop removes the last one.
func (h *newest) Pop() any {
	last := h.index[len(h.index)-1]
	h.index = h.index[:len(h.index)-1]
	return last
}

func (h *newest) top() change { return h.of[h.index[0]] }

// flatten returns sorted, disjoint changes with the same effect. Only zeros are ever cut: everything is a multiple of 4
// KiB, and a data sector has just that.
func flatten(changes []change) []disk.Piece {
	order := make([]int, len(changes))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(changes[a].Off, changes[b].Off) })
	open := &newest{of: changes}
	var out []disk.Piece
	for pos := int64(0); len(order) > 0 || open.Len() > 0; {
		for open.Len() > 0 && open.top().End() <= pos {
			heap.Pop(open)
		}
		if open.Len() == 0 {
			if len(order) == 0 {
				break
			}
			pos = changes[order[0]].Off
		}
		for len(order) > 0 && changes[order[0]].Off <= pos {
			heap.Push(open, order[0])
			order = order[1:]
		}
		c := open.top()
		if end := c.End(); end > pos {
			if len(order) > 0 {
				end = min(end, changes[order[0]].Off)
			}
			p := disk.Piece{Range: disk.Range{Off: pos, Len: end - pos}}
			if c.sector != nil {
				p.Src = c.sector
			}
			out = append(out, p)
			pos = end
		}
	}
	return out
}
