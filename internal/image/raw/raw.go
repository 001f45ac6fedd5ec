// Package raw reads and writes raw images, which hold the disk byte for byte.
package raw

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// ErrNone marks a file whose size rules out a raw disk.
var ErrNone = ondisk.In(ondisk.ErrFormat, "no disk image")

// Format is the fallback for content without a known header.
var Format = driver.Format{Name: "raw", Open: open, Create: create}

func open(s *driver.Source) (*driver.Image, error) {
	size, sector := s.File.Size(), cmp.Or(s.SectorSize, units.SectorSize)
	size -= s.Place.Off
	if s.Place.Len != 0 {
		size = min(size, s.Place.Len)
	}
	switch {
	case s.Place.Off != 0 && (size <= 0 || size%sector != 0):
		return nil, ondisk.In(ErrNone, "no disk at byte %d: the file has %d bytes, and a disk of whole sectors of %d "+
			"bytes must follow", s.Place.Off, s.File.Size(), sector)
	case size == 0:
		return nil, notRaw(size, sector)
	case size%sector != 0:
		return padded(s.File, size, sector)
	}
	img := &driver.Image{Disk: disk.New(size, sector, func(off int64) (disk.Run, error) {
		return disk.Run{Len: size - off, Src: s.File, Off: s.Place.Off + off}, nil
	})}
	if img.Flat = s.Place.Off == 0; img.Flat {
		img.Around = func(int64, driver.Geometry) (driver.Around, error) { return driver.Around{}, nil }
	}
	return img, nil
}

// CodeOdd is the issue code of a file that ends within a sector.
const CodeOdd = "raw-size"

// padded opens a file that begins with a partition table and ends within a sector. Zeros fill the last sector, as in
// QEMU (block.c, bdrv_refresh_total_sectors rounds up). The file is never written to.
func padded(f driver.File, size, sector int64) (*driver.Image, error) {
	if size < units.SectorSize || size%units.SectorSize == 0 { // whole sectors of 512 bytes, but not of this size
		return nil, notRaw(size, sector)
	}
	first, err := ondisk.Bytes(f, 0, units.SectorSize)
	if err != nil {
		return nil, err
	}
	if !HasTable(first) {
		return nil, notRaw(size, sector)
	}
	whole := units.AlignUp(size, sector)
	end := []disk.Piece{{Range: disk.Range{Len: size}, Src: f}}
	return &driver.Image{
		Disk: disk.New(whole, sector, disk.Pieces(whole, end, nil)),
		Issues: []ondisk.Issue{{
			Code: CodeOdd, Effect: ondisk.Warn,
			Text: fmt.Sprintf("the file has %d bytes, %d more than a multiple of %d: it is read as a disk of %d "+
				"bytes, with zeros at the end, like QEMU does", size, size%sector, sector, whole),
			Remedy: fmt.Sprintf("if the last %d bytes are not part of the disk, remove them: truncate -s %d FILE",
				size%sector, units.AlignDown(size, sector)),
		}},
	}, nil
}

// HasTable reports whether a file begins with an MBR that names a partition: a signature, legal boot flags, and an
// entry in use. Spec: UEFI 2.10, 5.2.1.
func HasTable(head []byte) bool {
	const entries, entry, signature = 446, 16, 510
	if int64(len(head)) < units.SectorSize || head[signature] != 0x55 || head[signature+1] != 0xaa {
		return false
	}
	named := false
	for e := range slices.Chunk(head[entries:signature], entry) {
		if e[0]&^0x80 != 0 {
			return false
		}
		named = named || (e[4] != 0 && !ondisk.IsZero(e[8:12]) && !ondisk.IsZero(e[12:]))
	}
	return named
}

// HoldsPartition reports whether a file of size bytes begins with an MBR and extends past the start of one of its
// partitions. A shorter file is a copy of the table or of the boot track. Behind a protective entry, the first
// partition is assumed at 1 MiB, the default of partitioning programs. Spec: UEFI 2.10, 5.2.3.
func HoldsPartition(head []byte, size int64) bool {
	const entries, entry, signature, protective = 446, 16, 510, 0xee
	if !HasTable(head) {
		return false
	}
	for e := range slices.Chunk(head[entries:signature], entry) {
		start := int64(binary.LittleEndian.Uint32(e[8:])) * units.SectorSize
		if e[4] == protective {
			start = units.MiB
		}
		if e[4] != 0 && start != 0 && !ondisk.IsZero(e[12:]) && start < size {
			return true
		}
	}
	return false
}

// notRaw returns the error of a file that has no known header and is not a raw disk.
func notRaw(size, sector int64) error {
	if size == 0 {
		return ondisk.In(ErrNone, "no disk image: the file is empty")
	}
	return ondisk.In(ErrNone,
		"no disk image: it has no known header, and its size (%d) is not a multiple of %d, like that of a raw disk",
		size, sector)
}

func create(f driver.WriteFile, size int64, o driver.Options) (driver.Target, error) {
	return driver.NewFlat(f, o.Offset, size)
}
