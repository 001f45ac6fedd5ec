package inplace

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sort"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// run is a piece that moves, in stretches of n bytes of which the last one in the piece may be shorter.
type run struct {
	disk.Shift
	n           int64
	first, many int64 // number of its first stretch, and how many it has
	redo        bool  // a stretch overlaps its own new place
}

// step is one stretch on its way.
type step struct {
	disk.Shift
	redo bool
}

// maxRuns bounds how many pieces move.
const maxRuns = 4096

// runs returns the pieces that move, in an order in which none overwrites what has still to move, and counts their
// stretches.
func (p *Plan) runs() (out []run, steps int64) {
	for _, x := range p.order {
		r := run{Shift: x, first: steps, n: p.Chunk}
		if far := distance(x); far >= p.Direct && far < p.Chunk {
			r.n = units.AlignDown(far, units.SectorSize)
		}
		r.redo = min(r.n, r.Len) > distance(x)
		r.many = (r.Len + r.n - 1) / r.n
		out, steps = append(out, r), steps+r.many
	}
	return out, steps
}

// distance returns how far a piece moves, in bytes.
func distance(x disk.Shift) int64 { return max(x.To-x.From, x.From-x.To) }

// at returns a stretch by its number. What moves up moves from its end on.
func (m *mover) at(i int64) step {
	r := m.runs[sort.Search(len(m.runs), func(k int) bool { return m.runs[k].first+m.runs[k].many > i })]
	k := i - r.first
	if r.To > r.From {
		k = r.many - 1 - k
	}
	off := k * r.n
	return step{disk.Shift{From: r.From + off, To: r.To + off, Len: min(r.n, r.Len-off)}, r.redo}
}

// fetched is a stretch that was read and, where it overlaps its own new place, saved in a half of the area.
type fetched struct {
	step
	chunk

	number int64
	half   int64
}

// fetch reads a stretch. One that overlaps its new place goes into the half of the area for which the last record does
// not vouch: the next record does.
func (m *mover) fetch(i int64, back bool) (*fetched, error) {
	x := &fetched{step: m.at(i), number: i, half: m.half}
	if back {
		x.From, x.To = x.To, x.From
	}
	var err error
	if x.chunk, err = m.read(x.From, x.Len); err != nil || !x.redo {
		return x, err
	}
	x.half = 1 - m.half
	if x.empty() {
		return x, nil
	}
	return x, m.log.WriteAt(x.data, x.half*m.plan.Chunk)
}

// one moves a stretch to its new place, or back.
func (m *mover) one(ctx context.Context, i int64, back bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	x, err := m.next, error(nil)
	if m.next = nil; x == nil || x.number != i {
		x, err = m.fetch(i, back)
	}
	if err != nil {
		return err
	}
	if m.Progress != nil {
		m.Progress(x.Len)
	}
	if !m.sure && x.empty() && allZero(m.disk, x.Dest()) {
		return nil // nothing changes, so that there is nothing to record
	}
	switch {
	case x.redo:
		m.half = x.half
		err = m.put(record{Phase: m.phase, Step: i, Half: x.half, Units: x.units, Pending: true})
	case m.known != m.step:
		// The places of stretches of zeros, which needed no record, are overwritten now: they may not be read again.
		err = m.put(record{Phase: m.phase, Step: m.step, Half: m.half})
	}
	if err != nil {
		return err
	}
	if err := x.write(m.disk, x.To, m.sure); err != nil {
		return err
	}
	m.sure = false
	after, next := i+1, i+1
	if back {
		after, next = i, i-1
	}
	if err := m.ahead(x, next, back); err != nil {
		return err
	}
	if err := m.disk.Sync(); err != nil {
		return err
	}
	m.known = after
	if x.redo {
		return nil
	}
	return m.put(record{Phase: m.phase, Step: after, Half: m.half})
}

// ahead reads and saves the stretch behind x while the storage writes x, which the last record vouches for. Its record
// comes when x is durable.
func (m *mover) ahead(x *fetched, next int64, back bool) (err error) {
	if x.redo && next >= 0 && next < m.steps && m.at(next).redo {
		m.next, err = m.fetch(next, back)
	}
	return err
}

// ordered sorts the pieces that move, each in front of those that overwrite it.
func ordered(pieces []disk.Shift) (out []disk.Shift, err error) {
	moves := slices.DeleteFunc(slices.Clone(pieces), func(x disk.Shift) bool { return x.From == x.To })
	if len(moves) > maxRuns {
		return nil, fmt.Errorf("%d pieces of the disk move: %w of %d", len(moves), ondisk.ErrLimit, maxRuns)
	}
	// From the end of the disk on, which is nearly always right at once.
	slices.SortFunc(moves, func(a, b disk.Shift) int { return cmp.Compare(b.To, a.To) })
	waits := make([]int, len(moves)) // for how many others
	blocks := func(i, k int) bool { return i != k && moves[k].Dest().Overlaps(moves[i].Source()) }
	for k := range moves {
		for i := range moves {
			if blocks(i, k) {
				waits[k]++
			}
		}
	}
	for len(out) < len(moves) {
		k := slices.Index(waits, 0)
		if k < 0 {
			return nil, fmt.Errorf("pieces of the disk change places with each other: %w in place",
				ondisk.ErrUnsupported)
		}
		waits[k] = -1
		out = append(out, moves[k])
		for i := range moves {
			if blocks(k, i) {
				waits[i]--
			}
		}
	}
	return out, nil
}

// within returns what two lists of sorted, disjoint ranges share.
func within(a, b []disk.Range) (out []disk.Range) {
	for i, k := 0, 0; i < len(a) && k < len(b); {
		from, end := max(a[i].Off, b[k].Off), min(a[i].End(), b[k].End())
		if from < end {
			out = append(out, disk.Range{Off: from, Len: end - from})
		}
		if a[i].End() < b[k].End() {
			i++
		} else {
			k++
		}
	}
	return out
}

// without returns what ranges leave of the disk up to end, behind the first sector. They are reordered.
func without(end int64, ranges []disk.Range) (out []disk.Range) {
	from := int64(markSize)
	for _, r := range disk.Merge(ranges) {
		if r.Off > from {
			out = append(out, disk.Range{Off: from, Len: min(r.Off, end) - from})
		}
		if from = max(from, r.End()); from >= end {
			return out
		}
	}
	return append(out, disk.Range{Off: from, Len: end - from})
}

// sources returns where pieces lie before the move.
func sources(pieces []disk.Shift) (out []disk.Range) {
	for _, x := range pieces {
		out = append(out, x.Source())
	}
	return out
}

// dests returns where pieces lie after the move.
func dests(pieces []disk.Shift) (out []disk.Range) {
	for _, x := range pieces {
		out = append(out, x.Dest())
	}
	return out
}

// dropped returns what is zero in the result, and was not before.
func (p *Plan) dropped() []disk.Range {
	held := sources(p.order)
	for _, s := range p.Saved[1:] {
		held = append(held, disk.Range{Off: s.Off, Len: int64(len(s.Bytes))})
	}
	return within(without(p.Size, dests(p.Pieces)), disk.Merge(held))
}

// covered returns what was zero or saved before, and is written by the move.
func (p *Plan) covered() []disk.Range {
	return within(without(p.OldEnd, sources(p.Pieces)), disk.Merge(dests(p.order)))
}
