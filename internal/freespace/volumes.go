package freespace

import (
	"errors"
	"fmt"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
	"github.com/trueup/trueup/internal/volume/identify"
)

// maxFragmented limits the volumes of a disk that are counted. A table can name thousands.
const maxFragmented = 128

// Part is a part of the disk with a volume.
type Part struct {
	Number int    // of the partition, 0 for the whole disk
	Name   string // of a volume inside the partition: a logical volume of LVM, a slice
	Kind   volume.Kind
	disk.Range
	apart bool // it lies elsewhere, or in several places
}

// PartsOf returns the volume in a range of the disk, and its subdivisions.
func PartsOf(number int, r disk.Range, v *volume.Volume) []Part {
	out := []Part{{Number: number, Kind: v.Kind, Range: r}}
	for _, x := range v.Parts {
		inside := Part{Number: number, Name: x.Name, Range: disk.Range{Off: r.Off + x.Start, Len: x.Size}}
		inside.apart = x.Start < 0
		switch {
		case !inside.apart && (x.Size <= 0 || x.Size > r.Len-x.Start):
		case x.Start == 0 && systems[v.Kind].count != nil: // it is v itself
		default:
			out = append(out, inside)
		}
	}
	if len(out) > 1 && systems[v.Kind].count == nil {
		return out[1:] // the container itself has nothing to count
	}
	return out
}

// FragmentsOf holds the counts of one volume.
type FragmentsOf struct {
	Part
	guestfile.Census
	Err error // why the files were not counted
}

// Count counts the files of the parts with a supported file system. Its error is a read error of the disk.
func Count(d disk.Disk, parts []Part) ([]FragmentsOf, error) {
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
			if !ondisk.Understood(err) && !errors.Is(err, ondisk.ErrNoMatch) {
				return nil, err
			}
			v = FragmentsOf{Part: p, Err: err}
		}
		out = append(out, v)
	}
	return out, nil
}

// identify finds the kind of a volume inside another one. A file system larger than its place continues elsewhere.
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

// walk returns the file counter for a volume.
func (p *Part) walk() (func(*guestfile.Census, disk.Disk) error, error) {
	walk := systems[p.Kind].count
	switch {
	case p.apart:
		return nil, ondisk.In(ondisk.ErrUnsupported, "it is in several places, or not only on this disk")
	case walk == nil:
		return nil, ondisk.In(ondisk.ErrUnsupported, "files are counted only in NTFS, FAT12 to FAT32 and ext2 to ext4")
	}
	return walk, nil
}

// whole returns why the layout requires a full copy of a partition, or an empty string if its bitmap decides.
func (f *finder) whole(p boot.Partition) string {
	for _, reason := range []func(boot.Partition) string{f.ofDisk, f.ofPlace, f.ofVolume, f.ofBoot} {
		if why := reason(p); why != "" {
			return why
		}
	}
	return ""
}

// ofDisk returns a reason that concerns all volumes of the disk.
func (f *finder) ofDisk(boot.Partition) string {
	l := f.layout
	for _, i := range l.Issues {
		if i.Effect >= ondisk.Unbootable && (i.Partition == 0 || i.DiskWide) {
			return i.Text
		}
	}
	switch {
	case l.Boot.State == boot.Hibernated:
		return "a system on the disk is hibernated: it resumes with the state in its memory"
	case l.Hidden:
		return "the image has hidden data"
	case l.Boot.Code == boot.Unknown, l.Boot.Code.Encrypts:
		return "the code of sector 0 is unknown or encrypts the disk: it may use any sector"
	case l.Outer != nil && l.Outer.Kind != volume.Unknown:
		return fmt.Sprintf("the disk as a whole looks like %s", l.Outer.Kind)
	case len(f.volumes) >= maxVolumes:
		return fmt.Sprintf("it is behind the first %d volumes", maxVolumes)
	}
	return ""
}

// ofPlace returns a reason based on the location of the partition.
func (f *finder) ofPlace(p boot.Partition) string {
	if p.Len <= 0 || p.Off < 0 || p.End() > f.disk.Size() || p.Volume.Size > p.Len {
		return "it is not entirely on the disk"
	}
	for _, x := range f.layout.Partitions {
		if x.Number != p.Number && x.Kind != table.Extended && x.Overlaps(p.Range) {
			return fmt.Sprintf("partition %d overlaps it", x.Number)
		}
	}
	return ""
}

// ofVolume returns a reason based on the content of the partition.
func (f *finder) ofVolume(p boot.Partition) string {
	switch {
	case p.Volume.Kind == volume.Unknown:
		return "its content is unknown"
	case systems[p.Volume.Kind].free == nil:
		return fmt.Sprintf("the free space of %s is unknown", p.Volume.Kind)
	case len(p.Volume.Parts) > 0:
		return "it is divided into further volumes"
	case len(p.Volume.Issues) > 0:
		return p.Volume.Issues[0].Text
	}
	for _, i := range f.layout.Issues {
		if i.Partition == p.Number && i.Effect >= ondisk.Unbootable {
			return i.Text
		}
	}
	for _, s := range f.layout.Boot.Signs {
		if s.Partition == p.Number && s.State != boot.ShutDown {
			return s.Text
		}
	}
	return ""
}

// ofBoot returns a stored position within the partition: a loader reads sectors there, and not files.
func (f *finder) ofBoot(p boot.Partition) string {
	for _, r := range f.layout.Boot.Refs {
		if r.Disk == 0 && r.Points > p.Off && r.Points < p.End() {
			return fmt.Sprintf("%s points to byte %d within it", r.Name(), r.Points)
		}
	}
	return ""
}
