package main

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// patience is the factor by which tests may take longer than without a mutant, and together the time of the tests of
// one process.
const (
	patience = 30 * time.Second
	together = 30 * time.Second
)

// suite is a set of tests of a package.
type suite struct {
	path string // of the package, from the root of the module
	run  string // regular expression of names; empty: all
}

// test is a test, and its result without a mutant: the duration, and the mutants that it reaches.
type test struct {
	Name    string
	Took    time.Duration
	Failed  bool
	Reached []int // mutants that would make a difference in it

	suite *loaded
}

// loaded is a compiled suite.
type loaded struct {
	suite
	binary, sum string
	tests       []*test
}

// load compiles a suite and determines the mutants that each of its tests reaches.
func (b *bench) load(s suite) (*loaded, error) {
	l := &loaded{suite: s, binary: filepath.Join(b.cache, "bin", strings.ReplaceAll(s.path, "/", "_")+".test")}
	c := b.command("go", "test", "-c", "-vet=off", "-o", l.binary, "./"+s.path)
	if out, err := c.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%q: %w\n%s", c.Args, err, out)
	}
	text, err := os.ReadFile(l.binary)
	if errors.Is(err, os.ErrNotExist) {
		return l, nil // a package without tests
	}
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	if l.sum = hex.EncodeToString(sum[:8]); strings.HasPrefix(s.path, "cmd/") {
		l.sum += b.sum[:16] // the program that the tests run
		if err := b.buildProgram(s.path); err != nil {
			return nil, err
		}
	}
	out, err := b.start(l, "-test.list", cmp.Or(s.run, "^(Test|Fuzz)")).Output()
	if err != nil {
		return nil, err
	}
	for name := range strings.FieldsSeq(string(out)) {
		t, err := b.trace(l, name)
		if err != nil {
			return nil, err
		}
		if t.Failed {
			fmt.Fprintf(os.Stderr, "%s %s fails without a mutant, and is left out\n", s.path, name)
			continue
		}
		l.tests = append(l.tests, t)
	}
	slices.SortStableFunc(l.tests, func(a, b *test) int { return cmp.Compare(a.Took, b.Took) })
	return l, nil
}

// programEnv names the program for the tests of a command, so that they do not build it for each mutant.
const programEnv = "TRUEUP_TEST_PROGRAM"

// buildProgram builds a command with its mutants for the tests that run it.
func (b *bench) buildProgram(path string) error {
	b.program = filepath.Join(b.cache, "bin", filepath.Base(path))
	c := b.command("go", "build", "-o", b.program, "./"+path)
	c.Env = append(c.Env, "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%q: %w\n%s", c.Args, err, out)
	}
	return nil
}

// start makes a command that runs tests.
func (b *bench) start(l *loaded, args ...string) *exec.Cmd {
	c := b.command(l.binary, args...)
	c.Dir = filepath.Join(b.root, l.path)
	if b.program != "" {
		c.Env = append(c.Env, programEnv+"="+b.program)
	}
	return c
}

// run runs tests by name, and ends them after most.
func (b *bench) run(l *loaded, env string, most time.Duration, names ...string) ([]byte, error) {
	tmp := filepath.Join(b.cache, "tmp")
	mounts, _ := os.ReadFile("/proc/self/mounts") // without it, mounts are unknown
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], tmp+"/") {
			_ = exec.Command("umount", "--lazy", f[1]).Run() // a remaining mount fails the removal
		}
	}
	if err := errors.Join(os.RemoveAll(tmp), os.MkdirAll(tmp, 0o700)); err != nil {
		return nil, err
	}
	parts := strings.Split(strings.Join(names, "|"), "/")
	for i, p := range parts {
		if i > 0 {
			p = regexp.QuoteMeta(p)
		}
		parts[i] = "^(" + p + ")$"
	}
	c := b.start(l, "-test.short", "-test.failfast", "-test.timeout", most.String(),
		"-test.run", strings.Join(parts, "/"))
	c.Env = append(c.Env, env)
	c.WaitDelay = time.Second // a process of the test may hold its output
	return c.CombinedOutput()
}

// trace runs one test without a mutant, or uses an earlier result.
func (b *bench) trace(l *loaded, name string) (*test, error) {
	kept := filepath.Join(b.cache, "traces", l.sum, name)
	t := &test{}
	if text, err := os.ReadFile(kept); err == nil && json.Unmarshal(text, t) == nil {
		t.suite = l
		return t, nil
	}
	reached := filepath.Join(b.cache, "reached")
	if err := os.Remove(reached); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	began := time.Now()
	_, err := b.run(l, "TRUEUP_MUTANT_TRACE="+reached, time.Hour, name)
	t = &test{Name: name, Took: time.Since(began), Failed: err != nil, suite: l}
	text, err := os.ReadFile(reached)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for line := range strings.FieldsSeq(string(text)) {
		id, err := strconv.Atoi(line)
		if err != nil {
			return nil, err
		}
		t.Reached = append(t.Reached, id)
	}
	slices.Sort(t.Reached)
	t.Reached = slices.Compact(t.Reached)
	if text, err = json.Marshal(t); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(kept), 0o700); err != nil {
		return nil, err
	}
	return t, os.WriteFile(kept, text, 0o600)
}

// reaching returns the tests that a mutant can fail.
func (l *loaded) reaching(m mutant) []*test {
	var out []*test
	for _, t := range l.tests {
		if _, ok := slices.BinarySearch(t.Reached, m.id); ok {
			out = append(out, t)
		}
	}
	return out
}

// failedTest matches a failing test, and the first failing part of it.
var failedTest = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+).*(?:\n +--- FAIL: (\S+))?`)

// kill runs the tests that reach a mutant, the quick ones first, until one fails. by is empty if none does.
func (b *bench) kill(m mutant, l *loaded) (by string, reached int, err error) {
	tests := l.reaching(m)
	for rest, most := tests, 2; len(rest) > 0; most *= 4 {
		var names []string
		var took time.Duration
		for len(rest) > 0 && len(names) < most && (took < together || len(names) == 0) {
			names, took, rest = append(names, rest[0].Name), took+rest[0].Took, rest[1:]
		}
		if by, err := b.killOf(m, l, patience+10*took, names); err != nil || by != "" {
			return by, len(tests), err
		}
	}
	return "", len(tests), nil
}

// killOf returns the first test that fails with a mutant and passes without it. If a test also fails without it,
// because it is flaky or the machine was busy, it proves nothing, and the others are run again.
func (b *bench) killOf(m mutant, l *loaded, limit time.Duration, names []string) (by string, err error) {
	for len(names) > 0 {
		by, err := b.fails(l, fmt.Sprintf("TRUEUP_MUTANT=%d", m.id), limit, names)
		if err != nil || by == "" {
			return by, err
		}
		failed, part := names, names
		if i := slices.Index(names, strings.Split(by, "/")[0]); i >= 0 {
			failed, part = names[i:i+1:i+1], []string{by}
		}
		always, err := b.fails(l, "TRUEUP_MUTANT=0", limit, part)
		if err != nil || always == "" {
			return by, err
		}
		fmt.Fprintf(os.Stderr, "%s %s fails without the mutant too, and is left out\n", l.path, by)
		names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(failed, name) })
	}
	return "", nil
}

// timedOut replaces the name of a test when a mutant makes tests hang.
const timedOut = "timeout"

// fails runs tests and returns the first that fails. by is empty if none does.
func (b *bench) fails(l *loaded, env string, limit time.Duration, names []string) (by string, err error) {
	out, err := b.run(l, env, limit, names...)
	if err == nil {
		return "", nil
	}
	if exit := new(exec.ExitError); !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		return "", err
	}
	if found := failedTest.FindStringSubmatch(string(out)); found != nil {
		return cmp.Or(found[2], found[1]), nil
	} else if bytes.Contains(out, []byte("panic: test timed out")) {
		return timedOut, nil
	}
	return names[0], nil // it ended the process
}

// result is the outcome of a mutant.
type result struct {
	Key     string
	Code    string // of the mutant's source: a change makes the result void
	By      string `json:",omitempty"` // the test that fails; empty: none
	Suite   string `json:",omitempty"` // its package
	Reached int    // number of tests that reach it
	Sum     string // of the tests that did not fail
}

// results are stored in a file, so that the next run continues.
type results struct {
	file  *os.File
	known map[string]result
}

func openResults(path string, fresh bool) (*results, error) {
	if fresh {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	r := &results{file: f, known: map[string]result{}}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var x result
		if json.Unmarshal(lines.Bytes(), &x) == nil {
			r.known[x.Key] = x
		}
	}
	return r, nil
}

// of returns the stored result of a mutant.
func (r *results) of(m mutant) (x result, known bool) {
	x, known = r.known[m.key()]
	if known = known && x.Code == m.code; !known {
		return result{}, false
	}
	return x, true
}

func (r *results) put(x result) error {
	r.known[x.Key] = x
	text, err := json.Marshal(x)
	if err != nil {
		return err
	}
	_, err = r.file.Write(append(text, '\n'))
	return err
}
