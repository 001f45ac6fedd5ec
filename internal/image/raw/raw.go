// Package raw reads and writes images that are the disk byte for byte.
package raw

import (
	"cmp"

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
	if size == 0 || size%sector != 0 {
		return nil, notRaw(size, sector)
	}
	return &driver.Image{
		Flat:   true,
		Around: func(int64, driver.Geometry) (driver.Around, error) { return driver.Around{}, nil },
		Disk: disk.New(size, sector, func(off int64) (disk.Run, error) {
			return disk.Run{Len: size - off, Src: s.File, Off: off}, nil
		}),
	}, nil
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
