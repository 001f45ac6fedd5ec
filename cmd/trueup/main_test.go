package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// builtPath is the trueup that TestMain built. The tests of this package run it like a user.
var builtPath string

func TestMain(m *testing.M) {
	disktest.DefaultSignals()
	// The memory of programs is measured, and each starts with the size of this process.
	debug.SetGCPercent(100)
	if err := os.Unsetenv("GOGC"); err != nil {
		panic(err)
	}
	run := buildAndRun
	if os.Getenv(launchEnv) != "" {
		run = launch
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// buildAndRun is separate from TestMain because os.Exit skips deferred calls.
func buildAndRun(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "trueup-test-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	builtPath = filepath.Join(dir, "trueup")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", builtPath, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // like a release
	if made := os.Getenv("TRUEUP_TEST_PROGRAM"); made != "" {
		build = exec.Command("cp", made, builtPath) // of scripts/stress.sh
	}
	if out, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("%q: %w\n%s", build.Args, err, out)
	}
	code := m.Run()
	if err := endLaunchers(); err != nil {
		return 1, err
	}
	return code, nil
}

// result is the result of a run of trueup.
type result struct {
	stdout, stderr string
	code           int
}

// lockedBuffer receives the output of a program that keeps running.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// trueup runs the program and returns its result. The test fails here only if the program could not be started or was
// killed by a signal.
func trueup(t testing.TB, args ...string) result {
	t.Helper()
	r, state := end(t, exec.Command(builtPath, args...))
	require.GreaterOrEqual(t, r.code, 0, "trueup %q was killed: %v\n%s", args, state, r.stderr)
	if wantsJSON(args) {
		validateOutput(t, args, r.stdout)
	}
	return r
}

// end runs any program until it ends; a program ended by a signal has code -1.
func end(t testing.TB, cmd *exec.Cmd) (result, *os.ProcessState) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}, cmd.ProcessState
}
