package inplace

import (
	"cmp"
	"context"
	"fmt"
	"io"
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

// step is a stretch on its way, or several beside each other.
type step struct {
	disk.Shift
	redo bool
}

const (
	maxRuns = 4096 // bounds how many pieces move
	maxMany = 64   // bounds how many stretches go as one: their units must fit into a record
)

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

// run returns the piece of a stretch.
func (m *mover) run(i int64) run {
	return m.runs[sort.Search(len(m.runs), func(k int) bool { return m.runs[k].first+m.runs[k].many > i })]
}

// at returns so many stretches of a piece as one, from the number of the first on. What moves up moves from its end on.
func (m *mover) at(i, many int64) step {
	r := m.run(i)
	k := i - r.first
	if r.To > r.From {
		k = r.many - many - k
	}
	off := k * r.n
	return step{disk.Shift{From: r.From + off, To: r.To + off, Len: min(many*r.n, r.Len-off)}, r.redo}
}

// fetched is a stretch that was read. Where it overlaps its own new place, it is saved in a half of the area, together
// with those that come next.
type fetched struct {
	step
	chunk

	first, many int64 // numbers of the stretches
	next        int64 // number of the one that comes behind them
	half        int64
}

// fetch reads the stretch that comes next, and saves it where it overlaps its new place, into the half of the area for
// which the last record does not vouch: the next record does.
func (m *mover) fetch(i int64, back bool) (*fetched, error) {
	x, data, err := m.gather(i, back)
	if err != nil {
		return x, err
	}
	if x.chunk, err = m.read(x.Source(), data); err != nil || !x.redo {
		return x, err
	}
	x.half = 1 - m.half
	if x.empty() {
		return x, nil
	}
	return x, m.log.WriteAt(x.data, x.half*m.plan.Chunk)
}

// gather chooses what goes to its new place at once, and returns where it holds data: a stretch and, if it is to be
// saved, those behind it on the way, as far as one half of the area has room for all. Holes need none.
func (m *mover) gather(i int64, back bool) (*fetched, []disk.Range, error) {
	ahead := int64(1)
	if back {
		ahead = -1
	}
	var data []disk.Range
	many, room := int64(0), m.plan.Chunk
	for most := m.most(i, back); many < most; many++ {
		s := m.at(i+many*ahead, 1).turned(back)
		filled, n, err := m.filled(s.Source())
		if err != nil {
			return nil, nil, err
		}
		if room -= n; room < 0 { // never for the first
			break
		}
		data = append(data, filled...)
	}
	x := &fetched{first: i, many: many, next: i + many*ahead, half: m.half}
	if back {
		x.first = x.next + 1
	}
	x.step = m.at(x.first, many).turned(back)
	return x, disk.Merge(data), nil
}

// most returns how many stretches can be saved as one, from a number on.
func (m *mover) most(i int64, back bool) int64 {
	switch r := m.run(i); {
	case !r.redo:
		return 1
	case back:
		return min(maxMany, i-r.first+1)
	default:
		return min(maxMany, r.first+r.many-i)
	}
}

// turned returns the way back of a stretch.
func (s step) turned(back bool) step {
	if back {
		s.From, s.To = s.To, s.From
	}
	return s
}

// one moves the stretch that comes next to its new place, or back, with those that were saved as one with it.
func (m *mover) one(ctx context.Context, back bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	x, err := m.next, error(nil)
	if m.next = nil; x == nil {
		i := m.step
		if back {
			i--
		}
		x, err = m.fetch(i, back)
	}
	if err != nil {
		return err
	}
	if m.Progress != nil {
		m.Progress(x.Len)
	}
	after := x.next
	if back {
		after++
	}
	if !m.sure && x.empty() && allZero(m.disk, x.Dest()) {
		m.step = after // nothing changes, so that there is nothing to record
		return nil
	}
	switch {
	case x.redo:
		m.half = x.half
		err = m.put(record{Phase: m.phase, Step: x.first, Half: x.half, Units: x.units, Pending: x.many})
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
	if err := m.ahead(x, back); err != nil {
		return err
	}
	if err := m.disk.Sync(); err != nil {
		return err
	}
	m.step, m.known = after, after
	if x.redo {
		return nil
	}
	return m.put(record{Phase: m.phase, Step: after, Half: m.half})
}

// ahead reads and saves what comes behind x while the storage writes x, which the last record vouches for. Its record
// comes when x is durable.
func (m *mover) ahead(x *fetched, back bool) (err error) {
	if x.redo && x.next >= 0 && x.next < m.steps && m.run(x.next).redo {
		m.next, err = m.fetch(x.next, back)
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

// without returns what ranges leave of the disk up to end, behind the first sector. They are reordered.
func without(end int64, ranges []disk.Range) []disk.Range {
	return disk.Gaps(disk.Range{Off: markSize, Len: end - markSize}, disk.Merge(ranges))
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
	return disk.Intersect(without(p.Size, dests(p.Pieces)), disk.Merge(held))
}

// covered returns what was zero or saved before, and is written by the move.
func (p *Plan) covered() []disk.Range {
	return disk.Intersect(without(p.OldEnd, sources(p.Pieces)), disk.Merge(dests(p.order)))
}

// chunk is a stretch that is under way: the units of it that are not zero, one behind the other.
type chunk struct {
	n, unit int64 // bytes
	units   []byte
	data    []byte
}

func (c *chunk) empty() bool { return len(c.data) == 0 }

func (c *chunk) has(i int64) bool { return c.units[i/8]>>(i%8)&1 == 1 }

// runs calls use for each run of units that are alike: where it lies in the stretch, and its bytes, nil for zeros.
func (c *chunk) runs(use func(off int64, n int64, data []byte) error) error {
	data := c.data
	for off := int64(0); off < c.n; {
		filled, end := c.has(off/c.unit), off
		for end < c.n && c.has(end/c.unit) == filled {
			end = min(c.n, end+c.unit)
		}
		var b []byte
		if filled {
			b, data = data[:end-off], data[end-off:]
		}
		if err := use(off, end-off, b); err != nil {
			return err
		}
		off = end
	}
	return nil
}

// stored returns how many bytes the units that are not zero have.
func (c *chunk) stored() (n int64) {
	for i := int64(0); i*c.unit < c.n; i++ {
		if c.has(i) {
			n += min(c.unit, c.n-i*c.unit)
		}
	}
	return n
}

// write puts the stretch to a place. sure writes zeros where there seem to be zeros already, too.
func (c *chunk) write(s Storage, to int64, sure bool) error {
	return c.runs(func(off, n int64, data []byte) error {
		if data != nil {
			_, err := s.WriteAt(data, to+off)
			return err
		}
		if sure {
			return s.Zero(to+off, n)
		}
		for e, err := range disk.Extents(s, disk.Range{Off: to + off, Len: n}) {
			if err == nil && !e.Zero {
				err = s.Zero(e.Off, e.Len)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// filled returns the units of a range that are not holes, and how many bytes they have.
func (m *mover) filled(x disk.Range) (out []disk.Range, sum int64, err error) {
	unit, next := m.plan.unit(), x.Off
	for e, err := range disk.Extents(m.disk, x) {
		if err != nil {
			return nil, 0, err
		}
		from := max(next, x.Off+units.AlignDown(e.Off-x.Off, unit))
		end := min(x.End(), x.Off+units.AlignUp(e.End()-x.Off, unit))
		if e.Zero || from >= end {
			continue
		}
		out, sum, next = append(out, disk.Range{Off: from, Len: end - from}), sum+end-from, end
	}
	return out, sum, nil
}

// read reads a stretch that is zero but for ranges, which are those of filled.
func (m *mover) read(x disk.Range, filled []disk.Range) (chunk, error) {
	c := chunk{n: x.Len, unit: m.plan.unit(), units: make([]byte, m.plan.bitmap(x.Len)), data: m.buf[:0]}
	for _, r := range filled {
		b := m.buf[len(c.data):][:r.Len]
		if err := ondisk.ReadFull(m.disk, b, r.Off); err != nil {
			return c, err
		}
		for data := range ondisk.DataRuns(b, c.unit) {
			for off := data.Off; off < data.End(); off += c.unit {
				i := (r.Off + off - x.Off) / c.unit
				c.units[i/8] |= 1 << (i % 8)
			}
			c.data = append(c.data, b[data.Off:data.End()]...) // never in front of what is read next
		}
	}
	return c, nil
}

// allZero reports whether a range is known to read as zero. An error is left to a later call, which meets it too.
func allZero(s Storage, r disk.Range) bool {
	for e, err := range disk.Extents(s, r) {
		if err != nil || !e.Zero {
			return false
		}
	}
	return true
}

// wantZero returns the error of an extent that holds something.
func wantZero(s io.ReaderAt, e disk.Extent) error {
	const step = 1 << 20
	buf := make([]byte, min(step, e.Len))
	for off := e.Off; off < e.End() && !e.Zero; off += step {
		b := buf[:min(step, e.End()-off)]
		if err := ondisk.ReadFull(s, b, off); err != nil {
			return err
		}
		if !ondisk.IsZero(b) {
			return fmt.Errorf("%w between byte %d and %d: not zero", errDiffers, off, off+int64(len(b)))
		}
	}
	return nil
}
