package inplace

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
)

// TestKilledThenPower kills a move at each call, and then cuts the power at one of the first calls of the next run: the
// writes of the killed run were in the cache only.
func TestKilledThenPower(t *testing.T) {
	t.Parallel()
	cases := simCases(t)
	for _, c := range []simCase{cases[0], cases[1], cases[5]} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			whole := newTrial(c, faulty{})
			_, err := whole.life(true, false)
			require.NoError(t, err)
			var s simulation
			for cut := range whole.on.Calls {
				for second := range 4 {
					undo := (cut+second)%2 == 0
					killed := newTrial(c, faulty{})
					killed.on.Power = cut
					_, _ = killed.life(true, false)
					killed.crash(true, nil)
					killed.on.Power = second
					_, _ = killed.life(false, undo)
					for set := range subsets(killed, 4*simulations(t)) {
						x := &trial{c: c, on: killed.on.AfterCrash(keepSet(set))}
						s.add(x.end(undo), "%s, killed at call %d, power at %d, set %d", c.name, cut, second, set)
					}
				}
			}
			t.Logf("%d trials, %d wrong", s.trials, s.wrong)
			require.NoError(t, s.first)
		})
	}
}

// nextCalls is the number of calls of a second run at which the power is cut: until it has made its basis durable, and
// written a stretch.
const nextCalls = 9

// TestFailedCalls fails each writing call of a move in turn, and then calls of the run that resumes or undoes it. Data
// that a failed flush did not write count as clean from then on, so the next run must write them again: the disk is the
// old or the new one if the power is cut after that run, or in its first calls. TRUEUP_CRASHES tries all of these.
func TestFailedCalls(t *testing.T) {
	t.Parallel()
	cases, every := simCases(t), 1
	if simulations(t) == 1 {
		cases, every = []simCase{cases[0], cases[5]}, nextCalls
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			whole := newTrial(c, faulty{})
			_, err := whole.life(true, false)
			require.NoError(t, err)
			var s simulation
			for n := 1; n <= whole.on.Calls; n++ {
				for way := range 2 {
					if every > 1 && way != n/2%2 {
						continue
					}
					undo := way == 1
					at := fmt.Sprintf("%s, call %d fails, undo %v", c.name, n, undo)
					s.add(failed(t, c, n).end(undo), "%s", at)
					for cut := range nextCalls {
						if (n+way+cut)%every != 0 {
							continue
						}
						x := failed(t, c, n)
						x.on.Power = cut
						_, _ = x.life(false, undo)
						next := &trial{c: c, on: x.on.AfterCrash(nothing)}
						s.add(next.end(undo), "%s, the power goes at call %d of the next run", at, cut)
					}
					s.again(t, c, n, undo)
				}
			}
			t.Logf("%d trials, %d wrong", s.trials, s.wrong)
			require.NoError(t, s.first)
		})
	}
}

// failed is a move with a failed call, in a process that has ended.
func failed(t *testing.T, c simCase, n int) *trial {
	t.Helper()
	x := newTrial(c, faulty{})
	x.on.Fail = n
	_, err := x.life(true, false)
	require.ErrorIs(t, err, disktest.ErrFault)
	x.on.Fail = 0
	return x
}

// again also fails a call of the second run: another one for each call of the first.
func (s *simulation) again(t *testing.T, c simCase, n int, undo bool) {
	t.Helper()
	x := failed(t, c, n)
	x.on.Fail = x.on.Calls + 1 + n%7
	_, _ = x.life(false, undo)
	x.on.Fail = 0
	s.add(x.end(undo), "%s, call %d and then call %d of the next run fail", c.name, n, 1+n%7)
}

// TestDamagedJournals flips a byte of the journal of an ended move, or truncates it: the next run is refused, or ends
// with the old or the new disk. Any other disk keeps its mark.
func TestDamagedJournals(t *testing.T) {
	t.Parallel()
	cases := simCases(t)
	for _, c := range []simCase{cases[0], cases[4]} {
		whole := newTrial(c, faulty{})
		_, err := whole.life(true, false)
		require.NoError(t, err)
		size := int(whole.on.File("journal").Size())
		r, refused, ended := rand.New(rand.NewPCG(5, 6)), 0, 0
		for cut := 4; cut < whole.on.Calls; cut += 1 + 6/simulations(t) {
			// Head, both slots of records, plan and area.
			for _, at := range []int{
				r.IntN(512), 4096 + r.IntN(200), 36<<10 + r.IntN(200), 68<<10 + r.IntN(1000),
				size - 1 - r.IntN(4096), -r.IntN(size),
			} {
				x := newTrial(c, faulty{})
				x.on.Power = cut
				_, _ = x.life(true, false)
				x.crash(true, nil)
				j := x.on.File("journal")
				if at <= 0 {
					require.NoError(t, j.Truncate(int64(-at)))
				} else if b := j.Bytes(); at < len(b) {
					b[at] ^= byte(1 << r.IntN(8))
				}
				want, err := x.life(false, cut%2 == 0)
				require.NoError(t, x.bootable(), "%s: %v", c.name, err)
				if err != nil {
					refused++
					continue
				}
				ended++
				require.True(t, bytes.Equal(want, x.on.File("disk").Bytes()), "%s: call %d, byte %d", c.name, cut, at)
			}
		}
		t.Logf("%s: %d refused, %d ended well", c.name, refused, ended)
		require.Positive(t, refused)
		require.Positive(t, ended)
	}
}

// TestJournalOfAnotherDisk puts the journal of a move beside a disk in the middle of another move: nothing is written
// to it.
func TestJournalOfAnotherDisk(t *testing.T) {
	t.Parallel()
	c := simCases(t)[0]
	whole := newTrial(c, faulty{})
	_, err := whole.life(true, false)
	require.NoError(t, err)
	middle := func(id string, cut int) *trial {
		x := newTrial(c, faulty{})
		x.id, x.on.Power = id, cut
		_, _ = x.life(true, false)
		x.crash(true, nil)
		return x
	}
	for cut := 10; cut < whole.on.Calls-8; cut += 3 {
		for _, undo := range []bool{false, true} {
			x, other := middle("one", cut), middle("other", cut)
			before := bytes.Clone(x.on.File("disk").Bytes())
			require.NoError(t, x.on.File("journal").Truncate(0))
			_, err := x.on.File("journal").WriteAt(other.on.File("journal").Bytes(), 0)
			require.NoError(t, err)
			_, err = x.life(false, undo)
			require.ErrorIs(t, err, ondisk.ErrChanged, "call %d", cut)
			require.True(t, bytes.Equal(before, x.on.File("disk").Bytes()), "call %d", cut)
		}
	}
}
