package results

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/trial/film"
	"github.com/trueup/trueup/internal/trial/judge"
)

// The result goes from one process to another as JSON.
func TestAccept(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		verdict judge.Verdict
		ended   film.End
		still   bool // nothing moves
		allowed bool
		refused string // part of the error
		said    string
	}{
		"same": {verdict: judge.Same, said: "trial boot: same: why"},
		"neither": {
			verdict: judge.Neither,
			said:    "warning: trial boot: why; it says nothing on whether the copy boots",
		},
		"differs": {
			verdict: judge.Differs,
			refused: "trueup boot 'a b' shows both runs; --allow-unbootable writes",
		},
		"differs, allowed": {
			verdict: judge.Differs, allowed: true,
			said: "warning: trial boot: why; --allow-unbootable writes the copy anyway",
		},
		"no time": {
			verdict: judge.Unclear, ended: film.TimeOver,
			refused: "with --boot-seconds N; --allow-unbootable writes",
		},
		"no rest": {
			verdict: judge.Unclear, ended: film.Settled,
			refused: "with --boot-settle N; --allow-unbootable writes",
		},
		"no QEMU": {
			verdict: judge.Unclear, ended: film.Broken,
			refused: "trueup boot 'a b' shows both runs; --allow-unbootable",
		},
		"no time, allowed": {
			verdict: judge.Unclear, ended: film.TimeOver, allowed: true,
			said: "warning: trial boot: why; --allow",
		},
		"no time, nothing moves": {
			verdict: judge.Unclear, ended: film.TimeOver, still: true,
			said: "trial boot: unclear: why",
		},
	} {
		made := &Boot{
			Verdict: c.verdict, Reason: "why", Source: "a b", Before: &Run{Ended: c.ended},
			After: &Run{Ended: film.Settled},
		}
		if c.still {
			made.After = nil
		}
		b, err := json.Marshal(made)
		require.NoError(t, err)
		var r Boot
		require.NoError(t, json.Unmarshal(b, &r))
		said, err := r.Accept("boot-", c.allowed)
		require.Contains(t, said, c.said, name)
		if c.refused == "" {
			require.NoError(t, err, name)
			continue
		}
		require.Empty(t, said, name)
		require.ErrorAs(t, err, new(*ondisk.Refusal), name)
		require.ErrorContains(t, err, "refused: trial boot: why; ", name)
		require.ErrorContains(t, err, c.refused, name)
	}
}
