// This part of the package counts the files of the volumes of a disk, and what reading the worst of them costs in its
// image. It has the list of file systems whose files are counted.

package freespace

import (
	"errors"
	"fmt"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/fs/ext"
	"github.com/trueup/trueup/internal/fs/fat"
	"github.com/trueup/trueup/internal/fs/ntfs"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
	"github.com/trueup/trueup/internal/volume/identify"
)

// walks count the files of a volume.
var walks = map[volume.Kind]func(*guestfile.Census, disk.Disk) error{
	volume.NTFS:  ntfs.Fragments,
	volume.FAT12: fat.Fragments,
	volume.FAT16: fat.Fragments,
	volume.FAT32: fat.Fragments,
	volume.Ext2:  ext.Fragments,
	volume.Ext3:  ext.Fragments,
	volume.Ext4:  ext.Fragments,
}

// maxVolumes bounds the volumes of a disk that are looked into. A table can name thousands.
const maxFragmented = 128

// Part is a part of the disk with a volume.
type Part struct {
	Number int    // of the partition, 0 for the whole disk
	Name   string // of a volume inside of the partition: a logical volume of LVM, a slice
	Kind   volume.Kind
	disk.Range
	apart bool // it lies elsewhere, or in several places
}

// PartsOf returns the volume in a range of the disk, and the volumes into which it is divided.
func PartsOf(number int, r disk.Range, v *volume.Volume) []Part {
	out := []Part{{Number: number, Kind: v.Kind, Range: r}}
	for _, x := range v.Parts {
		inside := Part{Number: number, Name: x.Name, Range: disk.Range{Off: r.Off + x.Start, Len: x.Size}}
		inside.apart = x.Start < 0
		switch {
		case x.Own || !inside.apart && (x.Size <= 0 || x.Size > r.Len-x.Start):
		case x.Start == 0 && walks[v.Kind] != nil: // it is v itself
		default:
			out = append(out, inside)
		}
	}
	if len(out) > 1 && walks[v.Kind] == nil {
		return out[1:] // of the container there is nothing to say
	}
	return out
}

// FragmentsOf holds the counts of one volume.
type FragmentsOf struct {
	Part
	guestfile.Census
	Reads []*align.Reads // of the worst files, in their order; nil for one where they are not known
	Err   error          // why the files were not counted
}

// Count counts the files of those parts whose file system has a walk. An error is one of reading the disk.
func Count(d disk.Disk, parts []Part, cost *align.Cost) ([]FragmentsOf, error) {
	budget := guestfile.NewFragmentBudget()
	out := []FragmentsOf{}
	for _, p := range parts {
		if !p.apart && (p.Len <= 0 || p.Off < 0 || p.End() > d.Size()) || p.Kind == volume.Unknown ||
			p.Kind == volume.Swap {
			continue
		}
		if len(out) == maxFragmented {
			err := fmt.Errorf("partition %d: %w of %d volumes", p.Number, ondisk.ErrLimit, maxFragmented)
			return append(out, FragmentsOf{Part: p, Err: err}), nil
		}
		if err := p.identify(d); err != nil {
			return nil, err
		}
		walk, err := p.walk()
		if err != nil {
			out = append(out, FragmentsOf{Part: p, Err: err})
			continue
		}
		v := FragmentsOf{Part: p, Census: guestfile.Census{Budget: budget}}
		if err := walk(&v.Census, disk.Section(d, p.Range)); err != nil {
			err = ondisk.Shift(err, p.Off)
			if !v.Broken(err) && !errors.Is(err, ondisk.ErrNoMatch) {
				return nil, err
			}
			v = FragmentsOf{Part: p, Err: err}
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

// identify finds the kind of a volume inside of another one. A file system that is larger than its place goes on
// elsewhere.
func (p *Part) identify(d disk.Disk) error {
	if p.Name == "" || p.apart {
		return nil
	}
	v, err := identify.Probe(disk.Section(d, p.Range), p.Off)
	if err != nil {
		return err
	}
	p.Kind, p.apart = v.Kind, v.Size > p.Len
	return nil
}

// walk returns what counts the files of a volume.
func (p *Part) walk() (func(*guestfile.Census, disk.Disk) error, error) {
	walk := walks[p.Kind]
	switch {
	case p.apart:
		return nil, ondisk.In(ondisk.ErrUnsupported, "it lies in several places, or not on this disk alone")
	case walk == nil:
		return nil, ondisk.In(ondisk.ErrUnsupported, "only the files of NTFS, FAT12 to FAT32 and ext2 to ext4 are")
	}
	return walk, nil
}
