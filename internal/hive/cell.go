package hive

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

const (
	binHeaderSize = 32
	binUnit       = 4096 // of the size of a bin
	cellUnit      = 8    // of place and size of a cell
)

// binHeader begins a hive bin. Spec: "Hive bin".
type binHeader struct {
	Signature [4]byte // "hbin"
	Offset    uint32  // of this bin
	Size      uint32  // bytes
}

// cell is an allocated cell: the bytes behind its size field.
type cell struct {
	at int64 // in the file
	n  int64 // bytes
}

// cell finds the cell at an offset of the hive. what names it in an error.
func (h *Hive) cell(off uint32, what string) (cell, error) {
	at := baseSize + int64(off)
	if at+cellUnit > h.end || off%cellUnit != 0 {
		return cell{}, ondisk.Field(what, "cell offset", at, fmt.Sprintf("%#x", off),
			fmt.Sprintf("a multiple of 8 below %#x", max(h.end-baseSize, 0)))
	}
	start, end, err := h.bin(at)
	if err != nil {
		return cell{}, err
	}
	raw, err := h.u32(at)
	if err != nil {
		return cell{}, err
	}
	// The length is stored as a negative number. That of a free cell is positive, and comes out longer than any bin.
	n := 1<<32 - int64(raw)
	if n%cellUnit != 0 || at < start+binHeaderSize || n > end-at {
		return cell{}, ondisk.Field(what, "cell size", at, fmt.Sprintf("%#x", raw),
			fmt.Sprintf("minus a multiple of 8 within the bin from %#x to %#x", start, end))
	}
	return cell{at + 4, n - 4}, nil
}

// bin returns begin and end of the bin that holds a byte in front of h.end. Bins lead to each other only, so all in
// front of it are walked once.
func (h *Hive) bin(at int64) (start, end int64, err error) {
	for h.known <= at {
		if err := h.nextBin(); err != nil {
			return 0, 0, err
		}
	}
	i, found := slices.BinarySearch(h.bins, at)
	if !found {
		i--
	}
	if end = h.known; i+1 < len(h.bins) {
		end = h.bins[i+1]
	}
	return h.bins[i], end, nil
}

// nextBin walks one bin.
func (h *Hive) nextBin() error {
	var b binHeader
	if err := h.decode(cell{h.known, h.end - h.known}, "hive bin", &b); err != nil {
		return err
	}
	bad := func(field string, got, want any) error {
		return ondisk.Field("hive bin", field, h.known, got, want)
	}
	switch size := int64(b.Size); {
	case string(b.Signature[:]) != "hbin":
		return bad("signature", b.Signature[:], "hbin")
	case int64(b.Offset) != h.known-baseSize:
		return bad("offset", b.Offset, h.known-baseSize)
	case size == 0 || size%binUnit != 0 || size > h.end-h.known:
		return bad("size", b.Size, fmt.Sprintf("a multiple of 4096 up to %d", h.end-h.known))
	}
	h.bins = append(h.bins, h.known)
	h.known += int64(b.Size)
	return nil
}

// decode fills the struct v from the begin of a cell.
func (h *Hive) decode(c cell, what string, v any) error {
	b := make([]byte, binary.Size(v))
	if c.n < int64(len(b)) {
		return ondisk.Field(what, "size", c.at, c.n, fmt.Sprintf("at least %d", len(b)))
	}
	if err := h.read(b, c.at); err != nil {
		return err
	}
	return ondisk.Fill(b, binary.LittleEndian, v)
}

// bytes reads part of a cell that the caller knows to be in it.
func (h *Hive) bytes(c cell, off, n int64) ([]byte, error) {
	b := make([]byte, n)
	return b, h.read(b, c.at+off)
}

// read fills b from a place in the file.
func (h *Hive) read(b []byte, off int64) error {
	if h.seen != nil {
		h.seen.read = disk.Append(h.seen.read, disk.Range{Off: off, Len: int64(len(b))})
	}
	return h.pages.Read(b, off)
}

func (h *Hive) u32(off int64) (uint32, error) {
	if h.seen != nil {
		h.seen.read = disk.Append(h.seen.read, disk.Range{Off: off, Len: 4})
	}
	return h.pages.U32(off)
}
