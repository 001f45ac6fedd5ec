// Package inplace moves the partitions of a disk within it. The disk survives a kill or a power cut at any moment: the
// move can be completed, and until the tables are written it can also be undone.
//
// A Plan holds all data for both, and is stored in a journal beside the disk. The steps, in order:
//
//	grow     the disk gets its new size, and a mark in place of its first sector: no guest starts from it now
//	move     stretch by stretch, each one durable at its new place and recorded before its old place is overwritten
//	compare  everything that moved or stayed has the digest that it had before
//	commit   a record; up to here the way leads back as well
//	write    zeros where nothing lies any more, patches from the end of the disk to its start, the first sector last
//
// A stretch that overlaps its own new place is saved in the journal first, so that a torn write can be repeated. Writes
// after the commit come from the plan and can be repeated, too.
package inplace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// Storage is the medium of the disk, with the disk at offset 0.
type Storage interface {
	io.ReaderAt
	io.WriterAt
	// Extent reports whether bytes from off on read as zero, without reading them.
	Extent(off, limit int64) (disk.Extent, error)
	// Zero makes a range read as zero.
	Zero(off, n int64) error
	Truncate(size int64) error
	Sync() error
}

// Log is the part of a journal that a mover uses.
type Log interface {
	Record() []byte
	Put(record []byte) error
	WriteAt(b []byte, off int64) error
	ReadAt(b []byte, off int64) error
}

// phase is the progress of a move: the first byte of a record.
type phase byte

const (
	moving  phase = 'm'
	undoing phase = 'u'
	moved   phase = 'c' // the commit
	done    phase = 'd' // the first sector is written as well
)

// record is a journal record: its phase, followed by the other fields as JSON.
type record struct {
	Phase phase `json:"-"`
	// Step is the number of stretches at their new places. With Pending, it is the number of the first pending stretch.
	Step int64 `json:"step"`
	// Pending is the number of stretches saved together in one half of the area. Their targets may be torn.
	Pending int64  `json:"pending,omitempty"`
	Half    int64  `json:"half,omitempty"`
	Units   []byte `json:"units,omitempty"` // bitmap of the units of these stretches that are not zero
	Quick   bool   `json:"quick,omitempty"` // the stretches are those for quick flushes: set before the first one moves
}

// begin reports the start of a phase that processes pieces.
func (o *Options) begin(phase string, pieces []disk.Shift) {
	total := int64(0)
	for _, x := range pieces {
		total += x.Len
	}
	o.Progress.Begin(phase, total)
}

// mover carries out a plan.
type mover struct {
	Options

	plan *Plan
	disk Storage
	log  Log

	runs        []run
	steps       int64         // of all runs
	quick       bool          // runs are those for quick flushes
	flushLimit  time.Duration // of two quick flushes
	step        int64         // number of stretches done
	recorded    int64         // number of stretches done according to the last record
	phase       phase
	marked      bool     // the mark is on the disk
	journalHalf int64    // half of the area that the last record uses
	verified    bool     // this run has compared all pieces at their new places
	forceWrite  bool     // write the next stretch even if its target seems to have it: set after an interruption
	next        *fetched // the next stretch, if it was read already
	buf         []byte
}

// Options of a move.
type Options struct {
	Looped   map[sys.ID]string // maps files to the loop devices that they back
	Jobs     int
	Progress diskcopy.Progress
	// Look checks the original and the moved disk before the first sector is written. Its error ends the move. It may
	// be nil.
	Look func(old, now disk.Disk) error
}

// open reads the progress of a move, and completes the stretch that was being written. First it makes the last writes
// of the previous run durable, because they may be in a cache only. A disk without the mark is in its old or new state,
// and may be in use again: open writes nothing but its unchanged first sector. After an I/O error the returned
// mover reports whether the disk is in the middle of the move, and nothing else.
func open(p *Plan, s Storage, l Log, o Options) (*mover, error) {
	m := &mover{Options: o, plan: p, disk: s, log: l, phase: moving, flushLimit: 2 * quickFlush}
	m.runs, m.steps = p.runs(false)
	m.buf = make([]byte, p.Chunk)
	var err error
	if m.marked, err = p.marks(s); err != nil {
		return nil, err
	}
	if m.forceWrite = m.marked; m.marked {
		if err := m.again(p.mark()); err != nil {
			return m, err
		}
	}
	b := l.Record()
	if b == nil {
		return m, nil
	}
	var r record
	if len(b) == 0 {
		return nil, fmt.Errorf("record of the journal: it is empty: %w", ondisk.ErrFormat)
	}
	if err := json.Unmarshal(b[1:], &r); err != nil {
		return nil, fmt.Errorf("record of the journal: %w: %w", err, ondisk.ErrFormat)
	}
	r.Phase, m.quick = phase(b[0]), r.Quick
	m.runs, m.steps = p.runs(m.quick)
	if err := r.check(m); err != nil {
		return nil, err
	}
	m.phase, m.step, m.journalHalf = r.Phase, r.Step, r.Half
	m.recorded = m.step
	switch {
	case m.marked:
	case m.phase == moving:
		return nil, fmt.Errorf("the first sector of the disk is not the mark of a move, although the journal lists "+
			"%d of %d stretches as moved; another program wrote the sector: %w", m.step, m.steps, ondisk.ErrChanged)
	case m.phase == undoing:
		return m, m.again(p.first(false))
	default:
		if err := p.notOld(s); err != nil {
			return nil, err
		}
		return m, m.again(p.first(true))
	}
	if err := l.Put(b); err != nil { // also durable if the previous run did not flush it
		return m, err
	}
	if r.Pending == 0 {
		return m, nil
	}
	return m, m.complete(r)
}

func (r *record) check(m *mover) error {
	switch {
	case r.Phase != moving && r.Phase != undoing && r.Phase != moved && r.Phase != done:
		return fmt.Errorf("record of the journal: phase %q is unknown: %w", r.Phase, ondisk.ErrUnsupported)
	case r.Step < 0 || r.Step > m.steps || r.Half < 0 || r.Half > 1:
		return fmt.Errorf("record of the journal: stretch %d of %d, half %d: %w", r.Step, m.steps, r.Half,
			ondisk.ErrFormat)
	case r.Pending == 0:
		return nil
	case r.Pending < 0 || r.Step == m.steps || r.Pending > m.most(r.Step, false):
		return fmt.Errorf("record of the journal: %d stretches are saved from number %d of %d: %w", r.Pending, r.Step,
			m.steps, ondisk.ErrFormat)
	}
	c := r.chunk(m)
	if int64(len(c.units)) != m.plan.bitmap(c.n) || c.stored() > m.plan.Chunk {
		return fmt.Errorf("record of the journal: %d bytes of units for %d stretches from number %d: %w", len(r.Units),
			r.Pending, r.Step, ondisk.ErrFormat)
	}
	return nil
}

// chunk returns the pending stretches without their data.
func (r *record) chunk(m *mover) chunk {
	return chunk{n: m.at(r.Step, r.Pending).Len, unit: m.plan.unit(), units: r.Units}
}

// complete writes pending stretches from their copy in the journal.
func (m *mover) complete(r record) error {
	s, c := m.at(r.Step, r.Pending), r.chunk(m)
	c.data = m.buf[:c.stored()]
	if len(c.data) > 0 {
		if err := m.log.ReadAt(c.data, r.Half*m.plan.Chunk); err != nil {
			return err
		}
	}
	to := s.To
	if m.step = r.Step + r.Pending; r.Phase == undoing {
		to, m.step = s.From, r.Step
	}
	m.recorded = m.step
	if err := c.write(m.disk, to, true); err != nil {
		return err
	}
	return m.disk.Sync()
}

// put durably makes r the last record.
func (m *mover) put(r record) error {
	r.Quick = m.quick
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return m.log.Put(append([]byte{byte(r.Phase)}, b...))
}

// state is the state of the disk.
type state int

const (
	before  state = iota // original state: the move had not begun
	between              // in the middle of a move that can be completed or undone
	behind               // in the middle of a move that can only be completed
	after                // new state
	undone               // original state after an undo
)

func (m *mover) state() state {
	switch {
	case m.marked && (m.phase == moving || m.phase == undoing):
		return between
	case m.marked:
		return behind
	case m.phase == moved || m.phase == done:
		return after
	case m.phase == undoing:
		return undone
	}
	return before
}

// errCommitted refuses an undo after the commit.
var errCommitted = errors.New("all data are in their new places, and the tables are being written")

// finish brings the disk to its new state.
func (m *mover) finish(ctx context.Context) error {
	switch m.state() {
	case before, between:
		if err := m.forward(ctx); err != nil {
			return err
		}
	case after, undone:
		return nil
	case behind:
	}
	return m.finalize(ctx)
}

// forward grows and marks the disk, moves and compares all stretches, and ends with the commit.
func (m *mover) forward(ctx context.Context) error {
	p := m.plan
	if p.End > p.OldEnd {
		if err := m.disk.Truncate(p.End); err != nil {
			return err
		}
		if err := m.disk.Sync(); err != nil {
			return err
		}
	}
	start := time.Now()
	if _, err := m.disk.WriteAt(p.mark(), 0); err != nil {
		return err
	}
	if err := m.disk.Sync(); err != nil {
		return err
	}
	flush := time.Since(start)
	if d, ok := m.disk.(Device); ok {
		d.Reread() // removes the partitions, so that nobody can mount one after a kill
	}
	m.phase, m.marked = moving, true
	if err := m.choose(flush); err != nil {
		return err
	}
	m.begin(diskcopy.PhaseCopy, p.order)
	for m.step < m.steps {
		if err := m.one(ctx, false); err != nil {
			return err
		}
	}
	m.begin(diskcopy.PhaseProve, p.Pieces)
	if err := p.compare(ctx, p.bytes(m.disk, p.Size), dests(p.Pieces), m.Options); err != nil {
		return err
	}
	m.phase, m.verified = moved, true
	return m.put(record{Phase: moved, Step: m.steps, Half: m.journalHalf})
}

// choose chooses the stretches of a new move by the time of two flushes: of the mark, which is given, and of a record.
// The choice is durable before the first stretch moves.
func (m *mover) choose(flush time.Duration) error {
	runs, steps := m.plan.runs(true)
	if m.log.Record() != nil || slices.Equal(runs, m.runs) {
		return nil
	}
	start := time.Now()
	err := m.put(record{Phase: moving})
	if err != nil || flush+time.Since(start) > m.flushLimit {
		return err
	}
	m.runs, m.steps, m.quick = runs, steps, true
	return m.put(record{Phase: moving})
}

// undo brings the disk back to its old state.
func (m *mover) undo(ctx context.Context) error {
	switch m.state() {
	case behind, after:
		return errCommitted
	case before:
		if err := m.shrink(); err != nil {
			return err
		}
		return m.disk.Sync() // before the journal is removed
	case undone:
		return nil
	case between:
	}
	m.phase = undoing
	m.begin(diskcopy.PhaseCopy, m.plan.order)
	for m.step > 0 {
		if err := m.one(ctx, true); err != nil {
			return err
		}
	}
	if err := m.put(record{Phase: undoing, Half: m.journalHalf}); err != nil {
		return err
	}
	return m.restore(ctx)
}

// finalize zeroes the vacated space and writes the patches after the commit. Every step can be repeated. It verifies
// all of them before it writes the first sector.
func (m *mover) finalize(ctx context.Context) error {
	p := m.plan
	for _, r := range p.dropped() {
		if err := m.disk.Zero(r.Off, r.Len); err != nil {
			return err
		}
	}
	// The backup of a GPT is durable before the primary is written.
	for _, behind := range []bool{true, false} {
		for _, x := range p.Patches {
			if x.Off < markSize || x.Off >= p.Size/2 != behind {
				continue
			}
			if _, err := m.disk.WriteAt(x.New, x.Off); err != nil {
				return err
			}
		}
		if err := m.disk.Sync(); err != nil {
			return err
		}
	}
	if err := m.check(ctx); err != nil {
		return err
	}
	if m.Look != nil {
		if err := m.Look(p.old(m.disk), p.result(m.disk)); err != nil {
			return err
		}
	}
	if err := m.first(p.first(true)); err != nil {
		return err
	}
	m.phase = done
	return m.put(record{Phase: done, Step: m.steps, Half: m.journalHalf})
}

// first replaces the mark by the first sector, which ends the move.
func (m *mover) first(b []byte) error {
	if _, err := m.disk.WriteAt(b, 0); err != nil {
		return err
	}
	m.marked = false
	return m.disk.Sync()
}

// restore writes back the data that the move overwrote, and restores the size. It then compares all pieces with their
// digests, and writes the first sector last.
func (m *mover) restore(ctx context.Context) error {
	p := m.plan
	for _, r := range p.covered() {
		if err := m.disk.Zero(r.Off, r.Len); err != nil {
			return err
		}
	}
	for _, x := range p.Saved[1:] { // the first sector is written last
		if _, err := m.disk.WriteAt(x.Bytes, x.Off); err != nil {
			return err
		}
	}
	if err := m.shrink(); err != nil {
		return err
	}
	if err := m.disk.Sync(); err != nil {
		return err
	}
	if err := p.compare(ctx, p.bytes(m.disk, p.OldSize), sources(p.Pieces), m.Options); err != nil {
		return err
	}
	return m.first(p.first(false))
}

// shrink restores the old size.
func (m *mover) shrink() error {
	if m.plan.End == m.plan.OldEnd {
		return nil
	}
	return m.disk.Truncate(m.plan.OldEnd)
}

// check verifies the writes after the commit. If another run has committed the move, it also verifies all other bytes:
// pieces by their digests, and zeros between them.
func (m *mover) check(ctx context.Context) error {
	p := m.plan
	for _, x := range p.Patches {
		if x.Off < markSize {
			continue
		}
		got := make([]byte, len(x.New))
		if err := ondisk.ReadFull(m.disk, got, x.Off); err != nil {
			return err
		}
		if string(got) != string(x.New) {
			return fmt.Errorf("%w at byte %d (%s): % x, want % x", errDiffers, x.Off, x.Reason, got, x.New)
		}
	}
	d, zeros := p.unpatched(m.disk), p.dropped()
	if !m.verified {
		zeros = without(p.Size, dests(p.Pieces))
		m.begin(diskcopy.PhaseProve, p.Pieces)
		if err := p.compare(ctx, d, dests(p.Pieces), m.Options); err != nil {
			return err
		}
	}
	for _, r := range zeros {
		for e, err := range disk.Extents(d, r) {
			if err != nil {
				return err
			}
			if err := wantZero(d, e); err != nil {
				return err
			}
		}
	}
	return nil
}
