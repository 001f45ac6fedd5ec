// Package volumes counts the files of the volumes of a disk, and what reading the worst of them costs in its image. It
// has the list of file systems whose files are counted.
package volumes

import (
	"errors"
	"fmt"

	"github.com/trueup/trueup/internal/container"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/fragments"
	"github.com/trueup/trueup/internal/fs/ext"
	"github.com/trueup/trueup/internal/fs/fat"
	"github.com/trueup/trueup/internal/fs/ntfs"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// walks count the files of a volume.
var walks = map[volume.Kind]func(*fragments.Census, disk.Disk) error{
	volume.NTFS:  ntfs.Fragments,
	volume.FAT12: fat.Fragments,
	volume.FAT16: fat.Fragments,
	volume.FAT32: fat.Fragments,
	volume.Ext2:  ext.Fragments,
	volume.Ext3:  ext.Fragments,
	volume.Ext4:  ext.Fragments,
}

// maxVolumes bounds the volumes of a disk that are looked into. A table can name thousands.
const maxVolumes = 128

// Part is a part of the disk with a volume.
type Part struct {
	Number int // of the partition, 0 for the whole disk
	Kind   volume.Kind
	disk.Range
}

// Volume is what was counted in one.
type Volume struct {
	Part
	fragments.Census
	Reads []*container.Reads // of the worst files, in their order; nil for one where they are not known
	Err   error              // why the files were not counted
}

// Count counts the files of those parts whose file system has a walk. An error is one of reading the disk.
func Count(d disk.Disk, parts []Part, cost *container.Cost) ([]Volume, error) {
	budget := fragments.NewBudget()
	out := []Volume{}
	for _, p := range parts {
		walk := walks[p.Kind]
		if walk == nil || p.Len <= 0 || p.Off < 0 || p.End() > d.Size() {
			continue
		}
		v := Volume{Part: p, Census: fragments.Census{Budget: budget}}
		if len(out) == maxVolumes {
			v.Err = fmt.Errorf("partition %d: %w of %d volumes", p.Number, ondisk.ErrLimit, maxVolumes)
			return append(out, v), nil
		}
		if err := walk(&v.Census, disk.Section(d, p.Range)); err != nil {
			err = ondisk.Shift(err, p.Off)
			if !v.Broken(err) && !errors.Is(err, ondisk.ErrNoMatch) {
				return nil, err
			}
			v = Volume{Part: p, Err: err}
		}
		for i := range v.Worst {
			r, err := cost.Read(p.Off, v.Worst[i].Runs)
			if err != nil {
				return nil, err
			}
			v.Reads = append(v.Reads, r)
			v.Worst[i].Runs = nil
		}
		out = append(out, v)
	}
	return out, nil
}
