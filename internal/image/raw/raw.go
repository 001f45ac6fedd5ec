// Package raw reads and writes images that are the disk byte for byte.
package raw

import (
	"cmp"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Format is what remains when no other format knows the content.
var Format = driver.Format{Name: "raw", Open: open, Create: create}

func open(s *driver.Source) (*driver.Image, error) {
	size, sector := s.File.Size(), cmp.Or(s.SectorSize, units.SectorSize)
	if size == 0 || size%sector != 0 {
		return nil, &ondisk.FormatError{
			What: "raw image", Field: "file size", Got: size,
			Want: fmt.Sprintf("a multiple of %d bytes above 0 (a file of another size is cut short, or no disk image)", sector),
		}
	}
	return &driver.Image{
		Disk: disk.New(size, sector, func(off int64) (disk.Run, error) {
			return disk.Run{Len: size - off, Src: s.File, Off: off}, nil
		}),
	}, nil
}

func create(f driver.WriteFile, size int64, _ driver.Options) (driver.Target, error) {
	return driver.NewFlat(f, size)
}
