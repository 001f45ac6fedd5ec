package inplace

import (
	"testing"

	"github.com/stretchr/testify/require"
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
