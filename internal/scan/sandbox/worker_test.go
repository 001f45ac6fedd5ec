package sandbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/scan/sandbox"
)

// start runs a worker of the tests until the end of one.
func start(t *testing.T, o sandbox.Options) *sandbox.Worker {
	t.Helper()
	o.Args = []string{asWorker}
	if o.Level == "" {
		o.Level = sandbox.Sandbox
	}
	w, err := sandbox.Start(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w
}

// ask sends a request that is answered.
func ask(t *testing.T, w *sandbox.Worker, request string) string {
	t.Helper()
	answer, err := w.Call(t.Context(), []byte(request))
	require.NoError(t, err)
	return string(answer)
}

// dies sends a request of which the worker dies.
func dies(t *testing.T, w *sandbox.Worker, request string) *sandbox.Death {
	t.Helper()
	_, err := w.Call(t.Context(), []byte(request))
	var death *sandbox.Death
	require.ErrorAs(t, err, &death)
	require.False(t, death.Idle)
	require.NotContains(t, death.Text, "\n")
	return death
}

func TestAnswers(t *testing.T) {
	raw, err := json.Marshal(hello{Echo: "> "})
	require.NoError(t, err)
	w := start(t, sandbox.Options{Hello: raw})
	require.Equal(t, "> one", ask(t, w, "echo one"))
	require.Equal(t, "> ", ask(t, w, "echo "))
	require.Equal(t, "> two", ask(t, w, "echo two"))
	long := strings.Repeat("x", 1<<20)
	answer := ask(t, w, "echo "+long)
	require.Len(t, answer, len("> ")+len(long), "longer than what a pipe holds")
	require.Equal(t, strings.Count(long, "x"), strings.Count(answer, "x"))
}

// What a worker dies of is named, in both levels, and another worker works.
func TestDeaths(t *testing.T) {
	small := sandbox.Limits{CPU: time.Second, Wall: 5 * time.Minute, Answer: 1 << 20}
	brief := sandbox.Limits{Wall: 2 * time.Second}
	for name, c := range map[string]struct {
		request string
		limits  sandbox.Limits
		cause   sandbox.Cause
		text    string // somewhere in what is said of it
	}{
		"panic": {"panic the footer\nis 7", small, sandbox.Crash, "panic: the footer"},
		"index outside a slice": {
			"index", small, sandbox.Crash,
			"panic: runtime error: slice bounds out of range",
		},
		"exit":                            {"exit", small, sandbox.Crash, "exit status 3"},
		"killed from outside":             {"signal", small, sandbox.Killed, "killed from outside (signal 9)"},
		"endless loop":                    {"spin", small, sandbox.CPU, "longer than 1s"},
		"endless sleep":                   {"sleep", brief, sandbox.Time, "no answer within 2s"},
		"memory in small pieces":          {"hog", small, sandbox.Memory, "256 MiB"},
		"memory in one piece":             {"huge", small, sandbox.Memory, "256 MiB"},
		"endless recursion":               {"stack", small, sandbox.Memory, "256 MiB"},
		"no frame on the pipe":            {"garbage", small, sandbox.Crash, "not a frame: begins with 0x68656c6c"},
		"pipe closed":                     {"closed", small, sandbox.Crash, "file already closed"},
		"answer over the limit":           {"long", small, sandbox.Crash, "answer of 2097152 bytes, at most 1048576"},
		"frame that announces too much":   {"lie", small, sandbox.Crash, "4294967295 bytes, at most 1048576"},
		"a lot of control codes and exit": {"shout", small, sandbox.Crash, "exit status 4: [2Jnoise"},
	} {
		for _, level := range []sandbox.Level{sandbox.Process, sandbox.Sandbox} {
			t.Run(name+", "+string(level), func(t *testing.T) {
				t.Parallel()
				if c.cause == sandbox.Memory && disktest.Raced {
					t.Skip("the race detector has taken more memory than the limit")
				}
				w := start(t, sandbox.Options{Level: level, Limits: c.limits})
				require.Equal(t, "before", ask(t, w, "echo before"))
				death := dies(t, w, c.request)
				require.Equal(t, c.cause, death.Cause, "%v", death)
				require.Contains(t, death.Text, c.text)
				require.LessOrEqual(t, len(death.Text), 400)

				_, err := w.Call(t.Context(), []byte("echo again"))
				var again *sandbox.Death
				require.ErrorAs(t, err, &again)
				require.True(t, again.Idle, "what is asked of a dead worker is not what it died of")

				require.Equal(t, "next", ask(t, start(t, sandbox.Options{Level: level}), "echo next"))
			})
		}
	}
}

func TestComputingTimeIsRenewed(t *testing.T) {
	w := start(t, sandbox.Options{Limits: sandbox.Limits{CPU: time.Second}})
	for range 4 { // 2.8 s in all
		require.Equal(t, "burnt", ask(t, w, "burn"))
	}
}

// pidOf is the process of a worker.
func pidOf(t *testing.T, w *sandbox.Worker) int {
	t.Helper()
	pid, err := strconv.Atoi(ask(t, w, "pid"))
	require.NoError(t, err)
	return pid
}

// whenAtWork does something when a worker that had nothing to do uses the processor.
func whenAtWork(t *testing.T, pid int, do func()) {
	t.Helper()
	defer do()
	before := processorTime(pid)
	disktest.WaitFor(t, "a worker at work", func() bool { return processorTime(pid) > before+5 })
}

// processorTime is that of a process, in ticks of 10 ms. Spec: proc(5), /proc/PID/stat, utime.
func processorTime(pid int) (ticks int) {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // it may have ended
	if _, fields, ok := strings.Cut(string(stat), ") "); ok {
		ticks, _ = strconv.Atoi(strings.Fields(fields)[11])
	}
	return ticks
}

func TestCancel(t *testing.T) {
	w := start(t, sandbox.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	pid := pidOf(t, w)
	go whenAtWork(t, pid, cancel)
	_, err := w.Call(ctx, []byte("spin"))
	require.ErrorIs(t, err, context.Canceled)

	w = start(t, sandbox.Options{})
	_, err = w.Call(ctx, []byte("echo x"))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, "y", ask(t, w, "echo y"), "nothing was sent, and the worker lives")
}

// A worker that ended while it was asked nothing did not die of the next request.
func TestDeathBetweenRequests(t *testing.T) {
	w := start(t, sandbox.Options{})
	pid := pidOf(t, w)
	require.NoError(t, unix.Kill(pid, unix.SIGKILL))
	disktest.WaitFor(t, "a parent that has taken notice",
		func() bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) })
	_, err := w.Call(t.Context(), []byte("echo x"))
	var death *sandbox.Death
	require.ErrorAs(t, err, &death)
	require.True(t, death.Idle)
	require.Equal(t, sandbox.Killed, death.Cause)
}

func TestStartFails(t *testing.T) {
	raw, err := json.Marshal(hello{Fail: "no\x1b such\nthing"})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		options sandbox.Options
		want    string
	}{
		"refused by its start": {
			sandbox.Options{Args: []string{asWorker}, Level: sandbox.Sandbox, Hello: raw},
			"start of a worker: no  such",
		},
		"not a worker": {
			sandbox.Options{Args: []string{"-test.run=^$"}, Level: sandbox.Process},
			"start of a worker: ",
		},
		"no isolation": {
			sandbox.Options{Args: []string{asWorker}, Level: sandbox.None},
			`isolation "none" has no worker: want process or sandbox`,
		},
		"relative root": {
			sandbox.Options{Args: []string{asWorker}, Level: sandbox.Sandbox, Roots: []string{"a"}},
			`worker root "a" is relative`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := sandbox.Start(t.Context(), c.options)
			require.ErrorContains(t, err, c.want)
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = sandbox.Start(ctx, sandbox.Options{Args: []string{asWorker}, Level: sandbox.Process})
	require.ErrorIs(t, err, context.Canceled)
}

// It has nothing of its parent's environment, neither names nor secrets.
func TestEnvironment(t *testing.T) {
	t.Setenv("SECRET", "x")
	w := start(t, sandbox.Options{})
	require.Equal(t, "GOMAXPROCS=1\nGOTRACEBACK=single\nTZ=\n/", ask(t, w, "environment"))
}
