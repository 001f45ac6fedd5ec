package disktest

import (
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ignoringEnv marks the process that TestDefaultSignals starts with signals ignored.
const ignoringEnv = "TRUEUP_TEST_IGNORING"

var ignoredMask = regexp.MustCompile(`(?m)^SigIgn:\s+([0-9a-f]{16})$`)

// ignored reports whether a program that is started now has a signal ignored.
func ignored(t *testing.T, s syscall.Signal) bool {
	t.Helper()
	m := ignoredMask.FindStringSubmatch(Output(t, "cat", "/proc/self/status"))
	require.NotNil(t, m)
	mask, err := strconv.ParseUint(m[1], 16, 64)
	require.NoError(t, err)
	return mask>>(s-1)&1 == 1
}

// Tests that send signals hold under nohup and in the background of a shell.
func TestDefaultSignals(t *testing.T) {
	signals := []syscall.Signal{syscall.SIGINT, syscall.SIGHUP}
	if os.Getenv(ignoringEnv) == "" {
		again := exec.Command(Tool(t, "sh"), "-c", `trap '' INT HUP; exec "$@"`, "sh", os.Args[0],
			"-test.run=^TestDefaultSignals$")
		again.Env = append(os.Environ(), ignoringEnv+"=1")
		out, err := again.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	for _, s := range signals {
		require.True(t, ignored(t, s), "%v is not ignored here, which the test needs", s)
	}
	DefaultSignals()
	for _, s := range signals {
		require.False(t, ignored(t, s), "%v", s)
	}
}

func TestProcessorTimeIsOfTheGoroutine(t *testing.T) {
	done := make(chan struct{})
	var other time.Duration
	go func() {
		defer close(done)
		other = ProcessorTime(func() { // uses the processor for a moment that a clock of processor time sees
			began := threadTime()
			for threadTime()-began < 50*time.Millisecond {
				runtime.KeepAlive(began)
			}
		})
	}()
	mine := ProcessorTime(func() { <-done })
	require.Less(t, mine, other, "a goroutine that waits uses no processor time")
}

func TestWaitSettled(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/before", nil, 0o644))
	WaitSettled(t, dir)
	require.NoError(t, os.WriteFile(dir+"/after", nil, 0o644))
	before, err := os.Stat(dir + "/before")
	require.NoError(t, err)
	after, err := os.Stat(dir + "/after")
	require.NoError(t, err)
	require.True(t, after.ModTime().After(before.ModTime()))
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, names, 2, "nothing is left of the wait")
}
