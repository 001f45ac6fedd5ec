// Package freespace finds what the volumes of a disk call free, so that a copy can have zeros there. A volume in which
// anything casts doubt on that is left as it is, with the reason.
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

// reader hands out the free space of a volume, and then what is in use as far as that is known.
type reader func(b *guestfile.Budget, d disk.Disk, free *guestfile.FreeRuns, used func(disk.Range) error) error

// systems are the file systems whose free space is known, and whose files are counted.
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

// Limits. All depend on the disk alone, so that a proof finds the same ranges.
const (
	maxVolumes = 128
	maxRanges  = 1 << 17
	budget     = 64 << 30 // bytes of structures of all volumes, weighed by what parsing them costs

	// MinRange is the shortest range that is left out, in bytes: to read around a shorter one takes as long as to read
	// it.
	MinRange = 64 * units.KiB
)

// Volume is what becomes of a volume.
type Volume struct {
	Partition int         `json:"partition"` // its number; 0: the whole disk
	Kind      volume.Kind `json:"content"`
	Free      int64       `json:"free_bytes"`      // that it calls free
	Ranges    int64       `json:"ranges"`          // that are left out
	LeftOut   int64       `json:"left_out_bytes"`  // of those: zeros in a copy
	Stored    int64       `json:"stored_bytes"`    // of those, which the image stores and nothing reads
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

// Stored returns the bytes that are left out and that the image stores.
func (f *Found) Stored() (n int64) {
	if f == nil {
		return 0
	}
	for _, v := range f.Volumes {
		n += v.Stored
	}
	return n
}

// Find finds the free space of the volumes of a disk. The error is one of reading.
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
	least   int64        // bytes of a range that is kept
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
		case boot.Understood(err), errors.Is(err, ondisk.ErrNoMatch), errors.Is(err, fs.ErrNotExist):
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

// add adds free space of a partition. Where there are too many ranges, the shortest of the disk stay as they are.
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

// inUse refuses a volume at byte start of the disk that uses what it calls free.
func (f *finder) inUse(start int64, r disk.Range) error {
	r.Off += start
	if hit := disk.Overlapping(f.ranges, r); len(hit) > 0 {
		at := max(r.Off, hit[0].Off) - start
		return ondisk.Field("volume", "block", at, "called free, and in use", "one of both")
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

// result counts what is left out.
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

// ofNTFS refuses a log that a replay could change the volume by.
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
