package freespace

import (
	"fmt"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// whole returns why a partition is copied as a whole, as far as the layout shows it; "" where its bitmap decides.
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
		return "a system on the disk is hibernated: it goes on with what it has in memory"
	case l.Hidden:
		return "the image hides data"
	case l.Boot.Code == boot.Unknown, l.Boot.Code.Encrypts:
		return "the code of sector 0 is not known, or encrypts: it may use any sector"
	case l.Outer != nil && l.Outer.Kind != volume.Unknown:
		return fmt.Sprintf("the disk as a whole looks like %s", l.Outer.Kind)
	case len(f.volumes) >= maxVolumes:
		return fmt.Sprintf("it is behind the first %d volumes", maxVolumes)
	}
	return ""
}

// ofPlace returns a reason in where the partition lies.
func (f *finder) ofPlace(p boot.Partition) string {
	if p.Len <= 0 || p.Off < 0 || p.End() > f.disk.Size() || p.Volume.Size > p.Len {
		return "it does not lie on the disk as a whole"
	}
	for _, x := range f.layout.Partitions {
		if x.Number != p.Number && x.Kind != table.Extended && x.Overlaps(p.Range) {
			return fmt.Sprintf("partition %d lies over it", x.Number)
		}
	}
	return ""
}

// ofVolume returns a reason in what the partition holds.
func (f *finder) ofVolume(p boot.Partition) string {
	switch {
	case p.Volume.Kind == volume.Unknown:
		return "it is not known what it holds"
	case readers[p.Volume.Kind] == nil:
		return fmt.Sprintf("the free space of %s is not known", p.Volume.Kind)
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
