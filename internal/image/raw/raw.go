// Package raw reads and writes images that are the disk byte for byte.
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

// ErrNone marks a file whose size is not that of a disk.
var ErrNone = ondisk.In(ondisk.ErrFormat, "no disk image")

// Format is what remains when no other format knows the content.
var Format = driver.Format{Name: "raw", Open: open, Create: create}

func open(s *driver.Source) (*driver.Image, error) {
	size, sector := s.File.Size(), cmp.Or(s.SectorSize, units.SectorSize)
	if size == 0 {
		return nil, notRaw(size, sector)
	}
	if size%sector != 0 {
		return padded(s.File, size, sector)
	}
	return &driver.Image{
		Flat:   true,
		Around: func(int64, driver.Geometry) (driver.Around, error) { return driver.Around{}, nil },
		Disk: disk.New(size, sector, func(off int64) (disk.Run, error) {
			return disk.Run{Len: size - off, Src: s.File, Off: off}, nil
		}),
	}, nil
}

// CodeOdd is that of the issue of a file that ends within a sector.
const CodeOdd = "raw-size"

// padded reads a file that ends within a sector and begins with a partition table: zeros fill the sector, as QEMU has
// it (block.c, bdrv_refresh_total_sectors rounds up). Nothing is written into such a file.
func padded(f driver.File, size, sector int64) (*driver.Image, error) {
	if size < units.SectorSize || size%units.SectorSize == 0 { // a disk, but not of such sectors
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
				"bytes, with zeros at the end, as QEMU reads it", size, size%sector, sector, whole),
			Remedy: fmt.Sprintf("if the last %d bytes are no part of the disk, remove them: truncate -s %d FILE",
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

// HoldsPartition reports whether a file of size bytes begins with an MBR and reaches behind the start of one of its
// partitions: a shorter one is a copy of the table or of the boot track. Behind a protective entry the first partition
// is taken to start at 1 MiB, as partitioning programs have it. Spec: UEFI 2.10, 5.2.3.
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

// notRaw returns the reason why a file without a known header is not a raw disk.
func notRaw(size, sector int64) error {
	if size == 0 {
		return ondisk.In(ErrNone, "no disk image: the file is empty")
	}
	return ondisk.In(ErrNone,
		"no disk image: it begins with none of the headers that trueup knows, and its size (%d) is no multiple of "+
			"%d, as that of a raw disk is",
		size, sector)
}

func create(f driver.WriteFile, size int64, _ driver.Options) (driver.Target, error) {
	return driver.NewFlat(f, size)
}
