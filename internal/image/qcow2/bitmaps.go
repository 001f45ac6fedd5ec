package qcow2

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// bitmapEntry is the fixed part of an entry in the bitmap directory. Spec: "Bitmap directory".
type bitmapEntry struct {
	TableOffset uint64
	TableSize   uint32 // entries
	Flags       uint32
	Type        uint8
	Granularity uint8 // a bit stands for 1 << Granularity bytes of the disk
	NameSize    uint16
	ExtraSize   uint32
}

const (
	bitmapInUse    = 1 << 0 // flag: not saved since the last program opened it
	bitmapExtra    = 1 << 2 // flag: a reader that does not know the extra data may use the bitmap
	bitmapDirty    = 1      // type: dirty tracking bitmap
	bitmapOnes     = 1 << 0 // table entry without a cluster: all bits are one
	minGranularity = 9
	maxGranularity = 31
	maxBitmap      = 32 << 20 // bytes of the bits of one bitmap, for 16 TiB in clusters of 64 KiB
	maxWritten     = 1 << 20  // ranges of one bitmap
)

// errLastBitmap ends a walk of the bitmap directory.
var errLastBitmap = errors.New("bitmap found")

// eachBitmap calls visit for each entry of the bitmap directory with its place in the file.
func (q *qcow) eachBitmap(visit func(e *bitmapEntry, at int64) error) error {
	directory, err := q.bitmapDirectory()
	if err != nil {
		return err
	}
	at := directory.Off
	for range q.x.bitmaps.NbBitmaps {
		var e bitmapEntry
		n := int64(binary.Size(e))
		if at+n > directory.End() {
			return bitmapField(at, "entry", at, fmt.Sprintf("an end before %#x, where the directory ends",
				directory.End()))
		}
		if err := decodeAt(q.file, at, &e); err != nil {
			return err
		}
		if err := visit(&e, at); err != nil {
			return err
		}
		at += (n + int64(e.ExtraSize) + int64(e.NameSize) + 7) &^ 7
	}
	return nil
}

func (q *qcow) bitmapDirectory() (disk.Range, error) {
	b, size := q.x.bitmaps, ondisk.U64(q.file.Size())
	if b.DirectoryOffset > size || b.DirectorySize > size-b.DirectoryOffset {
		return disk.Range{}, bitmapField(0, "directory offset", b.DirectoryOffset,
			fmt.Sprintf("one from which %d bytes fit into the file of %d bytes", b.DirectorySize, size))
	}
	directory := disk.Range{Off: ondisk.I64(b.DirectoryOffset), Len: ondisk.I64(b.DirectorySize)}
	if directory.Len > maxL1 {
		return disk.Range{}, fmt.Errorf("qcow2 bitmap directory of %d bytes: %w of %d bytes", directory.Len,
			ondisk.ErrLimit, maxL1)
	}
	return directory, nil
}

func bitmapField(at int64, name string, got, want any) error {
	return ondisk.Field("qcow2 bitmap directory", name, at, got, want)
}

// bitmapTable returns the place of the table of a bitmap.
func (q *qcow) bitmapTable(e *bitmapEntry, at int64) (disk.Range, error) {
	size, n := ondisk.U64(q.file.Size()), 8*uint64(e.TableSize)
	if e.TableOffset > size || n > size-e.TableOffset {
		return disk.Range{}, bitmapField(at, "table offset", e.TableOffset,
			fmt.Sprintf("one from which %d bytes fit into the file of %d bytes", n, size))
	}
	return disk.Range{Off: ondisk.I64(e.TableOffset), Len: ondisk.I64(n)}, nil
}

// outdatedBitmaps reports whether a program that does not maintain bitmaps has written the image.
func (q *qcow) outdatedBitmaps() bool { return q.h.AutoclearFeatures&autoclearBitmaps == 0 }

// bitmaps counts the clusters of persistent bitmaps. QEMU ignores outdated bitmaps, and so does this check.
func (c *checker) bitmaps() error {
	if c.q.x.bitmaps == nil || c.q.outdatedBitmaps() {
		return nil
	}
	directory, err := c.q.bitmapDirectory()
	if err != nil {
		return err
	}
	c.mark(directory, meta)
	return c.q.eachBitmap(func(e *bitmapEntry, at int64) error {
		table, err := c.q.bitmapTable(e, at)
		if err != nil {
			return err
		}
		if c.budget -= int64(e.TableSize); c.budget < 0 {
			return nil
		}
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
	})
}

// bitmap returns the persistent dirty bitmap with a name. It returns ErrReference if there are others only, and an
// inconsistent one if there is none: QEMU removes all bitmaps of an image that a power cut made outdated.
func (q *qcow) bitmap(name string) (b driver.Bitmap, err error) {
	if q.x.bitmaps == nil {
		return b, nil
	}
	err = q.eachBitmap(func(e *bitmapEntry, at int64) error {
		n := int64(binary.Size(e)) + int64(e.ExtraSize)
		if int(e.NameSize) != len(name) || n > maxL1 {
			return nil
		}
		stored, err := ondisk.Bytes(q.file, at+n, int64(e.NameSize))
		if err != nil || string(stored) != name {
			return err
		}
		if b, err = q.readBitmap(e, at); err != nil {
			return err
		}
		return errLastBitmap
	})
	switch {
	case errors.Is(err, errLastBitmap):
		return b, nil
	case err == nil:
		return b, ondisk.In(ondisk.ErrReference, "the qcow2 has no bitmap %.256q; qemu-img info lists its bitmaps",
			name)
	}
	return b, err
}

// readBitmap reads the bits of a bitmap. Those of an inconsistent bitmap mean nothing and are not read. Spec: "Bitmap
// table", "Bitmap data".
func (q *qcow) readBitmap(e *bitmapEntry, at int64) (b driver.Bitmap, err error) {
	switch {
	case e.Type != bitmapDirty:
		return b, bitmapField(at+16, "type", e.Type, bitmapDirty)
	case e.Granularity < minGranularity || e.Granularity > maxGranularity:
		return b, bitmapField(at+17, "granularity_bits", e.Granularity,
			fmt.Sprintf("%d to %d", minGranularity, maxGranularity))
	case e.ExtraSize > 0 && e.Flags&bitmapExtra == 0:
		return b, bitmapField(at+12, "flags", e.Flags, "bit 2 set, for a bitmap with extra data")
	case e.Flags&bitmapInUse != 0 || q.outdatedBitmaps():
		return b, nil
	}
	table, err := q.bitmapTable(e, at)
	if err != nil {
		return b, err
	}
	size := ondisk.I64(q.h.Size)
	unit := int64(1) << e.Granularity
	n := (size + 8*unit - 1) / (8 * unit) // bytes of the bits
	if n > maxBitmap {
		return b, fmt.Errorf("qcow2 bitmap at %#x: %d bytes: %w of %d bytes", at, n, ondisk.ErrLimit, maxBitmap)
	}
	cluster := q.h.cluster()
	if int64(e.TableSize) != (n+cluster-1)/cluster {
		return b, bitmapField(at+8, "bitmap_table_size", e.TableSize, (n+cluster-1)/cluster)
	}
	b.Consistent = true
	for i := range int64(e.TableSize) {
		part, err := q.bitmapPart(table.Off+8*i, min(cluster, n-i*cluster))
		if err != nil {
			return b, err
		}
		for j, v := range part {
			for ; v != 0; v &= v - 1 {
				bit := 8*(i*cluster+int64(j)) + int64(bits.TrailingZeros8(v))
				if off := bit * unit; off < size {
					b.Written = disk.Append(b.Written, disk.Range{Off: off, Len: min(unit, size-off)})
				}
			}
			if len(b.Written) > maxWritten {
				return b, fmt.Errorf("qcow2 bitmap at %#x: more than %d ranges: %w", at, maxWritten, ondisk.ErrLimit)
			}
		}
	}
	return b, nil
}

// bitmapPart returns n bytes of bits by the table entry at a place.
func (q *qcow) bitmapPart(at, n int64) ([]byte, error) {
	entry, err := q.tabs.BE64(at)
	if err != nil {
		return nil, err
	}
	place := ondisk.I64(entry & placeMask)
	switch {
	case place%q.h.cluster() != 0 || place > q.file.Size()-n:
		return nil, ondisk.Field("qcow2 bitmap table", "entry", at, entry,
			fmt.Sprintf("a multiple of %d from which %d bytes fit into the file of %d bytes", q.h.cluster(), n,
				q.file.Size()))
	case place != 0:
		return ondisk.Bytes(q.file, place, n)
	}
	b := make([]byte, n)
	if entry&bitmapOnes != 0 {
		for i := range b {
			b[i] = 0xFF
		}
	}
	return b, nil
}
