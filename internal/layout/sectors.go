package layout

import (
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// checkSectors says when the table counts sectors of another size than the disk is read with: a raw image cannot say how large
// its sectors are.
func (l *Layout) checkSectors(d disk.Disk) error {
	size, found := l.Table.SectorSize, "the GPT counts sectors of %d bytes"
	if l.Table.Scheme == table.MBR {
		found = "the partition table makes sense in sectors of %d bytes: that is where file systems are"
		var err error
		if size, err = l.fitting(d); err != nil {
			return err
		}
	}
	if size == l.SectorSize {
		return nil
	}
	remedy := fmt.Sprintf("--sector-size %d, if the image is raw; an image of another format was made without its sector size, convert it with --to raw first", size)
	l.Issues = append(l.Issues, ondisk.Issue{
		Code: "sector-size", Effect: ondisk.Note, Remedy: remedy,
		Text: fmt.Sprintf(found+", and the disk is read in those of %d: a machine must be told to show it with %d", size, l.SectorSize, size),
	})
	if l.Table.Scheme == table.MBR {
		// A GPT is found where its own size says, an MBR has none: its LBAs would lead to the wrong bytes.
		l.Issues = append(l.Issues, ondisk.Issue{
			Code: "sector-size", Effect: ondisk.Refuse, OnMove: true, Remedy: remedy,
			Text: fmt.Sprintf("the partitions would be moved by sectors of %d bytes, and the file systems found in those of %d would stay behind", l.SectorSize, size),
		})
	}
	return nil
}

// fitting is the size of sectors by which there are file systems where the MBR has partitions. Without any it is the disk's own.
func (l *Layout) fitting(d disk.Disk) (int64, error) {
	for _, p := range l.Partitions {
		if p.Volume.Kind != volume.Unknown {
			return l.SectorSize, nil
		}
	}
	other := 512 + 4096 - l.SectorSize
	for _, p := range l.Partitions {
		r := disk.Range{Off: p.Off / l.SectorSize * other, Len: p.Len / l.SectorSize * other}
		if p.Kind != table.Primary || r.Len == 0 || r.End() > d.Size() {
			continue
		}
		v, err := volume.Probe(disk.Section(d, r), r.Off)
		if err != nil {
			return 0, err
		}
		if v.Kind != volume.Unknown {
			return other, nil
		}
	}
	return l.SectorSize, nil
}
