package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// What an image from a stranger may waste: 64 MiB, and 2 s of processor time on a quiet machine (disktest.Scaled).
const (
	maxRSS = 64 << 20 // bytes
	maxCPU = 2 * time.Second
)

// launchEnv makes this test program the launcher of other programs. The kernel counts the memory of a parent to its
// child up to the moment of exec, and the parent that runs the tests is not small.
const launchEnv = "TRUEUP_TEST_LAUNCH"

// launchJob is what a launcher reads.
type launchJob struct {
	Program string
	Args    [][][]byte // one run each; as bytes, since JSON would change names that are no UTF-8
}

// measured is one run and what it took.
type measured struct {
	Stdout, Stderr []byte
	Code           int // -1: killed
	RSS            int64
	CPU            time.Duration // as disktest.Scaled
}

// launch runs the jobs on standard input and prints what became of each, until there are no more.
func launch(*testing.M) (int, error) {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var job launchJob
		if err := in.Decode(&job); errors.Is(err, io.EOF) {
			return 0, nil
		} else if err != nil {
			return 1, err
		}
		var all []measured
		for _, raw := range job.Args {
			var args []string
			for _, a := range raw {
				args = append(args, string(a))
			}
			ctx, cancel := context.WithTimeout(context.Background(), disktest.Patience)
			cmd := exec.CommandContext(ctx, job.Program, args...)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			cancel()
			if cmd.ProcessState == nil {
				return 1, err
			}
			usage, _ := cmd.ProcessState.SysUsage().(*syscall.Rusage)
			all = append(all, measured{
				Stdout: stdout.Bytes(), Stderr: stderr.Bytes(),
				Code: cmd.ProcessState.ExitCode(), RSS: usage.Maxrss << 10,
				CPU: disktest.Scaled(cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()),
			})
		}
		if err := out.Encode(all); err != nil {
			return 1, err
		}
	}
}

// measure runs trueup once for each list of arguments, through the launcher, and holds every run to the budget. A
// command that only reads gets six more tries: what a run takes on a machine that has other things to do says little,
// what it can do with says all.
func measure(t testing.TB, runs ...[]string) []result {
	t.Helper()
	all := launched(t, runs)
	for i, run := range runs {
		for range 6 {
			inBudget := all[i].RSS <= maxRSS && all[i].CPU <= maxCPU
			if inBudget || !slices.Contains([]string{"inspect", "plan", "verify"}, run[0]) {
				break
			}
			all[i] = launched(t, runs[i:i+1])[0]
		}
	}
	var results []result
	for i, m := range all {
		r := result{string(m.Stdout), string(m.Stderr), m.Code}
		require.GreaterOrEqual(t, r.code, 0, "trueup %q was killed after %v of the processor\n%s", runs[i], m.CPU,
			r.stderr)
		require.NotContains(t, r.stderr, "goroutine ", "trueup %q panicked", runs[i])
		require.LessOrEqual(t, m.RSS, int64(maxRSS), "peak memory of trueup %q", runs[i])
		require.LessOrEqual(t, m.CPU, maxCPU, "processor time of trueup %q", runs[i])
		// The largest tables take seconds to validate, and differ from small ones in nothing but number.
		if wantsJSON(runs[i]) && (len(r.stdout) < 1<<20 || disktest.Exhaustive) {
			validate(t, r.stdout)
		}
		results = append(results, r)
	}
	return results
}

// launched has the launcher run trueup with each list of arguments.
func launched(t testing.TB, runs [][]string) []measured {
	t.Helper()
	jobs := launchJob{Program: builtPath}
	for _, run := range runs {
		var args [][]byte
		for _, a := range run {
			args = append(args, []byte(a))
		}
		jobs.Args = append(jobs.Args, args)
	}
	launchers.Lock()
	var l *launcher
	if n := len(launchers.idle); n > 0 {
		l = launchers.idle[n-1]
		launchers.idle = launchers.idle[:n-1]
	}
	launchers.Unlock()
	if l == nil {
		self, err := os.Executable()
		require.NoError(t, err)
		l = &launcher{cmd: exec.Command(self)}
		l.cmd.Env = append(os.Environ(), launchEnv+"=1")
		l.cmd.Stderr = os.Stderr
		l.in, err = l.cmd.StdinPipe()
		require.NoError(t, err)
		l.out, err = l.cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, l.cmd.Start())
	}

	require.NoError(t, json.NewEncoder(l.in).Encode(jobs))
	var all []measured
	answer := json.NewDecoder(l.out)
	require.NoError(t, answer.Decode(&all))
	require.Len(t, all, len(runs))
	if answer.InputOffset() > mostAnswer {
		require.NoError(t, l.end())
		return all
	}
	launchers.Lock()
	defer launchers.Unlock()
	launchers.idle = append(launchers.idle, l)
	return all
}

// launcher is a process that launches others. The tests share some.
type launcher struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out io.Reader
}

var launchers struct {
	sync.Mutex
	idle []*launcher
}

// mostAnswer bounds the answers of a launcher that is used again, in bytes: what it holds counts to its next runs.
const mostAnswer = 64 << 10

// end lets a launcher end.
func (l *launcher) end() error { return errors.Join(l.in.Close(), l.cmd.Wait()) }

// endLaunchers ends all launchers, when the tests have ended.
func endLaunchers() (err error) {
	for _, l := range launchers.idle {
		err = errors.Join(err, l.end())
	}
	return err
}
