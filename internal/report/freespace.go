package report

import (
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// freeSpace is what --skip-free does to a volume.
type freeSpace struct {
	Partition int         `json:"partition"` // 0: the whole disk
	Content   volume.Kind `json:"content"`
	Free      int64       `json:"free_bytes"`     // by its bitmap or table
	Ranges    int64       `json:"ranges"`         // that are left out
	LeftOut   int64       `json:"left_out_bytes"` // in those: zeros in the copy
	Stored    int64       `json:"stored_bytes"`   // of those, which SOURCE stores and nothing reads
	Whole     string      `json:"whole,omitempty"`
}

func newFreeSpace(p *plan.Plan) (out []freeSpace) {
	if p.Unused == nil {
		return nil
	}
	for _, v := range p.Unused.Volumes {
		out = append(out, freeSpace{v.Partition, v.Kind, v.Free, v.Ranges, v.LeftOut, v.Stored, v.Whole})
	}
	return out
}

// leavesOut reports whether zeros stand for free space.
func (c Changes) leavesOut() bool {
	return slices.ContainsFunc(c.FreeSpace, func(v freeSpace) bool { return v.LeftOut > 0 })
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
		t.para(4, "%s: %s", v.subject(), v.text())
	}
}

func (v freeSpace) subject() string {
	if v.Partition == 0 {
		return "disk"
	}
	return fmt.Sprintf("partition %d", v.Partition)
}

func (v freeSpace) text() string {
	if v.Whole != "" {
		return "copied with its free space: " + SafeMessage(v.Whole)
	}
	return fmt.Sprintf("%s, left out %s of free space in %s, of which SOURCE stores %s",
		volumeName(string(v.Content), ""),
		units.Format(v.LeftOut), units.Counted(v.Ranges, "range"), units.Format(v.Stored))
}
