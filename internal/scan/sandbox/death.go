package sandbox

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"unicode"
)

// Cause is why a worker died.
type Cause string

// Causes.
const (
	Time     Cause = "time"     // no answer within Limits.Wall
	CPU      Cause = "cpu"      // computed longer than Limits.CPU
	Memory   Cause = "memory"   // wanted more than Limits.Data
	Crash    Cause = "crash"    // a panic, an exit, a signal, or something else than an answer
	Killed   Cause = "killed"   // from outside: the kernel for want of memory, or an administrator
	Canceled Cause = "canceled" // by the caller: its context ended, or it closed the worker
)

// Death is the error of a call whose worker died. The worker is of no use any more.
type Death struct { //nolint:errname // an event, not a fault of the caller
	Cause Cause
	// Text is one line of bounded length: the limit, or the first line of a panic. The request's file may be quoted in
	// it.
	Text string
	// Said is the beginning of its standard error during this request, unescaped; for a report of a bug.
	Said string
	// Idle is set if the worker had ended before it could begin with the request: another worker may well answer it.
	Idle bool
	err  error
}

func (d *Death) Error() string { return "worker died: " + d.Text }

// Unwrap returns the context's error of a call that was canceled.
func (d *Death) Unwrap() error { return d.err }

// exitCPU is the status with which a worker ends that has used up its computing time. Go itself ends with 2.
const exitCPU = 117

// Bounds of the last words of a worker that are kept.
const (
	mostSaid = 4 << 10
	mostLine = 300
)

// post finds the cause in the exit status and the last words of a worker.
func post(exit error, said string, limits Limits) *Death {
	var status *exec.ExitError
	if errors.As(exit, &status) && status.ExitCode() == exitCPU {
		return &Death{Cause: CPU, Text: fmt.Sprintf("computed longer than %v for one request", limits.CPU), Said: said}
	}
	if status != nil && killed(status.ProcessState) {
		return &Death{
			Cause: Killed, Text: "killed from outside (signal 9), maybe by the kernel for want of memory",
			Said: said,
		}
	}
	lines := strings.Split(said, "\n")
	for _, l := range lines {
		if outOfMemory(l) || (strings.HasPrefix(l, runtimeFault) && nearly(status, limits.Data)) {
			return &Death{
				Cause: Memory, Text: fmt.Sprintf("wanted more than %d MiB of memory: %s", limits.Data>>20, line(l)),
				Said: said,
			}
		}
	}
	return &Death{Cause: Crash, Text: lastWords(exit, lines), Said: said}
}

// runtimeFault is how Go's runtime ends on a fault of its own. Its collector does so if the kernel gives it no memory.
const runtimeFault = "fatal error: unexpected signal during runtime execution"

// nearly reports whether a process had used more than half of so many bytes of memory: the heap grows by large pieces.
func nearly(status *exec.ExitError, most int64) bool {
	return status != nil && peak(status.ProcessState) > most/2
}

// outOfMemory lists the lines with which Go's runtime (malloc.go, mem_linux.go, os_linux.go) and its C side end for
// want of memory.
func outOfMemory(l string) bool {
	if !strings.HasPrefix(l, "fatal error: ") && !strings.HasPrefix(l, "runtime: ") &&
		!strings.HasPrefix(l, "runtime/cgo: ") {
		return false
	}
	for _, words := range []string{
		"out of memory", "cannot allocate memory", "cannot map pages in arena", "failed to create new OS thread",
		"pthread_create failed",
	} {
		if strings.Contains(l, words) {
			return true
		}
	}
	return false
}

// lastWords returns the line that names the fault, else the first one, else how the process ended.
func lastWords(exit error, lines []string) string {
	first := ""
	for _, l := range lines {
		if strings.HasPrefix(l, "panic: ") || strings.HasPrefix(l, "fatal error: ") {
			return line(l)
		}
		if first == "" {
			first = line(l)
		}
	}
	switch {
	case exit == nil && first == "":
		return "ended without an answer"
	case exit == nil:
		return first
	case first == "":
		return exit.Error()
	}
	return exit.Error() + ": " + first
}

// line makes one line of bounded length of a text.
func line(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	cut := len(s) > mostLine
	if cut {
		s = s[:mostLine]
	}
	s = strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD")))
	if cut {
		s += "…"
	}
	return s
}

// words keeps the beginning of a worker's standard error and drops the rest.
type words struct {
	mu   sync.Mutex
	text []byte
}

func (w *words) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, p[:min(len(p), mostSaid-len(w.text))]...)
	return len(p), nil
}

func (w *words) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = w.text[:0]
}

func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.text)
}
