package volume

import (
	"encoding/binary"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// The kinds of this file move as opaque bytes, or are refused; nothing inside is read.

var exFAT = Prober{Name: string(ExFAT), Probe: func(d disk.Disk) (*Volume, error) {
	// Spec: Microsoft exFAT file system specification, 3.1: FileSystemName at 3, PartitionOffset (sectors) at 0x40.
	b, err := start(d)
	if err != nil || string(b[3:11]) != "EXFAT   " {
		return nil, orNoMatch(err)
	}
	v := &Volume{Kind: ExFAT, Size: d.Size()}
	if binary.LittleEndian.Uint64(b[0x40:]) != 0 {
		v.note("exfat-offset", ondisk.Warn, "exFAT stores the place of its partition, which is not rewritten yet: drivers do not look at it, boot code does", "")
		v.Issues[0].OnMove = true
	}
	return v, nil
}}

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
