package volume

import (
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// The kinds of this file move as opaque bytes, or are refused; nothing inside is read.

// start reads the first sector.
func start(d disk.Disk) ([]byte, error) {
	if d.Size() < units.SectorSize {
		return nil, ondisk.ErrNoMatch
	}
	return ondisk.Bytes(d, 0, units.SectorSize)
}

func orNoMatch(err error) error {
	if err == nil {
		err = ondisk.ErrNoMatch
	}
	return err
}
