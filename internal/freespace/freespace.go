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
	"github.com/trueup/trueup/internal/volume/identify"
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

// Stored returns the number of omitted bytes that the image stores.
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

// inUse returns an error if a volume at byte start of the disk uses a range that it reported as free.
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

// result returns the free space, with the counts of each volume.
func (f *finder) result() (*Found, error) {
	for i := range f.volumes {
		if v := &f.volumes[i]; v.Whole == "" {
			if err := f.count(v); err != nil {
				return nil, err
			}
		}
	}
	return &Found{f.ranges, f.volumes}, nil
}

// count counts the free ranges of a volume, their bytes and the stored ones among them.
func (f *finder) count(v *Volume) error {
	at := disk.Range{Len: f.layout.Size}
	if p, ok := f.layout.Partition(v.Partition); ok {
		at = p.Range
	}
	for _, free := range disk.Overlapping(f.ranges, at) {
		v.Ranges++
		v.LeftOut += free.Len
		for e, err := range disk.Extents(f.disk, free) {
			if err != nil {
				return err
			}
			if !e.Zero {
				v.Stored += e.Len
			}
		}
	}
	return nil
}

// ofNTFS finds the free space of an NTFS. It returns an error if the log is open, because a replay could change the
// volume.
func ofNTFS(b *guestfile.Budget, d disk.Disk, free *guestfile.FreeRuns, used func(disk.Range) error) error {
	opened, err := ntfs.Open(b, d)
	if err != nil {
		return err
	}
	log, err := opened.Open("$LogFile")
	if err != nil {
		return err
	}
	read, err := opened.(ntfs.Volume).Log(log) //nolint:forcetypeassert // Open returns no others
	switch {
	case err != nil:
		return err
	case read.State == ntfs.OpenLog:
		return ondisk.In(ondisk.ErrUnsupported, "$LogFile is open: the volume was in use")
	}
	return ntfs.Unused(b, d, free, used)
}

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
		v, err := p.count(d, budget)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// count counts the files of one part.
func (p *Part) count(d disk.Disk, budget *guestfile.Budget) (FragmentsOf, error) {
	if err := p.identify(d); err != nil {
		return FragmentsOf{}, err
	}
	walk, err := p.walk()
	if err != nil {
		return FragmentsOf{Part: *p, Err: err}, nil //nolint:nilerr // the part carries it
	}
	v := FragmentsOf{Part: *p, Census: guestfile.Census{Budget: budget}}
	err = ondisk.Shift(walk(&v.Census, disk.Section(d, p.Range)), p.Off)
	if ondisk.Understood(err) || errors.Is(err, ondisk.ErrNoMatch) {
		return FragmentsOf{Part: *p, Err: err}, nil
	}
	return v, err
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

// ofVolume returns the reason in the content of a partition that requires a full copy, or an empty string.
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
