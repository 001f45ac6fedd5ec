package report

import (
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/freespace"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/units"
)

func newFreeSpace(p *plan.Plan) []freespace.Volume {
	if p.Unused == nil {
		return nil
	}
	return p.Unused.Volumes
}

// leavesOut reports whether zeros stand for free space.
func (c Changes) leavesOut() bool {
	return slices.ContainsFunc(c.FreeSpace, func(v freespace.Volume) bool { return v.LeftOut > 0 })
}

// outside limits a claim on every byte of a copy.
func (c Changes) outside() string {
	if c.leavesOut() {
		return " outside of free space"
	}
	return ""
}

// freeSpace prints what becomes of the free space of each volume.
func (t *Text) freeSpace(c Changes) {
	for _, v := range c.FreeSpace {
		t.printf("  ")
		where := "disk"
		if v.Partition > 0 {
			where = fmt.Sprintf("partition %d", v.Partition)
		}
		t.para(4, "%s: %s", where, freeSpaceText(v))
	}
}

func freeSpaceText(v freespace.Volume) string {
	if v.Whole != "" {
		return "copied with its free space: " + SafeMessage(v.Whole)
	}
	return fmt.Sprintf("%s, left out %s of free space in %s, of which SOURCE stores %s",
		volumeName(string(v.Kind), ""),
		units.Format(v.LeftOut), units.Counted(v.Ranges, "range"), units.Format(v.Stored))
}
