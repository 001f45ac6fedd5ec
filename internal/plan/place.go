package plan

import (
	"maps"
	"slices"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/units"
)

// placer chooses the start of each partition. Every partition has its own delta, because CHS tables put them at
// different distances from a boundary.
type placer struct {
	l     *layout.Layout
	goal  align.Goal
	slots []slot
	limit int64 // end of the space that the table can address
}

// newPlacer divides a disk for a goal. Partitions that firmware or a loader finds by their place stay.
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

// place places all partitions on p. A partition that makes room for another keeps the alignment of its data (see
// align.Goal.Anchor). If that would grow the disk or move a boot record too far, the target is enough. The results are
// the same as for starts.
func (c *placer) place(p *Plan) (stuck int, ok bool) {
	to, _, kept := c.starts()
	kept = kept && c.build(p, to)
	size := p.Size
	if kept && size == c.l.Size {
		return 0, true
	}
	if stuck, ok = c.placeOnTarget(p); kept && size <= p.Size {
		return 0, c.build(p, to)
	}
	return stuck, ok
}

// placeOnTarget is place with the target as the boundary of all partitions.
func (c *placer) placeOnTarget(p *Plan) (stuck int, ok bool) {
	for i := range c.slots {
		c.slots[i].boundary = c.goal.Want
	}
	to, stuck, ok := c.starts()
	if !ok {
		for i := range c.slots {
			c.slots[i].after = unbound(c.slots[i].after)
		}
		to, stuck, ok = c.starts()
	}
	return stuck, ok && c.build(p, to)
}

// build builds p with the partitions at to, and reports whether everything between them finds a place too.
func (c *placer) build(p *Plan, to []int64) bool {
	starts := map[int]int64{}
	for i, s := range c.slots[1:] {
		starts[s.part.Number] = to[i+1]
	}
	p.Notes = nil // of places that were tried before
	return p.build(c.l, starts, c.l.Size, c.goal.Mend) == nil
}

// starts returns the start of every partition, in slot order. First, partitions move to the next free boundary, towards
// the end of the disk. If the disk is too short, the last ones move back into free space as far as necessary; the disk
// grows only by the rest. ok is false if the table cannot address such places, or if slot stuck must stay and has too
// little space before it.
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

// forward keeps a partition in place if it needs no move and has room. Otherwise the partition goes to the next
// boundary, or into free space before it to spare the next partition. A partition in Goal.Leave always stays.
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

// sparing returns the place of slot i: up, or a lower place from least on. It prefers the lower place only if up would
// displace the next partition, which needs no move, and the lower place does not.
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

// leftmost returns the lowest possible place of each partition, and the end of the last.
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

// fits reports whether slot i, placed at off with its segments, ends before limit.
func (c *placer) fits(i int, off, limit int64) bool {
	s := c.slots[i]
	end := off + s.part.Len
	_, _, ok := fit(s.after, end, off-s.part.Off, limit)
	return ok && end <= c.limit
}

// back returns the highest place from least to most for slot i before limit: its old place, or one on the boundary.
func (c *placer) back(i int, least, most, limit int64) (int64, bool) {
	own, want := c.slots[i].part.Off, c.slots[i].boundary
	low := c.up(i, least)
	best, ok := want.Last(low, most, func(off int64) bool { return c.fits(i, off, limit) })
	if !c.needs(i) && own >= least && own <= most && (!ok || own > best) && c.fits(i, own, limit) {
		return own, true
	}
	return best, ok
}

// up returns the lowest place from off on with the partition of slot i on its boundary.
func (c *placer) up(i int, off int64) int64 {
	s := c.slots[i]
	return s.boundary.Up(off+s.anchor) - s.anchor
}

// needs reports whether the partition of slot i moves for its own alignment.
func (c *placer) needs(i int) bool { return c.slots[i].moves }

// leaves reports whether the partition of slot i must stay. Slot 0 has no partition, and no partition has the number 0.
func (c *placer) leaves(i int) bool {
	return c.goal.Leaves(c.slots[i].part.Number)
}

// bounded reports whether a boot record has a highest place. Then the places of forward can be too high, even if
// everything fits.
func (c *placer) bounded() bool {
	return slices.ContainsFunc(c.slots, func(s slot) bool {
		return slices.ContainsFunc(s.after, func(x segment) bool { return x.most > 0 })
	})
}

// segment is a range to keep between two partitions.
type segment struct {
	disk.Range // in the source
	kind       segmentKind
	box        int // number of the extended partition of a record or an end
	// step is the granularity of the place of a record, and most the highest place. 0 means no limit.
	step, most int64
}

type segmentKind int

const (
	front  segmentKind = iota // sector 0 and the gap after it, the place of boot loaders
	data                      // bytes of a gap not known to be zero
	record                    // an extended boot record
	boxEnd                    // end of an extended partition; no bytes
)

// slot is a partition and the segments after it. The first slot of a disk has no partition.
type slot struct {
	part  layout.Item
	after []segment
	// anchor is the offset in the partition of the byte on a boundary, see align.Goal.Anchor.
	anchor   int64
	boundary align.Boundary
	moves    bool // for its own alignment
}

// slotsOf divides a disk into slots. Records and data keep their order among the partitions.
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

// arrange places segments after end, the new end of the partition before them, which moves by delta. A segment stays if
// possible. Data that cannot stay move by delta, because they may belong to the partition. tight moves all segments as
// close to the start of the disk as possible instead. last is the end of the last segment.
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

// within reports whether all records are at or below their highest place.
func within(segs []segment, at []int64) bool {
	for i, s := range segs {
		if s.most > 0 && at[i] > s.most {
			return false
		}
	}
	return true
}

// unbound removes the highest places of records, so that only the table limits them.
func unbound(segs []segment) []segment {
	segs = slices.Clone(segs)
	for i := range segs {
		segs[i].most = 0
	}
	return segs
}

// fit arranges segments before limit. ok reports whether they fit.
func fit(segs []segment, end, delta, limit int64) (at []int64, last int64, ok bool) {
	for _, tight := range []bool{false, true} {
		if at, last = arrange(segs, end, delta, tight); last <= limit && within(segs, at) {
			return at, last, end <= limit
		}
	}
	return at, last, false
}
