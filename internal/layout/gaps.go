package layout

import (
	"cmp"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
)

// Gap is space behind a partition that belongs to none: up to the next one, or to the end of the disk. It may be empty.
type Gap struct {
	disk.Range
	// Zero is how many bytes from the start are known to be zero. Space that is not known to be zero is kept as if it held
	// data.
	Zero int64
}

// InDiskOrder lists the partitions that lie side by side.
func (l *Layout) InDiskOrder() []Partition {
	parts := slices.DeleteFunc(slices.Clone(l.Partitions), func(p Partition) bool { return p.Kind == table.Logical })
	slices.SortFunc(parts, func(a, b Partition) int { return cmp.Compare(a.Off, b.Off) })
	return parts
}

// ReadGaps measures the gap behind each partition, in disk order. It reads at most limit bytes of each: a plan needs to know
// only as much as its partitions move.
func (l *Layout) ReadGaps(d disk.Disk, limit int64) error {
	l.Gaps = nil
	parts := l.InDiskOrder()
	for i, p := range parts {
		end := l.Size
		if i+1 < len(parts) {
			end = min(parts[i+1].Off, l.Size) // a broken table can name places behind the disk
		}
		g := Gap{Range: disk.Range{Off: min(p.End(), l.Size), Len: max(0, end-p.End())}}
		var err error
		if g.Zero, err = leadingZeros(d, g.Range, limit); err != nil {
			return err
		}
		l.Gaps = append(l.Gaps, g)
	}
	return nil
}

// leadingZeros counts zero bytes from the start of r in whole sectors. Holes cost no reading and do not count towards the
// limit.
func leadingZeros(d disk.Disk, r disk.Range, limit int64) (int64, error) {
	buf := make([]byte, 64<<10)
	n := int64(0)
	for n < r.Len && limit > 0 {
		e, err := d.Extent(r.Off+n, r.Len-n)
		if err != nil {
			return 0, err
		}
		if e.Zero {
			n += e.Len
			continue
		}
		b := buf[:min(int64(len(buf)), e.Len, limit)]
		if err := ondisk.ReadFull(d, b, r.Off+n); err != nil {
			return 0, err
		}
		limit -= int64(len(b))
		for len(b) > 0 {
			s := b[:min(int64(len(b)), d.SectorSize())]
			if !ondisk.IsZero(s) {
				return n, nil
			}
			n += int64(len(s))
			b = b[len(s):]
		}
	}
	return n, nil
}
