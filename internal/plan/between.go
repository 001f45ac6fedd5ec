package plan

import (
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/units"
)

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
	anchor, boundary int64
	moves            bool // on its own account
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
