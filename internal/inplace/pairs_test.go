package inplace

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// TestKilledThenPower kills a move at each call, and then the power goes at one of the first calls of the next run: what
// the killed run wrote stood in the cache only.
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

// nextCalls is in how many calls of a second run the power goes: until it has made durable what it goes on from, and
// written a stretch.
const nextCalls = 9

// TestFailedCalls has each writing call of a move fail in turn, and then calls of the run that resumes or undoes it.
// What a flush failed to write is taken for clean from then on, so that the next run must write it again before it
// builds on it: the disk is the old or the new one when the power goes behind its end, or in its first calls.
// TRUEUP_CRASHES has all of these tried.
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

// failed is a move of which a call failed, in a process that has ended.
func failed(t *testing.T, c simCase, n int) *trial {
	t.Helper()
	x := newTrial(c, faulty{})
	x.on.Fail = n
	_, err := x.life(true, false)
	require.ErrorIs(t, err, disktest.ErrFault)
	x.on.Fail = 0
	return x
}

// again has a call of the second run fail, too: another one for each call of the first.
func (s *simulation) again(t *testing.T, c simCase, n int, undo bool) {
	t.Helper()
	x := failed(t, c, n)
	x.on.Fail = x.on.Calls + 1 + n%7
	_, _ = x.life(false, undo)
	x.on.Fail = 0
	s.add(x.end(undo), "%s, call %d and then call %d of the next run fail", c.name, n, 1+n%7)
}
