package qcow2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// Types of header extensions. Spec: "Header extensions".
const (
	extEnd        = 0
	extFormat     = 0xe2792aca // name of the backing file's format
	extFeatures   = 0x6803f857 // names of feature bits
	extBitmaps    = 0x23852875
	extEncryption = 0x0537be77 // place of the LUKS header
	extDataFile   = 0x44415441 // name of the external data file
)

const (
	maxName     = 1023 // bytes of a backing file's name
	featureSize = 48   // bytes of an entry in the table of feature names
)

// extensions hold what stands behind the header in the first cluster.
type extensions struct {
	format   string // of the backing file
	dataFile string
	features []byte
	bitmaps  *bitmapsExtension
	packing  byte // compression_type
}

// bitmapsExtension holds the place of the bitmaps. Spec: "Bitmaps extension".
type bitmapsExtension struct {
	NbBitmaps       uint32
	_               uint32
	DirectorySize   uint64
	DirectoryOffset uint64
}

// readExtensions walks what lies between the header and the backing file's name, or the end of the first cluster.
func (h *header) readExtensions(src ondisk.Source) (*extensions, error) {
	end := min(h.cluster(), src.Size())
	if h.BackingFileOffset != 0 {
		if err := h.checkBacking(end); err != nil {
			return nil, err
		}
		end = ondisk.I64(h.BackingFileOffset)
	}
	x := &extensions{}
	if int64(h.HeaderLength) > atPacking {
		var b [1]byte
		if err := ondisk.ReadFull(src, b[:], atPacking); err != nil {
			return nil, err
		}
		x.packing = b[0]
	}
	for at := int64(h.HeaderLength); at+8 <= end; {
		var e struct{ Type, Len uint32 }
		if err := decodeAt(src, at, &e); err != nil {
			return nil, err
		}
		if e.Type == extEnd {
			break
		}
		if int64(e.Len) > end-at-8 {
			return nil, ondisk.Field("qcow2 header extension", "length", at+4, e.Len,
				fmt.Sprintf("at most %d bytes, what is left of the first cluster", end-at-8))
		}
		if err := x.add(src, e.Type, at+8, int64(e.Len)); err != nil {
			return nil, err
		}
		at += 8 + (int64(e.Len)+7)&^7
	}
	return x, nil
}

func (h *header) checkBacking(end int64) error {
	switch {
	case h.BackingFileOffset < uint64(h.HeaderLength) || h.BackingFileOffset > ondisk.U64(end):
		return field("backing_file_offset", atBacking, h.BackingFileOffset,
			fmt.Sprintf("0, or from %d to %d: inside the first cluster", h.HeaderLength, end))
	case h.BackingFileSize > maxName || int64(h.BackingFileSize) > end-ondisk.I64(h.BackingFileOffset):
		return field("backing_file_size", atBackingSize, h.BackingFileSize,
			fmt.Sprintf("at most %d bytes, and inside the first cluster", maxName))
	}
	return nil
}

// add takes what is known; the rest can be ignored safely.
func (x *extensions) add(src ondisk.Source, kind uint32, off, n int64) error {
	switch kind {
	case extFormat, extDataFile, extFeatures:
	case extBitmaps:
		x.bitmaps = &bitmapsExtension{}
		if n != int64(binary.Size(x.bitmaps)) {
			return ondisk.Field("qcow2 bitmaps extension", "length", off-4, n, binary.Size(x.bitmaps))
		}
		return decodeAt(src, off, x.bitmaps)
	default:
		return nil
	}
	b, err := ondisk.Bytes(src, off, n)
	if err != nil {
		return err
	}
	switch kind {
	case extFormat:
		x.format = string(b)
	case extDataFile:
		x.dataFile = string(b)
	case extFeatures:
		x.features = b
	}
	return nil
}

// feature returns the name that the image has for an incompatible feature.
func (x *extensions) feature(bit int) string {
	for b := x.features; len(b) >= featureSize; b = b[featureSize:] {
		if b[0] == 0 && int(b[1]) == bit {
			name, _, _ := bytes.Cut(b[2:featureSize], []byte{0})
			return fmt.Sprintf(" (%.46q)", name)
		}
	}
	return ""
}

// checkFeatures refuses what would make the disk read wrong.
func (h *header) checkFeatures(x *extensions) error {
	for bit := range 64 {
		if h.IncompatibleFeatures&^uint64(incompatKnown)&(1<<bit) != 0 {
			return fmt.Errorf("qcow2 header at %#x: incompatible feature bit %d%s: %w", atIncompat, bit, x.feature(bit),
				ondisk.ErrUnsupported)
		}
	}
	if h.external() != (x.dataFile != "") {
		reason, bit := fmt.Sprintf("names the external data file %.256q, but", x.dataFile), "clear"
		if h.external() {
			reason, bit = "does not name its external data file, and", "set"
		}
		return &ondisk.Refusal{
			Code: "reference", Reason: fmt.Sprintf("the qcow2 %s incompatible feature bit 2 at %#x is %s", reason,
				atIncompat, bit),
			Remedy: "make one complete image of it with qemu-img convert",
		}
	}
	return h.checkPacking(x.packing)
}

// openData opens the file that has the guest's data: the image itself, or its external data file, which has no header
// of its own whatever it looks like.
func (h *header) openData(s *driver.Source, x *extensions) (driver.File, error) {
	if !h.external() {
		return s.File, nil
	}
	f, err := s.Open(x.dataFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &ondisk.Refusal{
			Code: "reference", Reason: fmt.Sprintf("the qcow2 has its data in the external data file %.256q, "+
				"which is not there", x.dataFile),
			Remedy: "put it into the folder of the qcow2",
		}
	case err != nil:
		return nil, fmt.Errorf("qcow2 external data file %.256q: %w", x.dataFile, err)
	case f.ID() == s.File.ID():
		return nil, ondisk.Field("qcow2 header extension", "external data file", atIncompat, x.dataFile,
			"another file than the qcow2 itself")
	}
	return f, nil
}

// Compression types.
const (
	packingDeflate = 0
	packingZstd    = 1
)

func (h *header) checkPacking(kind byte) error {
	marked := h.IncompatibleFeatures&incompatPacking != 0
	switch {
	case marked == (kind == packingDeflate):
		return field("compression_type", atPacking, kind,
			"0 while incompatible feature bit 3 is clear, and another type while it is set")
	case kind > packingZstd:
		return fmt.Errorf("qcow2 header at %#x: compression type %d: %w, known are 0 (deflate) and 1 (zstd)", atPacking,
			kind, ondisk.ErrUnsupported)
	}
	return nil
}

// backing returns the name of the backing file as stored; ok reports whether there is one.
func (h *header) backing(src ondisk.Source) (name string, ok bool, err error) {
	if h.BackingFileOffset == 0 {
		return "", false, nil
	}
	b, err := ondisk.Bytes(src, ondisk.I64(h.BackingFileOffset), int64(h.BackingFileSize))
	return string(b), true, err
}

// bitmapEntry is the fixed part of an entry in the bitmap directory. Spec: "Bitmap directory".
type bitmapEntry struct {
	TableOffset uint64
	TableSize   uint32 // entries
	Flags       uint32
	Type        uint8
	Granularity uint8
	NameSize    uint16
	ExtraSize   uint32
}

// bitmaps walks the clusters of persistent bitmaps. Those that are out of date have none, as far as QEMU is concerned.
func (c *checker) bitmaps() error {
	b := c.q.x.bitmaps
	if b == nil || c.q.h.AutoclearFeatures&autoclearBitmaps == 0 {
		return nil
	}
	size := ondisk.U64(c.q.file.Size())
	if b.DirectoryOffset > size || b.DirectorySize > size-b.DirectoryOffset {
		return bitmapField(0, "directory offset", b.DirectoryOffset,
			fmt.Sprintf("one from which %d bytes fit into the file of %d bytes", b.DirectorySize, size))
	}
	directory := disk.Range{Off: ondisk.I64(b.DirectoryOffset), Len: ondisk.I64(b.DirectorySize)}
	if directory.Len > maxL1 {
		return fmt.Errorf("qcow2 bitmap directory of %d bytes: %w of %d bytes", directory.Len, ondisk.ErrLimit, maxL1)
	}
	c.mark(directory, meta)
	at := directory.Off
	for range b.NbBitmaps {
		var e bitmapEntry
		n := int64(binary.Size(e))
		if at+n > directory.End() {
			return bitmapField(at, "entry", at, fmt.Sprintf("an end before %#x, where the directory ends",
				directory.End()))
		}
		if err := decodeAt(c.q.file, at, &e); err != nil {
			return err
		}
		if err := c.bitmap(&e, at); err != nil {
			return err
		}
		at += (n + int64(e.ExtraSize) + int64(e.NameSize) + 7) &^ 7
	}
	return nil
}

func bitmapField(at int64, name string, got, want any) error {
	return ondisk.Field("qcow2 bitmap directory", name, at, got, want)
}

// bitmap walks the table of one bitmap.
func (c *checker) bitmap(e *bitmapEntry, at int64) error {
	size, n := ondisk.U64(c.q.file.Size()), 8*uint64(e.TableSize)
	if e.TableOffset > size || n > size-e.TableOffset {
		return bitmapField(at, "table offset", e.TableOffset,
			fmt.Sprintf("one from which %d bytes fit into the file of %d bytes", n, size))
	}
	if c.budget -= int64(e.TableSize); c.budget < 0 {
		return nil
	}
	table := disk.Range{Off: ondisk.I64(e.TableOffset), Len: ondisk.I64(n)}
	c.mark(table, meta)
	for i := range int64(e.TableSize) {
		entry, err := c.q.tabs.BE64(table.Off + 8*i)
		if err != nil {
			return err
		}
		if place := ondisk.I64(entry & placeMask); place != 0 {
			c.uses.add(place/c.q.h.cluster(), meta, 1)
		}
	}
	return nil
}
