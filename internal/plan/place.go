package plan

import (
	"maps"
	"slices"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/units"
)

// placer chooses the start of each partition. Every partition has its own delta: tables that know cylinders put them at
// different distances from a boundary.
type placer struct {
	l     *layout.Layout
	goal  align.Goal
	slots []slot
	limit int64 // the end of what the table can name
}

// newPlacer divides a disk for a goal. Partitions stay that firmware or a loader finds by their place.
func newPlacer(l *layout.Layout, goal align.Goal) *placer {
	leave := maps.Clone(goal.Leave)
	for _, p := range l.Partitions {
		if p.Fixed != "" {
			if leave == nil {
				leave = map[int]string{}
			}
			leave[p.Number] = p.Fixed
		}
	}
	goal.Leave = leave
	c := &placer{l: l, goal: goal, slots: slotsOf(l), limit: limitOf(l)}
	for i := range c.slots {
		s := &c.slots[i]
		s.boundary = goal.Want
		if p, ok := l.Partition(s.part.Number); ok {
			s.moves = goal.Moves(p)
			s.anchor, s.boundary = goal.Anchor(p)
		}
	}
	return c
}

// place gives each partition its place on p. One that makes room for another keeps the alignment of its data (see
// align.Goal.Anchor), unless the disk would grow for that or a record would go too far: then the target is enough.
// stuck and ok are those of starts.
func (c *placer) place(p *Plan) (stuck int, ok bool) {
	if !slices.ContainsFunc(c.slots, func(s slot) bool { return s.boundary.Above(c.goal.Want) }) {
		return c.placeOnTarget(p)
	}
	to, _, kept := c.starts()
	kept = kept && c.settle(p, to)
	size := p.Size
	if kept && size == c.l.Size {
		return 0, true
	}
	for i := range c.slots {
		c.slots[i].boundary = c.goal.Want
	}
	if stuck, ok = c.placeOnTarget(p); kept && size <= p.Size {
		return 0, c.settle(p, to)
	}
	return stuck, ok
}

// placeOnTarget is place with the target as the boundary of all partitions.
func (c *placer) placeOnTarget(p *Plan) (stuck int, ok bool) {
	to, stuck, ok := c.starts()
	if !ok && c.bounded() {
		for i := range c.slots {
			c.slots[i].after = unbound(c.slots[i].after)
		}
		to, stuck, ok = c.starts()
	}
	return stuck, ok && c.settle(p, to)
}

// settle reports whether all that lies between partitions finds a place too.
func (c *placer) settle(p *Plan, to []int64) bool {
	starts := map[int]int64{}
	for i, s := range c.slots[1:] {
		starts[s.part.Number] = to[i+1]
	}
	return p.settle(c.l, starts, c.l.Size, c.goal.Mend) == nil
}

// starts returns the start of every partition, in the order of the slots. First everything goes to the next boundary
// that is free, towards the end of the disk. When that is too long, the last ones go back as far as they must, into
// space that is known to be free; the disk grows only by what does not fit even so. ok is false when the table cannot
// name such places, or when stuck, a slot that is to be left where it is, has no room for what lies in front of it.
func (c *placer) starts() (to []int64, stuck int, ok bool) {
	to = c.forward()
	least, end := c.leftmost()
	size := c.l.Size
	limit := c.l.Usable(size)
	if end > limit {
		limit = c.l.Usable(units.AlignUp(size+end-limit, units.MiB))
	}
	for i := len(c.slots) - 1; i > 0; i-- {
		fits := c.fits(i, to[i], limit)
		switch {
		case fits && len(c.goal.Leave) == 0 && !c.bounded():
			return to, 0, true
		case !fits && c.leaves(i):
			return to, i, false
		case !fits:
			if to[i], ok = c.back(i, least[i], to[i], limit); !ok {
				return to, stuck, false
			}
		}
		if limit = to[i]; c.leaves(i) {
			stuck = i
		}
	}
	_, _, ok = fit(c.slots[0].after, 0, 0, limit)
	return to, stuck, ok
}

// forward keeps a partition where it is when that is good enough and there is room; otherwise it goes to the next
// boundary, or into free space in front of it when that spares its neighbour. What is to be left stays, whatever
// comes.
func (c *placer) forward() []int64 {
	to := make([]int64, len(c.slots))
	_, end := arrange(c.slots[0].after, 0, 0, false)
	for i, s := range c.slots[1:] {
		off := s.part.Off
		if !c.leaves(i+1) && (c.needs(i+1) || off < end) {
			off = c.sparing(i+1, end, c.up(i+1, max(off, end)))
		}
		to[i+1] = off
		_, end = arrange(s.after, off+s.part.Len, off-s.part.Off, false)
	}
	return to
}

// sparing returns the place up for slot i, or a lower one from least on where up would push the next partition out of a
// place that is good enough, and the lower one does not.
func (c *placer) sparing(i int, least, up int64) int64 {
	if i+1 == len(c.slots) {
		return up
	}
	next := c.slots[i+1].part
	if c.needs(i+1) || c.fits(i, up, next.Off) {
		return up
	}
	if down, ok := c.back(i, least, up, next.Off); ok {
		return down
	}
	return up
}

// leftmost returns the lowest place that each partition can have, and the end of all.
func (c *placer) leftmost() (to []int64, end int64) {
	to = make([]int64, len(c.slots))
	_, end = arrange(c.slots[0].after, 0, 0, true)
	for i, s := range c.slots[1:] {
		off := c.up(i+1, end)
		if !c.needs(i+1) && s.part.Off >= end {
			off = min(off, s.part.Off)
		}
		if c.leaves(i + 1) {
			off = s.part.Off
		}
		to[i+1] = off
		_, end = arrange(s.after, off+s.part.Len, off-s.part.Off, true)
	}
	return to, end
}

// fits reports whether slot i can start at off and end, with what lies behind it, in front of limit.
func (c *placer) fits(i int, off, limit int64) bool {
	s := c.slots[i]
	end := off + s.part.Len
	_, _, ok := fit(s.after, end, off-s.part.Off, limit)
	return ok && end <= c.limit
}

// back returns the highest place from least to most for slot i in front of limit: its own, or on the boundary.
func (c *placer) back(i int, least, most, limit int64) (int64, bool) {
	own, want := c.slots[i].part.Off, c.slots[i].boundary
	low := c.up(i, least)
	best, ok := want.Last(low, most, func(off int64) bool { return c.fits(i, off, limit) })
	if !c.needs(i) && own >= least && own <= most && (!ok || own > best) && c.fits(i, own, limit) {
		return own, true
	}
	return best, ok
}

// up returns the lowest place from off on that puts the partition of slot i on its boundary.
func (c *placer) up(i int, off int64) int64 {
	s := c.slots[i]
	return s.boundary.Up(off+s.anchor) - s.anchor
}

// needs reports whether the partition of slot i moves on its own account.
func (c *placer) needs(i int) bool { return c.slots[i].moves }

// leaves reports whether the partition of slot i must stay where it is. Slot 0 has the number 0, which
// no partition has.
func (c *placer) leaves(i int) bool {
	return c.goal.Leaves(c.slots[i].part.Number)
}

// bounded reports whether a record has a last place, so that what went forward can be too far even in front of what
// fits.
func (c *placer) bounded() bool {
	return slices.ContainsFunc(c.slots, func(s slot) bool {
		return slices.ContainsFunc(s.after, func(x segment) bool { return x.most > 0 })
	})
}

// segment is something between two partitions that is kept.
type segment struct {
	disk.Range // in the source
	kind       segmentKind
	box        int // number of the extended partition of a record or an end
	// step is what the place of a record must be a multiple of, and most the last one that it can have; 0: any.
	step, most int64
}

type segmentKind int

const (
	front  segmentKind = iota // sector 0 and the gap behind it, where boot loaders live
	data                      // bytes of a gap that are not known to be zero
	record                    // an extended boot record
	boxEnd                    // where an extended partition ends; no bytes
)

// slot is a partition and what lies between it and the next one. The first slot of a disk has no partition.
type slot struct {
	part  layout.Item
	after []segment
	// anchor is the byte of the partition that is put on a boundary, see align.Goal.Anchor.
	anchor   int64
	boundary align.Boundary
	moves    bool // on its own account
}

// slotsOf divides a disk. Records and data keep their order among the partitions.
func slotsOf(l *layout.Layout) []slot {
	items := l.Items()
	first := l.Usable(l.Size)
	if len(items) > 0 {
		first = items[0].Off
	}
	out := make([]slot, 0, len(items)+1)
	out = append(out, slot{after: []segment{{Range: disk.Range{Len: first}, kind: front}}})
	for i, x := range items {
		last := &out[len(out)-1]
		switch x.Kind {
		case layout.PartitionItem:
			out = append(out, slot{part: x})
			last = &out[len(out)-1]
		case layout.RecordItem:
			last.after = append(last.after, segment{
				Range: x.Range, kind: record, box: x.Number, step: x.Step,
				most: x.Most,
			})
		case layout.BoxEndItem:
			last.after = append(last.after, segment{Range: x.Range, kind: boxEnd, box: x.Number})
		}
		if g := l.Gaps[i]; g.Data.Len > 0 {
			last.after = append(last.after, segment{Range: g.Data, kind: data})
		}
	}
	return out
}

// arrange gives each segment a place behind end, where the partition in front of them ends now, delta further than
// before. What can stay stays. Data that cannot moves as far as the partition, whose own it may be. tight lets
// everything go as far forward as it can instead. last is the place behind the last segment.
func arrange(segs []segment, end, delta int64, tight bool) (at []int64, last int64) {
	for _, s := range segs {
		to := max(s.Off, end)
		switch {
		case s.kind == data && s.Off < end:
			to = max(s.Off+delta, end)
		case s.kind == data && tight:
			to = min(s.Off, max(s.Off+delta, end))
		case s.kind == record && tight:
			to = end
		}
		if s.step > 0 {
			to = units.AlignUp(to, s.step)
		}
		at = append(at, to)
		end = to + s.Len
	}
	return at, end
}

// within reports whether no record went beyond the last place that it can have.
func within(segs []segment, at []int64) bool {
	for i, s := range segs {
		if s.most > 0 && at[i] > s.most {
			return false
		}
	}
	return true
}

// unbound lets records go anywhere that the table can name.
func unbound(segs []segment) []segment {
	segs = slices.Clone(segs)
	for i := range segs {
		segs[i].most = 0
	}
	return segs
}

// fit arranges segments in front of limit; ok is false when there is no room.
func fit(segs []segment, end, delta, limit int64) (at []int64, last int64, ok bool) {
	for _, tight := range []bool{false, true} {
		if at, last = arrange(segs, end, delta, tight); last <= limit && within(segs, at) {
			return at, last, end <= limit
		}
	}
	return at, last, false
}
