// Package freespace finds the free space in the volumes of a disk, so that a copy can have zeros there. A volume with
// any doubt about its free space is copied whole, with the reason.
package freespace

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/fs/ext"
	"github.com/trueup/trueup/internal/fs/fat"
	"github.com/trueup/trueup/internal/fs/ntfs"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// reader reports the free space of a volume, and then the ranges known to be in use.
type reader func(b *guestfile.Budget, d disk.Disk, free *guestfile.FreeRuns, used func(disk.Range) error) error

// systems maps the file systems with known free space to their readers and file counters.
var systems = map[volume.Kind]struct {
	free  reader
	count func(*guestfile.Census, disk.Disk) error
}{
	volume.NTFS:  {ofNTFS, ntfs.Fragments},
	volume.FAT12: {fat.Unused, fat.Fragments},
	volume.FAT16: {fat.Unused, fat.Fragments},
	volume.FAT32: {fat.Unused, fat.Fragments},
	volume.Ext2:  {ext.Unused, ext.Fragments},
	volume.Ext3:  {ext.Unused, ext.Fragments},
	volume.Ext4:  {ext.Unused, ext.Fragments},
}

// Limits. All depend only on the disk, so that a proof finds the same ranges.
const (
	maxVolumes = 128
	maxRanges  = 1 << 17
	budget     = 64 << 30 // bytes of structures of all volumes, weighted by parsing cost

	// MinRange is the shortest range left out, in bytes: reading around a shorter one is no faster than reading it.
	MinRange = 64 * units.KiB
)

// Volume is the result for one volume.
type Volume struct {
	Partition int         `json:"partition"` // its number; 0 for the whole disk
	Kind      volume.Kind `json:"content"`
	Free      int64       `json:"free_bytes"`      // free according to the volume
	Ranges    int64       `json:"ranges"`          // left out
	LeftOut   int64       `json:"left_out_bytes"`  // in Ranges: zeros in a copy
	Stored    int64       `json:"stored_bytes"`    // of LeftOut, stored by the image and not read
	Whole     string      `json:"whole,omitempty"` // why nothing is left out
}

// Found is the free space of a disk.
type Found struct {
	Ranges  []disk.Range // of the disk, in order
	Volumes []Volume
}

// View returns the disk with zeros in its free space.
func (f *Found) View(d disk.Disk) disk.Disk {
	if f == nil || len(f.Ranges) == 0 {
		return d
	}
	pieces := make([]disk.Piece, len(f.Ranges))
	for i, r := range f.Ranges {
		pieces[i].Range = r
	}
	return disk.New(d.Size(), d.SectorSize(), disk.Pieces(d.Size(), pieces, disk.Whole(d, d.Size())))
}

// Stored returns the bytes left out that the image stores.
func (f *Found) Stored() (n int64) {
	if f == nil {
		return 0
	}
	for _, v := range f.Volumes {
		n += v.Stored
	}
	return n
}

// Find finds the free space of the volumes of a disk. Its error is a read error.
func Find(d disk.Disk, l *layout.Layout) (*Found, error) {
	f := finder{disk: d, layout: l, least: MinRange, budget: guestfile.NewBudget()}
	f.budget.Work.Limit = budget
	if l.Table == nil {
		whole := boot.Partition{Partition: table.Partition{Range: disk.Range{Len: l.Size}}, Volume: l.Volume}
		if err := f.look(whole); err != nil {
			return nil, err
		}
	}
	for _, p := range l.InDiskOrder() {
		if err := f.look(p); err != nil {
			return nil, fmt.Errorf("partition %d: %w", p.Number, err)
		}
	}
	var stored []disk.Range
	for _, r := range l.Boot.Refs {
		stored = append(stored, r.At...)
	}
	f.cut(disk.Merge(stored))
	return f.result()
}

// finder finds the free space of a disk.
type finder struct {
	disk    disk.Disk
	layout  *layout.Layout
	budget  *guestfile.Budget
	ranges  []disk.Range // of the disk
	least   int64        // minimum length of a range in bytes
	volumes []Volume
}

// look finds the free space of a partition.
func (f *finder) look(p boot.Partition) error {
	v := Volume{Partition: p.Number, Kind: p.Volume.Kind, Whole: f.whole(p)}
	if v.Whole == "" {
		free := guestfile.FreeRuns{Each: func(r disk.Range) {
			f.add(disk.Range{Off: p.Off + r.Off, Len: r.Len}, p.Range)
		}}
		err := systems[v.Kind].free(f.budget, disk.Section(f.disk, p.Range), &free, func(r disk.Range) error {
			return f.inUse(p.Off, r)
		})
		switch err = ondisk.Shift(err, p.Off); {
		case ondisk.Understood(err), errors.Is(err, ondisk.ErrNoMatch), errors.Is(err, fs.ErrNotExist):
			v.Whole = err.Error()
			f.ranges = slices.DeleteFunc(f.ranges, p.Contains)
		case err != nil:
			return err
		default:
			v.Free = free.Bytes
		}
	}
	f.volumes = append(f.volumes, v)
	return nil
}

// add adds free space of a partition. If there are too many ranges, it drops the shortest ones of the disk.
func (f *finder) add(r, within disk.Range) {
	r.Len = min(r.End(), within.End()) - r.Off
	if r.Len < f.least {
		return
	}
	f.ranges = append(f.ranges, r)
	for len(f.ranges) > maxRanges {
		f.least *= 2
		f.ranges = slices.DeleteFunc(f.ranges, func(x disk.Range) bool { return x.Len < f.least })
	}
}

// inUse rejects a volume at byte start of the disk that uses a range it reported as free.
func (f *finder) inUse(start int64, r disk.Range) error {
	r.Off += start
	if hit := disk.Overlapping(f.ranges, r); len(hit) > 0 {
		at := max(r.Off, hit[0].Off) - start
		return ondisk.Field("volume", "block", at, "free and in use", "only one of the two")
	}
	return nil
}

// cut removes ranges of the disk from the free space.
func (f *finder) cut(taken []disk.Range) {
	var left []disk.Range
	for _, free := range f.ranges {
		left = append(left, disk.Gaps(free, taken)...)
	}
	f.ranges = slices.DeleteFunc(left, func(x disk.Range) bool { return x.Len < f.least })
}

// result counts the bytes left out.
func (f *finder) result() (*Found, error) {
	for i := range f.volumes {
		v := &f.volumes[i]
		at := disk.Range{Len: f.layout.Size}
		if p, ok := f.layout.Partition(v.Partition); ok {
			at = p.Range
		}
		if v.Whole != "" {
			continue
		}
		for _, free := range disk.Overlapping(f.ranges, at) {
			v.Ranges++
			v.LeftOut += free.Len
			for e, err := range disk.Extents(f.disk, free) {
				if err != nil {
					return nil, err
				}
				if !e.Zero {
					v.Stored += e.Len
				}
			}
		}
	}
	return &Found{f.ranges, f.volumes}, nil
}

// ofNTFS rejects a volume with an open log, whose replay could change it.
func ofNTFS(b *guestfile.Budget, d disk.Disk, free *guestfile.FreeRuns, used func(disk.Range) error) error {
	opened, err := ntfs.Open(b, d)
	if err != nil {
		return err
	}
	log, err := opened.Open("$LogFile")
	if err != nil {
		return err
	}
	v := opened.(ntfs.Volume) //nolint:forcetypeassert // Open returns no others
	cluster, record := v.Sizes()
	read, err := ntfs.Read(log, ntfs.LogVolume{Source: d, Cluster: cluster, Record: record, MFT: v.Record})
	switch {
	case err != nil:
		return err
	case read.State == ntfs.OpenLog:
		return ondisk.In(ondisk.ErrUnsupported, "$LogFile is open: the volume was in use")
	}
	return ntfs.Unused(b, d, free, used)
}
