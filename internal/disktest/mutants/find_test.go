package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

const sample = `package sample

import "os"

func (d *disk) grow(f *os.File, n int) (err error) {
	if n < 0 || n > 9 && d.small {
		return errRange
	}
	if n == 0 {
		return nil
	}
	d.patches = append(d.patches, n)
	if err := f.Sync(); err != nil {
		return err
	}
	d.mu.Lock()
	switch {
	case d.broken:
		return errBroken
	}
	return nil
}
`

// found returns the mutants of the sample in a room, and the edited sample.
func found(t *testing.T, r room) ([]string, string) {
	t.Helper()
	root := t.TempDir()
	r.path = "sample"
	dir := filepath.Join(root, "internal", r.path)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sample.go"), []byte(sample), 0o600))
	var all []mutant
	files, err := find(root, 2, r, nil, &all)
	require.NoError(t, err)
	require.Len(t, files, 1)
	var keys []string
	for i, m := range all {
		require.Equal(t, 2*roomIDs+1+i, m.id)
		keys = append(keys, strings.TrimPrefix(m.key(), "sample disk.grow "))
	}
	return keys, files[0].mutated()
}

func TestMutantsOfASource(t *testing.T) {
	keys, text := found(t, room{})
	require.Equal(t, []string{
		"check: if n < 0 || n > 9 && d.small",
		"operand: n < 0 of n < 0 || n > 9 && d.small",
		"operand: n > 9 && d.small of n < 0 || n > 9 && d.small",
		"append: append(d.patches, n)",
		"passed: if err != nil",
		"call: f.Sync()",
		"check: if d.broken",
	}, keys)
	for _, want := range []string{
		`package sample; import mutant "` + switchPath + `"`,
		"if mutant.Never(20001, mutant.Never(20002, n < 0) || mutant.Never(20003, n > 9 && d.small)) {",
		"d.patches = mutant.Without(20004, d.patches, append(d.patches, n))",
		"if err := mutant.Skip(20006, f.Sync)(); mutant.Never(20005, err != nil) {",
		"case mutant.Never(20007, d.broken):",
	} {
		require.Contains(t, text, want)
	}
	require.Equal(t, strings.Count(sample, "\n"), strings.Count(text, "\n"), "lines stay where they are")

	keys, _ = found(t, room{logic: true, pure: true})
	require.Equal(t, []string{
		"check: if n < 0 || n > 9 && d.small",
		"operand: n < 0 of n < 0 || n > 9 && d.small",
		"operand: n > 9 && d.small of n < 0 || n > 9 && d.small",
		"operand: n > 9 of n > 9 && d.small",
		"operand: d.small of n > 9 && d.small",
		"branch: if n == 0",
		"append: append(d.patches, n)",
		"passed: if err != nil",
		"check: if d.broken",
	}, keys)
}

// Each room has mutants. Each accepted row has a reason and the key of an existing mutant.
func TestAcceptedMutantsExist(t *testing.T) {
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	var all []mutant
	for i, r := range rooms {
		_, err := find(root, i, r, nil, &all)
		require.NoError(t, err)
	}
	keys := map[string]bool{}
	for _, m := range all {
		require.False(t, keys[m.key()], m.key())
		keys[m.key()] = true
	}
	for key, why := range accepted() {
		require.NotEmpty(t, why, key)
		require.True(t, keys[key], "accepted, but there is no such mutant: %s", key)
	}
}

// A test that fails both with and without a mutant does not kill it; another test can.
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
			// A child forked in between would have the script open for writing, so that it could not run.
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

// A result belongs to the source of a function: another function of the same name has none.
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
