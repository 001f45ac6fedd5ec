package qcow2

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

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
