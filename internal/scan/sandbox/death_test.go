package sandbox

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The words of Go's runtime are those of go1.26, seen with limits or read in malloc.go, mem_linux.go and os_linux.go.
func TestCauseByLastWords(t *testing.T) {
	limits := Limits{Data: 64 << 20, CPU: time.Second}
	exit := errors.New("exit status 2")
	for name, c := range map[string]struct {
		said  string
		cause Cause
		text  string
	}{
		"panic": {
			"a word before\npanic: seven is [recovered]\n\ngoroutine 1", Crash,
			"panic: seven is [recovered]",
		},
		"panic of memory": {"panic: out of memory, says the file\n", Crash, "panic: out of memory, says the file"},
		"heap": {
			"runtime: out of memory: cannot allocate 4194304-byte block (71303168 in use)\nfatal error: " +
				"out of memory\n", Memory,
			"wanted more than 64 MiB of memory: runtime: out of memory: cannot allocate 4194304-byte block (71303168 " +
				"in use)",
		},
		"tables of the runtime": {
			"fatal error: runtime: cannot allocate memory\n", Memory,
			"wanted more than 64 MiB of memory: fatal error: runtime: cannot allocate memory",
		},
		"thread without memory": {
			"runtime: failed to create new OS thread (have 5 already; errno=12)\n", Memory,
			"wanted more than 64 MiB of memory: runtime: failed to create new OS thread (have 5 already; errno=12)",
		},
		"no thread": {
			"runtime: failed to create new OS thread (have 5 already; errno=11)\nruntime: may need to increase max " +
				"user processes (ulimit -u)\nfatal error: newosproc\n", Threads,
			"runtime: failed to create new OS thread (have 5 already; errno=11)",
		},
		"no thread of C, or no memory": {
			"runtime/cgo: pthread_create failed: Resource temporarily unavailable\nSIGABRT: abort\n", Memory,
			"wanted more than 64 MiB of memory: runtime/cgo: pthread_create failed: Resource temporarily unavailable",
		},
		"deadlock": {
			"fatal error: all goroutines are asleep - deadlock!\n", Crash,
			"fatal error: all goroutines are asleep - deadlock!",
		},
		"nothing":  {"", Crash, "exit status 2"},
		"codes":    {"\x1b]0;x\x07\xff\u009b\r\n", Crash, "exit status 2: ]0;x \uFFFD"},
		"too long": {"panic: " + strings.Repeat("x", 5000), Crash, "panic: " + strings.Repeat("x", 293) + "…"},
	} {
		t.Run(name, func(t *testing.T) {
			d := causeOfDeath(exit, c.said, limits)
			require.Equal(t, c.cause, d.Cause)
			require.Equal(t, c.text, d.Text)
		})
	}
}

// A fault within the runtime is one of memory where the process had used much of it, and an error of ours where it had
// not.
func TestFaultOfTheRuntime(t *testing.T) {
	const said = "fatal error: unexpected signal during runtime execution\n[signal SIGSEGV: segmentation violation " +
		"code=0x1 addr=0x0 pc=0x0]\n"
	exit := exec.Command("sh", "-c", "exit 2").Run()
	require.Error(t, exit)
	require.Equal(t, Memory, causeOfDeath(exit, said, Limits{Data: 4 << 10}).Cause)
	require.Equal(t, Crash, causeOfDeath(exit, said, Limits{Data: 1 << 40}).Cause)
	require.Equal(t, Crash, causeOfDeath(errors.New("exit status 2"), said, Limits{Data: 4 << 10}).Cause)
}

func TestWordsAreBounded(t *testing.T) {
	var w words
	for range 100 {
		n, err := w.Write([]byte(strings.Repeat("0123456789", 10)))
		require.NoError(t, err)
		require.Equal(t, 100, n)
	}
	require.Equal(t, strings.Repeat("0123456789", 410)[:4096], w.String())
	w.forget()
	require.Empty(t, w.String())
}
