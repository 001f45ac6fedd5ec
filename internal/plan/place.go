package plan

import (
	"fmt"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
)

// placer chooses the start of each partition. Every partition has its own delta: tables that know cylinders put them at
// different distances from a boundary.
type placer struct {
	l    *layout.Layout
	goal align.Goal
	plan *Plan
}

// movable tells whether a partition can get another start: logical ones and GPT cannot yet.
func movable(p layout.Partition) bool { return p.Kind == table.Primary }

// choose keeps a partition where it is when that is good enough and there is room; otherwise it goes to the next boundary.
// Partitions only ever move towards the end of the disk.
func (c *placer) choose(p layout.Partition, least int64) (int64, error) {
	needs := c.needs(p)
	if !needs && p.Off >= least {
		return p.Off, nil
	}
	if !movable(p) {
		c.refuseKind(p, needs)
		return max(p.Off, least), nil // keeps the rest of the dry run readable; the refusal keeps it from being copied
	}
	to := units.AlignUp(max(p.Off, least), c.goal.Want)
	if last := (to + max(p.Len, 1) - 1) / c.l.SectorSize; last > table.MaxLBA {
		c.plan.refuse("limit", ondisk.ErrLimit, p.Number, fmt.Sprintf("would end at LBA %d, and an MBR cannot name sectors beyond %d", last, int64(table.MaxLBA)),
			"move the disk to GPT in the guest first")
		return p.Off, nil
	}
	return to, nil
}

// needs tells whether a partition is off the boundary, or holds a logical one that is, and is selected.
func (c *placer) needs(p layout.Partition) bool {
	if p.Kind != table.Extended {
		return c.goal.Selects(p.Number) && p.Off%c.goal.Must != 0
	}
	for _, q := range c.l.Partitions {
		if q.Kind == table.Logical && p.Contains(q.Range) && c.goal.Selects(q.Number) && q.Off%c.goal.Must != 0 {
			return true
		}
	}
	return false
}

func (c *placer) refuseKind(p layout.Partition, needs bool) {
	what := "logical partitions are read and reported, but not moved yet"
	if p.Kind == table.Entry {
		what = "partitions of a GPT are read and reported, but not moved yet"
	}
	if !needs {
		what = "would have to make room; " + what
	}
	remedy := "leave them as they are and align the primary partitions with --partition N"
	if p.Kind == table.Entry || !needs {
		remedy = "use the guest's own tools, or a later version of trueup"
	}
	c.plan.refuse("unsupported", ondisk.ErrUnsupported, p.Number, what, remedy)
}
