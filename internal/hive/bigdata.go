package hive

import (
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

const (
	segmentSize = 16344 // bytes of data in each segment but the last; shorter data are never parted
	bigMinor    = 4     // hives of version 1.3 have no parted data
)

// bigData is the cell that names the segments of long data. Spec: "Big data".
type bigData struct {
	Signature [2]byte // "db"
	Count     uint16
	List      uint32
}

// segments are the cells of one value.
type segments struct {
	size int64 // of the data
	list list
}

// big finds the segments if c is the record of divided data. It returns nil if c holds the data themselves: other
// programs than Windows store long data in one piece.
func (v *Value) big(c cell) (*segments, error) {
	const what = "big data of a registry value"
	h := v.hive
	if v.Size <= segmentSize || h.base.Minor < bigMinor {
		return nil, nil //nolint:nilnil // not parted, which is no error
	}
	var b bigData
	if err := h.decode(c, what, &b); err != nil {
		return nil, err
	}
	if string(b.Signature[:]) != "db" {
		return nil, nil //nolint:nilnil // not parted
	}
	if want := (v.Size + segmentSize - 1) / segmentSize; int64(b.Count) != want {
		return nil, ondisk.Field(what, "number of segments", c.at, b.Count, want)
	}
	at, err := h.cell(b.List, what)
	if err != nil {
		return nil, err
	}
	if int64(b.Count) > at.n/4 {
		return nil, tooMany(what, at, int64(b.Count), at.n/4)
	}
	return &segments{v.Size, list{at: at.at, count: int64(b.Count), stride: 4}}, nil
}

// where returns the places of bytes of the data.
func (s *segments) where(h *Hive, off, n int64) ([]disk.Range, error) {
	var out []disk.Range
	for n > 0 {
		i, skip := off/segmentSize, off%segmentSize
		c, err := s.segment(h, i)
		if err != nil {
			return nil, err
		}
		part := min(n, segmentSize-skip)
		out = append(out, disk.Range{Off: c.at + skip, Len: part})
		off, n = off+part, n-part
	}
	return out, nil
}

// segment finds the cell of segment i, and checks its size.
func (s *segments) segment(h *Hive, i int64) (cell, error) {
	const what = "segment of big data of a registry value"
	if err := h.spend(0); err != nil {
		return cell{}, err
	}
	off, err := h.u32(s.list.at + i*s.list.stride)
	if err != nil {
		return cell{}, err
	}
	c, err := h.cell(off, what)
	if err != nil {
		return cell{}, err
	}
	if want := min(segmentSize, s.size-i*segmentSize); c.n < want {
		return cell{}, ondisk.Field(what, "cell size", c.at, c.n, want)
	}
	return c, nil
}
