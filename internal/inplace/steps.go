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

// run is a piece that moves in stretches of n bytes. The last stretch may be shorter.
type run struct {
	disk.Shift
	n           int64
	first, many int64 // number of its first stretch, and number of stretches
	redo        bool  // its stretches overlap their own new places
}

// step is a stretch that moves, or several adjacent ones.
type step struct {
	disk.Shift
	redo bool
}

const (
	maxRuns = 4096 // bounds the number of pieces that move
	maxMany = 64   // bounds the stretches that move together: their bitmap must fit into a record
)

// runs returns the pieces that move and the number of their stretches, with or without quick flushes. No piece
// overwrites a later one.
func (p *Plan) runs(quick bool) (out []run, steps int64) {
	direct := p.Direct
	if quick {
		direct = min(direct, cmp.Or(p.Quick, direct))
	}
	for _, x := range p.order {
		r := run{Shift: x, first: steps, n: p.Chunk}
		if far := distance(x); far >= direct && far < p.Chunk {
			r.n = units.AlignDown(far, units.SectorSize)
		}
		r.redo = min(r.n, r.Len) > distance(x)
		r.many = (r.Len + r.n - 1) / r.n
		out, steps = append(out, r), steps+r.many
	}
	return out, steps
}

// distance returns the distance that a piece moves, in bytes.
func distance(x disk.Shift) int64 { return max(x.To-x.From, x.From-x.To) }

// run returns the run that contains stretch i.
func (m *mover) run(i int64) run {
	return m.runs[sort.Search(len(m.runs), func(k int) bool { return m.runs[k].first+m.runs[k].many > i })]
}

// at joins many successive stretches into one step, beginning with number i. A piece that moves up moves from its end
// on.
func (m *mover) at(i, many int64) step {
	r := m.run(i)
	k := i - r.first
	if r.To > r.From {
		k = r.many - many - k
	}
	off := k * r.n
	return step{disk.Shift{From: r.From + off, To: r.To + off, Len: min(many*r.n, r.Len-off)}, r.redo}
}

// fetched is a stretch that was read. If it overlaps its own new place, it is saved in one half of the area, together
// with the stretches after it.
type fetched struct {
	step
	chunk

	first, many int64 // number of the first stretch, and number of stretches
	next        int64 // number of the stretch after them
	half        int64
}

// fetch reads the next stretch. If the stretch overlaps its new place, fetch saves it in the half of the area that the
// last record does not use; the next record covers it.
func (m *mover) fetch(i int64, back bool) (*fetched, error) {
	x, data, err := m.gather(i, back)
	if err != nil {
		return x, err
	}
	if x.chunk, err = m.read(x.Source(), data); err != nil || !x.redo {
		return x, err
	}
	x.half = 1 - m.journalHalf
	if x.empty() {
		return x, nil
	}
	return x, m.log.WriteAt(x.data, x.half*m.plan.Chunk)
}

// gather chooses the stretches that move together, and returns their data ranges. It adds stretches to the first one if
// they must be saved and their data fits into half of the area. Holes take no room.
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
		if room -= n; room < 0 { // the first one always fits
			break
		}
		data = append(data, filled...)
	}
	x := &fetched{first: i, many: many, next: i + many*ahead, half: m.journalHalf}
	if back {
		x.first = x.next + 1
	}
	x.step = m.at(x.first, many).turned(back)
	return x, disk.Merge(data), nil
}

// most returns the maximum number of stretches that can be saved together, from stretch i on.
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

// turned exchanges source and target of a stretch if back is set.
func (s step) turned(back bool) step {
	if back {
		s.From, s.To = s.To, s.From
	}
	return s
}

// one moves the next stretch to its new place, or back, together with the stretches saved with it.
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
	m.Progress.Add(x.Len)
	after := x.next
	if back {
		after++
	}
	if !m.forceWrite && x.empty() && allZero(m.disk, x.Dest()) {
		m.step = after // nothing changes, so no record is needed
		return nil
	}
	switch {
	case x.redo:
		m.journalHalf = x.half
		err = m.put(record{Phase: m.phase, Step: x.first, Half: x.half, Units: x.units, Pending: x.many})
	case m.recorded != m.step:
		// The targets of unrecorded stretches of zeros are overwritten now: a resume must not read them again.
		err = m.put(record{Phase: m.phase, Step: m.step, Half: m.journalHalf})
	}
	if err != nil {
		return err
	}
	if err := x.write(m.disk, x.To, m.forceWrite); err != nil {
		return err
	}
	m.forceWrite = false
	if err := m.ahead(x, back); err != nil {
		return err
	}
	if err := m.disk.Sync(); err != nil {
		return err
	}
	m.step, m.recorded = after, after
	if x.redo {
		return nil
	}
	return m.put(record{Phase: m.phase, Step: after, Half: m.journalHalf})
}

// ahead reads and saves the stretch after x while the storage writes x, which the last record covers. The record of
// that stretch follows when x is durable.
func (m *mover) ahead(x *fetched, back bool) (err error) {
	if x.redo && x.next >= 0 && x.next < m.steps && m.run(x.next).redo {
		m.next, err = m.fetch(x.next, back)
	}
	return err
}

// ordered sorts the pieces that move, each before the pieces that overwrite it.
func ordered(pieces []disk.Shift) (out []disk.Shift, err error) {
	moves := slices.DeleteFunc(slices.Clone(pieces), func(x disk.Shift) bool { return x.From == x.To })
	if len(moves) > maxRuns {
		return nil, fmt.Errorf("%d pieces of the disk move: %w of %d", len(moves), ondisk.ErrLimit, maxRuns)
	}
	// Sorting from the end of the disk is nearly always right at once.
	slices.SortFunc(moves, func(a, b disk.Shift) int { return cmp.Compare(b.To, a.To) })
	waits := make([]int, len(moves)) // number of pieces that must move first
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
			return nil, fmt.Errorf("pieces of the disk trade places: %w in place",
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

// without returns the disk from the end of the first sector to end, without the given ranges. It reorders ranges.
func without(end int64, ranges []disk.Range) []disk.Range {
	return disk.Gaps(disk.Range{Off: markSize, Len: end - markSize}, disk.Merge(ranges))
}

// sources returns the locations of pieces before the move.
func sources(pieces []disk.Shift) (out []disk.Range) {
	for _, x := range pieces {
		out = append(out, x.Source())
	}
	return out
}

// dests returns the locations of pieces after the move.
func dests(pieces []disk.Shift) (out []disk.Range) {
	for _, x := range pieces {
		out = append(out, x.Dest())
	}
	return out
}

// dropped returns the ranges with old data that are zero in the result.
func (p *Plan) dropped() []disk.Range {
	held := sources(p.order)
	for _, s := range p.Saved[1:] {
		held = append(held, disk.Range{Off: s.Off, Len: int64(len(s.Bytes))})
	}
	return disk.Intersect(without(p.Size, dests(p.Pieces)), disk.Merge(held))
}

// covered returns the ranges outside of all pieces that the move overwrites.
func (p *Plan) covered() []disk.Range {
	return disk.Intersect(without(p.OldEnd, sources(p.Pieces)), disk.Merge(dests(p.order)))
}

// chunk is the data of a stretch: its units that are not zero, one after the other.
type chunk struct {
	n, unit int64 // bytes
	units   []byte
	data    []byte
}

func (c *chunk) empty() bool { return len(c.data) == 0 }

func (c *chunk) has(i int64) bool { return c.units[i/8]>>(i%8)&1 == 1 }

// runs calls use for each run of units that are all zero or all have data, with its offset in the stretch, its length,
// and its data, which is nil for zeros.
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

// stored returns the number of bytes in units that are not zero.
func (c *chunk) stored() (n int64) {
	for i := int64(0); i*c.unit < c.n; i++ {
		if c.has(i) {
			n += min(c.unit, c.n-i*c.unit)
		}
	}
	return n
}

// write writes the stretch to a location. With force, it also writes zeros to ranges that seem to be zero already.
func (c *chunk) write(s Storage, to int64, force bool) error {
	return c.runs(func(off, n int64, data []byte) error {
		if data != nil {
			_, err := s.WriteAt(data, to+off)
			return err
		}
		if force {
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

// filled returns the units of a range that are not holes, and their total size in bytes.
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

// read reads a stretch. filled must come from the method of that name; all other bytes are zero.
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
			c.data = append(c.data, b[data.Off:data.End()]...) // never overtakes the next range to read
		}
	}
	return c, nil
}

// allZero reports whether a range is known to read as zero. It returns false on an error, which a later call returns,
// too.
func allZero(s Storage, r disk.Range) bool {
	for e, err := range disk.Extents(s, r) {
		if err != nil || !e.Zero {
			return false
		}
	}
	return true
}

// wantZero returns an error if an extent holds data.
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
