package inplace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
)

const sector = 512

// simDisk is a disk on a medium. It reports zero sectors as a file reports its holes.
type simDisk struct{ *disktest.MediumFile }

func (d simDisk) Extent(off, limit int64) (disk.Extent, error) {
	if off+limit > d.Size() {
		return disk.Extent{}, io.ErrUnexpectedEOF
	}
	zero := func(at int64) bool {
		return ondisk.IsZero(d.Bytes()[at:min(at+sector-at%sector, off+limit)])
	}
	e := disk.Extent{Range: disk.Range{Off: off}, Zero: zero(off)}
	for e.Len < limit && zero(off+e.Len) == e.Zero {
		e.Len = min(limit, e.Len+sector-(off+e.Len)%sector)
	}
	return e, nil
}

func (d simDisk) Zero(off, n int64) error {
	_, err := d.WriteAt(make([]byte, n), off)
	return err
}

// simCase is a move on a tiny disk.
type simCase struct {
	name          string
	chunk, direct int64 // sectors
	quick         int64 // sectors; 0 without a choice by the time of a flush
	slow          bool  // flushes are not quick
	plan          *plan.Plan
	tail, newTail []byte
	zero          []disk.Range // of the old disk, in addition to every seventh sector
	old           []byte       // the disk and its footer
	want          []byte
}

// shift is a piece in sectors.
func shift(from, to, n int64) disk.Shift {
	return disk.Shift{From: from * sector, To: to * sector, Len: n * sector}
}

func patch(off int64, text string) disk.Patch {
	return disk.Patch{Off: off, Old: make([]byte, len(text)), New: []byte(text), Reason: "test"}
}

// simulate fills the disk of a case. Sectors of pieces are random, but every seventh is zero. saved lists nonzero
// sectors outside all pieces. The expected disk is the view from which a copy is written.
func (c simCase) simulate(t *testing.T, saved ...int64) simCase {
	t.Helper()
	r := rand.New(rand.NewPCG(7, 7))
	c.old = make([]byte, c.plan.OldSize)
	fill := func(at int64) {
		for i := range sector {
			c.old[at*sector+int64(i)] = byte(r.Uint32())
		}
	}
	for _, x := range c.plan.Pieces {
		for i := range x.Len / sector {
			if at := x.From/sector + i; at%7 != 5 && !slices.ContainsFunc(c.zero, func(z disk.Range) bool {
				return z.Overlaps(disk.Range{Off: at * sector, Len: 1})
			}) {
				fill(at)
			}
		}
	}
	for _, at := range saved {
		fill(at)
	}
	bare := disk.Compose(disk.New(c.plan.OldSize, sector, disk.Whole(bytes.NewReader(c.old), c.plan.OldSize)),
		c.plan.Size, c.plan.Pieces)
	for i := range c.plan.Patches {
		x := &c.plan.Patches[i]
		require.NoError(t, ondisk.ReadFull(bare, x.Old, x.Off))
	}
	src := disk.New(c.plan.OldSize, sector, disk.Whole(bytes.NewReader(bytes.Clone(c.old)), c.plan.OldSize))
	var err error
	c.want, err = ondisk.Bytes(c.plan.View(src), 0, c.plan.Size)
	require.NoError(t, err)
	c.old, c.want = append(c.old, c.tail...), append(c.want, c.newTail...)
	return c
}

// simCases are a growing MBR disk of two partitions, one with stretches as long as the distance, a GPT with both
// copies, pieces that move both ways, a disk with a footer, and one that saves several stretches at once.
func simCases(t *testing.T) []simCase {
	t.Helper()
	mbr := func() *plan.Plan {
		return &plan.Plan{
			OldSize: 48 * sector, Size: 56 * sector,
			Pieces: []disk.Shift{shift(0, 0, 3), shift(3, 8, 17), shift(20, 28, 27)},
			// The table, a boot sector that moves, and pages of a hive.
			Patches: []disk.Patch{
				patch(446, "entry"), patch(500, "code over the end"), patch(8*sector+28, "63"),
				patch(30*sector+7, "hive"), patch(49*sector, "page"),
			},
		}
	}
	gpt := &plan.Plan{
		OldSize: 48 * sector, Size: 52 * sector,
		Pieces: []disk.Shift{shift(0, 0, 4), shift(4, 8, 20), shift(24, 32, 10), shift(45, 49, 3)},
		Patches: []disk.Patch{
			patch(446, "mbr"), patch(sector, "header"), patch(2*sector, "entries"),
			patch(8*sector+3, "vbr"), patch(49*sector, "entries"), patch(51*sector, "header"),
		},
	}
	ways := &plan.Plan{
		OldSize: 48 * sector, Size: 48 * sector,
		Pieces:  []disk.Shift{shift(0, 0, 2), shift(6, 2, 9), shift(19, 16, 11), shift(30, 32, 14)},
		Patches: []disk.Patch{patch(3, "first"), patch(2*sector, "a"), patch(16*sector, "b"), patch(32*sector, "c")},
	}
	footer := func(s string) []byte { return append([]byte(s), make([]byte, sector-len(s))...) }
	empty := []disk.Range{{Off: 6 * sector, Len: 7 * sector}, {Off: 28 * sector, Len: 19 * sector}}
	return []simCase{
		simCase{name: "MBR, two partitions, grows; redo", chunk: 8, direct: 1 << 20, plan: mbr()}.simulate(t),
		simCase{name: "MBR, stretches as long as the way", chunk: 8, direct: 1, plan: mbr()}.simulate(t),
		simCase{
			name: "whole stretches of zeros, as long as the way", chunk: 8, direct: 1, plan: mbr(),
			zero: empty,
		}.simulate(t),
		simCase{
			name: "whole stretches of zeros; redo", chunk: 8, direct: 1 << 20, plan: mbr(),
			zero: empty,
		}.simulate(t),
		simCase{name: "GPT, both copies; redo and direct", chunk: 6, direct: 8, plan: gpt}.simulate(t, 44),
		simCase{name: "pieces go both ways", chunk: 5, direct: 3, plan: ways}.simulate(t, 3, 17, 47),
		simCase{
			name: "footer behind the disk", chunk: 8, direct: 1 << 20, plan: mbr(),
			tail: footer("old"), newTail: footer("new"),
		}.simulate(t, 47), // data before the footer are saved together with it
		simCase{name: "saved as one over holes", chunk: 4, direct: 1 << 20, plan: mbr(), zero: empty}.simulate(t),
		simCase{name: "quick flushes", chunk: 8, direct: 1 << 20, quick: 1, plan: mbr(), zero: empty}.simulate(t),
		simCase{name: "slow flushes", chunk: 8, direct: 1 << 20, quick: 1, slow: true, plan: mbr()}.simulate(t),
	}
}

// faulty lists parts of the protocol that a simulation omits.
type faulty struct {
	lie     string // the file without flushes
	records int    // only every n-th record of a stretch is written
	noRedo  bool
	oneHalf bool // all stretches are saved in the same half
}

// oneHalf is a journal that saves a stretch over the one that its last record covers.
type oneHalf struct{ *journal.Journal }

func (l oneHalf) WriteAt(b []byte, _ int64) error { return l.Journal.WriteAt(b, 0) }
func (l oneHalf) ReadAt(b []byte, _ int64) error  { return l.Journal.ReadAt(b, 0) }

// someRecords is a journal that loses records.
type someRecords struct {
	*journal.Journal
	every, n int
	last     []byte
}

func (l *someRecords) Record() []byte {
	if l.last != nil {
		return l.last
	}
	return l.Journal.Record()
}

func (l *someRecords) Put(b []byte) error {
	if l.n++; l.n%l.every != 0 && b[0] != byte(moved) {
		return nil
	}
	return l.Journal.Put(b)
}

// trial is one series of runs on one medium.
type trial struct {
	c  simCase
	f  faulty
	id string // of its move
	on *disktest.Medium
}

func newTrial(c simCase, f faulty) *trial {
	x := &trial{c: c, f: f, on: disktest.NewMedium()}
	if _, err := x.on.File("disk").WriteAt(c.old, 0); err != nil {
		panic(err)
	}
	if err := x.on.File("disk").Sync(); err != nil {
		panic(err)
	}
	x.on.Calls = 0
	return x
}

// open opens the mover on the medium, and makes a plan for a new move.
func (x *trial) open(begin bool) (*mover, error) {
	x.on.Lie = func(name string) bool { return name == x.f.lie }
	d, file := simDisk{x.on.File("disk")}, x.on.File("journal")
	var j *journal.Journal
	var p *Plan
	var err error
	if begin {
		if p, err = NewPlan(context.Background(), x.c.plan, d, sector, int64(len(x.c.old)), x.c.newTail,
			quiet); err != nil {
			return nil, err
		}
		p.ID, p.Chunk, p.Direct, p.Quick = "sim"+x.id, x.c.chunk*sector, x.c.direct*sector, x.c.quick*sector
		var blob []byte
		if blob, err = p.encode(); err == nil {
			j, err = journal.Create(file, "in-place", journal.ID{1}, blob, p.area())
		}
		if errors.Is(err, disktest.ErrFault) {
			x.on.Remove("journal") // like journal.BeginIn
		}
	} else if j, err = journal.Open(file); err == nil {
		p, err = decodePlan(j.Plan())
	}
	if err != nil {
		return nil, err
	}
	var l Log = j
	if x.f.records > 1 {
		l = &someRecords{Journal: j, every: x.f.records}
	}
	if x.f.oneHalf {
		l = oneHalf{j}
	}
	m, err := open(p, d, l, quiet)
	if err == nil {
		m.Look, m.flushLimit = x.look, time.Hour
		if x.c.slow {
			m.flushLimit = -1
		}
	}
	if err == nil && x.f.noRedo {
		for i := range m.runs {
			m.runs[i].redo = false
		}
	}
	return m, err
}

// look compares both disks, before the first sector is written.
func (x *trial) look(old, now disk.Disk) error {
	for _, d := range []struct {
		disk.Disk
		want []byte
	}{{old, x.c.old}, {now, x.c.want}} {
		got, err := ondisk.Bytes(d, 0, d.Size())
		if err != nil {
			return err
		}
		if !bytes.Equal(got, d.want[:d.Size()]) {
			return errors.New("a disk to look at is another one")
		}
	}
	return nil
}

// life is one run: the first one, an undo or a resume. It returns the expected state of the disk.
func (x *trial) life(begin, undo bool) (want []byte, err error) {
	m, err := x.open(begin)
	if errors.Is(err, journal.ErrNotBegun) {
		return x.c.old, nil
	}
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	if undo || !begin && m.state() == before {
		if err = m.undo(ctx); !errors.Is(err, errCommitted) {
			return x.c.old, err
		}
	}
	if m.state() == undone {
		return x.c.old, nil
	}
	return x.c.want, m.finish(ctx)
}

// bootable returns an error if firmware would find a disk that is neither the old nor the new one.
func (x *trial) bootable() error {
	now := x.on.File("disk").Bytes()
	if bytes.HasPrefix(now, []byte(MarkText)) || bytes.Equal(now, x.c.want) {
		return nil
	}
	if len(now) >= len(x.c.old) && bytes.Equal(now[:len(x.c.old)], x.c.old) {
		return nil
	}
	return errors.New("a mix without the mark")
}

// crash cuts the power at a call, or kills the program there, which keeps the cache.
func (x *trial) crash(kill bool, keep func(string, int64) bool) {
	if kill {
		x.on.Power = -1
		return
	}
	x.on = x.on.AfterCrash(keep)
}

// nothing is a selection for AfterCrash: all unflushed data are lost.
func nothing(string, int64) bool { return false }

// end lets a last run complete or undo the move, and checks the disk.
func (x *trial) end(undo bool) error {
	if err := x.bootable(); err != nil {
		return err
	}
	want, err := x.life(false, undo)
	switch {
	case err != nil:
		return err
	case !bytes.Equal(want, x.on.File("disk").Bytes()):
		return errors.New("another disk")
	case !bytes.Equal(want, x.on.AfterCrash(nothing).File("disk").Bytes()):
		return errors.New("the journal may go, and the disk is not durable")
	}
	// Nothing after that may write.
	for _, again := range []bool{undo, !undo} {
		if _, err := x.life(false, again); err != nil {
			return err
		}
	}
	if !bytes.Equal(want, x.on.File("disk").Bytes()) {
		return errors.New("another disk, written at the end")
	}
	return nil
}

// simulation counts trials and wrong results.
type simulation struct {
	trials, wrong int
	first         error
}

func (s *simulation) add(err error, format string, args ...any) {
	s.trials++
	if err != nil {
		if s.wrong++; s.first == nil {
			s.first = fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
		}
	}
}

// subsets returns the number of variants of a crash: each set of unflushed sectors if there are few, otherwise random
// ones.
func subsets(x *trial, most int) int {
	dirty := 0
	x.on.AfterCrash(func(string, int64) bool { dirty++; return false })
	if dirty < 16 && 1<<dirty < most {
		return 1 << dirty
	}
	return most
}

// keepSet chooses set number n of the sectors, in their order.
func keepSet(n int) func(string, int64) bool {
	i := -1
	return func(string, int64) bool { i++; return n>>i&1 == 1 }
}

// points cuts the power at each call, with most subsets of unflushed sectors; each is resumed and undone.
func (s *simulation) points(c simCase, f faulty, most int) {
	whole := newTrial(c, f)
	_, err := whole.life(true, false)
	if err != nil || !bytes.Equal(whole.on.File("disk").Bytes(), c.want) {
		s.add(errors.Join(err, errors.New("undisturbed")), "%s", c.name)
		return
	}
	r := rand.New(rand.NewPCG(1, 2))
	for cut := range whole.on.Calls {
		first := newTrial(c, f)
		first.on.Power = cut
		_, _ = first.life(true, false)
		n := subsets(first, most)
		for i := range n {
			keep := keepSet(i)
			if n == most {
				keep = disktest.Some(r, float64(i)/float64(most))
			}
			x := &trial{c: c, f: f, on: first.on.AfterCrash(keep)}
			s.add(x.end(i%2 == 1), "%s, call %d, set %d", c.name, cut, i)
		}
	}
}

// series makes random series of one to four runs that are killed or lose power, some of them undos.
func (s *simulation) series(c simCase, f faulty, n int, seed uint64) {
	whole := newTrial(c, f)
	_, _ = whole.life(true, false)
	r := rand.New(rand.NewPCG(seed, 4))
	for i := range n {
		x := newTrial(c, f)
		var err error
		for k := range 1 + r.IntN(4) {
			x.on.Power = r.IntN(whole.on.Calls)
			want, lifeErr := x.life(k == 0, k > 0 && r.IntN(2) == 0)
			over := lifeErr == nil && want != nil && x.on.Power != 0
			x.crash(r.IntN(2) == 0, disktest.Some(r, r.Float64()))
			if err = x.bootable(); err != nil || over {
				break
			}
		}
		if err == nil {
			err = x.end(r.IntN(2) == 0)
		}
		s.add(err, "%s, series %d of seed %d", c.name, i, seed)
	}
}

// undone kills a move after most of its calls. It is undone, the power is cut at each call of that, and again in the
// next run, while it completes the work of the first. Of unflushed data the disk loses all, or all but its first
// sector, and the journal nothing.
func (s *simulation) undone(c simCase, f faulty) {
	all := func(string, int64) bool { return true }
	journal := func(name string, _ int64) bool { return name == "journal" }
	head := func(name string, off int64) bool { return name == "journal" || off == 0 }
	first := newTrial(c, f)
	_, _ = first.life(true, false)
	calls := first.on.Calls
	first = newTrial(c, f)
	first.on.Power = calls * 2 / 3
	_, _ = first.life(true, false)
	for cut, err := 0, disktest.ErrPower; errors.Is(err, disktest.ErrPower); cut++ {
		second := &trial{c: c, f: f, on: first.on.AfterCrash(all)}
		second.on.Power = cut
		_, err = second.life(false, true)
		third := &trial{c: c, f: f, on: second.on.AfterCrash(head)}
		s.add(third.end(true), "%s, undo, call %d", c.name, cut)
		for then := range 16 {
			x := &trial{c: c, f: f, on: second.on.AfterCrash(journal)}
			x.on.Power = then
			_, _ = x.life(false, true)
			x.on = x.on.AfterCrash(journal)
			s.add(x.end(true), "%s, undo, call %d, then %d", c.name, cut, then)
		}
	}
}

// simulations returns the factor for the number of trials: TRUEUP_CRASHES, or 1.
func simulations(t *testing.T) int {
	t.Helper()
	text := os.Getenv("TRUEUP_CRASHES")
	if text == "" {
		return 1
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// TestCrashes simulates moves on tiny disks: the power is cut after each call, with any of the unflushed sectors; then
// the move is resumed or undone. The disk is then the old or the new one, and before that marked if it is neither.
func TestCrashes(t *testing.T) {
	t.Parallel()
	n := simulations(t)
	for _, c := range simCases(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var s simulation
			s.points(c, faulty{}, 6*n)
			s.series(c, faulty{}, 100*n, 3)
			s.undone(c, faulty{})
			t.Logf("%d trials, %d wrong", s.trials, s.wrong)
			require.NoError(t, s.first)
		})
	}
}

// TestCrashesOfTheUsualMove simulates a move from LBA 63 to 2048 with the sizes of a real one. Its stretches are as
// long as the way, and not saved.
func TestCrashesOfTheUsualMove(t *testing.T) {
	t.Parallel()
	c := simCase{
		chunk: maxChunk / sector, direct: direct / sector, quick: quick / sector, plan: &plan.Plan{
			OldSize: 3600 * sector, Size: 5585 * sector,
			Pieces:  []disk.Shift{shift(0, 0, 1), shift(63, 2048, 3537)},
			Patches: []disk.Patch{patch(446, "entry"), patch(2048*sector+28, "2048")},
		},
	}.simulate(t)
	whole := newTrial(c, faulty{})
	m, err := whole.open(true)
	require.NoError(t, err)
	require.NoError(t, m.finish(t.Context()))
	require.Equal(t, []run{{shift(63, 2048, 3537), 1985 * sector, 0, 2, false}}, m.runs)
	var s simulation
	s.points(c, faulty{}, 4)
	t.Logf("%d trials, %d wrong", s.trials, s.wrong)
	require.NoError(t, s.first)
}

// TestCrashesShowFaults shows that TestCrashes can fail: it detects each omission in the protocol.
func TestCrashesShowFaults(t *testing.T) {
	t.Parallel()
	n := simulations(t)
	cases := simCases(t)
	for _, x := range []struct {
		name string
		c    simCase
		f    faulty
	}{
		{"redo, the disk is not flushed", cases[0], faulty{lie: "disk"}},
		{"redo, the journal is not flushed", cases[0], faulty{lie: "journal"}},
		{"redo, every fourth record", cases[0], faulty{records: 4}},
		{"redo without saved stretches", cases[0], faulty{noRedo: true}},
		{"redo, saved over the stretch before", cases[0], faulty{oneHalf: true}},
		{"saved as one over holes, the disk is not flushed", cases[7], faulty{lie: "disk"}},
		{"saved as one over holes, the journal is not flushed", cases[7], faulty{lie: "journal"}},
		{"saved as one over holes, every fourth record", cases[7], faulty{records: 4}},
		{"direct, the disk is not flushed", cases[1], faulty{lie: "disk"}},
		{"direct, the journal is not flushed", cases[1], faulty{lie: "journal"}},
		{"direct, every fourth record", cases[1], faulty{records: 4}},
		{"zeros as long as the way, the disk is not flushed", cases[2], faulty{lie: "disk"}},
		{"quick, the disk is not flushed", cases[8], faulty{lie: "disk"}},
		{"quick, the journal is not flushed", cases[8], faulty{lie: "journal"}},
		{"quick, every fourth record", cases[8], faulty{records: 4}},
		{"slow, the disk is not flushed", cases[9], faulty{lie: "disk"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			var s simulation
			s.points(x.c, x.f, 2*n)
			s.series(x.c, x.f, 30*n, 3)
			t.Logf("%d trials, %d wrong: %v", s.trials, s.wrong, s.first)
			require.Positive(t, s.wrong)
		})
	}
}
