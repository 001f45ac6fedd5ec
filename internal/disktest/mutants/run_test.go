package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A test that fails with a mutant and without it has not noticed the mutant; the tests beside it may.
func TestOnlyWhatPassesWithoutAMutantKillsIt(t *testing.T) {
	t.Parallel()
	const fails = `echo "--- FAIL: $1 (0.00s)"; exit 1`
	for name, c := range map[string]struct{ script, by string }{
		"never":           {"exit 0", ""},
		"with the mutant": {`[ "$TRUEUP_MUTANT" = 7 ] || exit 0; set -- TestA/part; ` + fails, "TestA/part"},
		"in a part": {
			`[ "$TRUEUP_MUTANT" = 7 ] || case "$*" in *'^(TestA)$/^(a\+b)$') exit 0;; esac; ` +
				`printf -- '--- FAIL: TestA (0.00s)\n    --- FAIL: TestA/a+b (0.00s)\n'; exit 1`,
			"TestA/a+b",
		},
		"always":         {`case "$*" in *TestA*) set -- TestA;; *) set -- TestB;; esac; ` + fails, ""},
		"a test unasked": {"set -- TestC; " + fails, ""},
		"one of them always": {
			`case "$*" in *TestA*) set -- TestA;; *) [ "$TRUEUP_MUTANT" = 7 ] || exit 0; set -- TestB;; esac; ` + fails,
			"TestB",
		},
		"without a name": {`[ "$TRUEUP_MUTANT" = 0 ]`, "TestA"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			script := filepath.Join(dir, "suite.test")
			// A child that is forked meanwhile would have the script open for writing, and it could not be run.
			syscall.ForkLock.RLock()
			err := os.WriteFile(script, []byte("#!/bin/sh\n"+c.script+"\n"), 0o700)
			syscall.ForkLock.RUnlock()
			require.NoError(t, err)
			b := &bench{root: dir, cache: t.TempDir()}
			l := &loaded{suite: suite{path: "."}, binary: script}
			for _, name := range []string{"TestA", "TestB"} {
				l.tests = append(l.tests, &test{Name: name, Reached: []int{7}, suite: l})
			}
			by, reached, err := b.kill(mutant{id: 7}, l)
			require.NoError(t, err)
			require.Equal(t, c.by, by)
			require.Equal(t, 2, reached)
		})
	}
}

// A result is that of the source of a function: another function of the same name has none.
func TestResultsGoWithTheSource(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results")
	r, err := openResults(path, false)
	require.NoError(t, err)
	m := mutant{room: "plan", in: "New", kind: kindCheck, text: "err != nil", code: "as it was"}
	require.NoError(t, r.put(result{Key: m.key(), Code: m.code, By: "TestNew"}))
	require.NoError(t, r.file.Close())
	r, err = openResults(path, false)
	require.NoError(t, err)
	defer r.file.Close()
	got, known := r.of(m)
	require.True(t, known)
	require.Equal(t, "TestNew", got.By)
	m.code = "as it is"
	got, known = r.of(m)
	require.False(t, known)
	require.Empty(t, got)
}
