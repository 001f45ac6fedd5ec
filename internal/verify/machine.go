package verify

import (
	"fmt"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/layout"
)

// Elsewhere reads from a copy where the partitions of other disks of its machine went, when those disks are not at
// hand: a reference may name another place, where a partition can have been moved to, and all references to one place
// must name the same.
func Elsewhere(before, after *layout.Layout) (*layout.Machine, error) {
	m := &layout.Machine{}
	if len(before.Boot.Refs) != len(after.Boot.Refs) {
		return m, nil // a difference, which Promise reports
	}
	to, from := map[boot.Place]int64{}, map[boot.Place]int64{}
	for i, was := range before.Boot.Refs {
		is := after.Boot.Refs[i]
		if was.Disk == 0 || was.Encode == nil || is.Disk != was.Disk {
			continue
		}
		other, seen := to[was.Names()]
		if seen && other != is.Points {
			return nil, fmt.Errorf("%w: %s points to byte %d of disk 0x%08x, and another reference of the same "+
				"place to byte %d",
				ErrDifferent, was.Name(), is.Points, was.Disk, other)
		}
		to[was.Names()] = is.Points
		m.Follow(was.Names(), is.Points)
		if is.Points == was.Points {
			continue
		}
		origin, taken := from[is.Names()]
		off := !align.SmallestBoundary.On(is.Points) && !align.SmallestBoundary.On(is.Points-was.Points)
		if taken && origin != was.Points || is.Points <= 0 || off {
			return nil, fmt.Errorf("%w: %s points to byte %d of disk 0x%08x instead of %d, and no partition "+
				"was moved there",
				ErrDifferent, was.Name(), is.Points, was.Disk, was.Points)
		}
		from[is.Names()] = was.Points
	}
	return m, nil
}
