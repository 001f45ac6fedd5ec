package sandbox

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/trueup/trueup/internal/sys"
)

// Time limits of the parent, besides the limit of a request.
const (
	startLimit = 30 * time.Second // for a worker to restrict itself, on a busy machine
	// exitLimit is for the end of a worker that was killed or has closed its output. A worker that hangs in the kernel
	// needs longer.
	exitLimit = time.Second
	// closeLimit is for the end of a killed worker without a request: a busy machine can take seconds to end it.
	closeLimit = 10 * time.Second
	mostReady  = 1 << 20 // bytes of the answer to the first request
)

// Worker is a process that answers requests, one after the other.
type Worker struct {
	cmd       *exec.Cmd
	in, out   *os.File      // this side of its pipes
	answers   *bufio.Reader // of out
	said      words
	limits    Limits
	isolation Isolation

	sent, answered uint32 // numbers of requests, the first one included

	dead bool          // the process has ended or was given up
	exit error         // of cmd.Wait, valid after done
	done chan struct{} // closed when the process is gone
}

// setup is the first request.
type setup struct {
	Level  Level
	Roots  [][]byte // bytes, since JSON strings must be UTF-8
	Limits Limits
	Hello  []byte
}

// ready is the answer to setup.
type ready struct {
	Isolation Isolation
	Error     string
}

// Start runs this program again as a worker. It returns after the worker has restricted itself and its start function
// has succeeded. The context is for the start only.
func Start(ctx context.Context, o Options) (*Worker, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w, err := spawn(o)
	if err != nil {
		return nil, fmt.Errorf("start of a worker: %w", err)
	}
	if err := w.greet(ctx, o); err != nil {
		return nil, errors.Join(fmt.Errorf("start of a worker: %w", err), w.Close())
	}
	return w, nil
}

// spawn starts the process.
func spawn(o Options) (*Worker, error) {
	w := &Worker{limits: o.Limits.orDefault(), done: make(chan struct{})}
	program, err := sys.Self()
	if err != nil {
		return nil, err
	}
	theirIn, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, theirIn.Close(), in.Close())
	}
	w.in, w.out, w.answers = in, out, bufio.NewReader(out)
	w.cmd = &exec.Cmd{
		Path: program,
		Args: append([]string{"trueup-worker"}, o.Args...),
		// One thread at a time, since there is a worker for each processor: a second thread for garbage collection
		// saves no time, and costs up to half more memory. An empty TZ means UTC in every worker, since /etc/localtime
		// is not readable.
		Env:   []string{"GOMAXPROCS=1", "GOTRACEBACK=single", "TZ="},
		Dir:   "/",
		Stdin: theirIn, Stdout: theirOut, Stderr: &w.said,
		WaitDelay: exitLimit,
	}
	sys.Apart(w.cmd)
	if err = keepDescriptors(); err == nil {
		err = w.cmd.Start()
	}
	err = errors.Join(err, theirIn.Close(), theirOut.Close())
	if err != nil {
		return nil, errors.Join(err, in.Close(), out.Close())
	}
	go w.reap()
	return w, nil
}

// reap waits for the end of the process and ends the processes that it may have started. No other process gets its
// number before Wait.
func (w *Worker) reap() {
	sys.EndGroup(w.cmd.Process.Pid)
	w.exit = w.cmd.Wait()
	close(w.done)
}

// greet sends the first request. The answer contains the isolation of the worker, which has not yet read any image.
func (w *Worker) greet(ctx context.Context, o Options) error {
	s := setup{Level: o.Level, Limits: w.limits, Hello: o.Hello, Roots: make([][]byte, 0, len(o.Roots))}
	for _, root := range o.Roots {
		s.Roots = append(s.Roots, []byte(root))
	}
	request, err := json.Marshal(s)
	if err != nil {
		return err
	}
	answer, err := w.exchange(ctx, [][]byte{request}, startLimit, mostReady)
	if err != nil {
		return err
	}
	var r ready
	if err := json.Unmarshal(answer, &r); err != nil {
		return fmt.Errorf("its first answer: %w", err)
	}
	if r.Error != "" {
		return errors.New(line(r.Error))
	}
	w.isolation = r.Isolation
	return nil
}

// Isolation returns the isolation that the worker reported at its start.
func (w *Worker) Isolation() Isolation { return w.isolation }

// Call sends requests to the worker and returns the answer to its oldest one, which may be of an earlier call. At most
// MostRequests may be without an answer. The error is a *Death if the worker died, which concerns the oldest request
// alone, or the error of a context that has ended. The worker cannot be used after an error.
func (w *Worker) Call(ctx context.Context, requests ...[]byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if w.answered == w.sent {
		select {
		case <-w.done:
			return nil, w.bury(causeOfDeath(w.exit, w.said.String(), w.limits), true)
		default:
		}
		w.said.forget()
	}
	return w.exchange(ctx, requests, w.limits.Wall, w.limits.Answer)
}

// exchange sends requests and reads one answer, of at most most bytes, within the time wall.
func (w *Worker) exchange(ctx context.Context, requests [][]byte, wall time.Duration, most int64) ([]byte, error) {
	timed, cancel := context.WithTimeout(ctx, wall)
	defer cancel()
	stop := context.AfterFunc(timed, w.kill)
	answer, err := w.talk(requests, most)
	switch inTime := stop(); {
	case inTime && err == nil:
		return answer, nil
	case inTime:
		return nil, w.bury(w.autopsy(err), w.answered == w.sent)
	}
	w.await(exitLimit)
	death := w.bury(&Death{Cause: Time, Text: fmt.Sprintf("no answer within %v", wall)}, false)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return nil, death
}

// talk sends requests and reads one answer. An answer to an earlier request counts even if the worker has ended since.
func (w *Worker) talk(requests [][]byte, most int64) (answer []byte, err error) {
	for _, r := range requests {
		if err = writeFrame(w.in, w.sent, r); err != nil {
			break
		}
		w.sent++
	}
	if err == nil || w.answered < w.sent {
		answer, err = readFrame(w.answers, w.answered, most)
	}
	if err == nil {
		w.answered++
	}
	return answer, err
}

// autopsy finds the cause of a death from an error on the pipe. A worker that only closed its pipe gets time to end by
// itself, so that its exit status shows the cause.
func (w *Worker) autopsy(err error) *Death {
	offence := errors.Is(err, errFrame)
	if offence || !w.await(exitLimit) {
		w.kill()
	}
	gone := w.await(exitLimit)
	switch {
	case offence:
		return &Death{Cause: Crash, Text: "its answer is " + line(err.Error())}
	case !gone:
		return &Death{Cause: Crash, Text: line(err.Error())}
	}
	return causeOfDeath(w.exit, w.said.String(), w.limits)
}

// bury marks the worker as dead and closes its pipes.
func (w *Worker) bury(death *Death, idle bool) *Death {
	death.Idle, w.dead, w.sent = idle, true, w.answered
	_ = w.in.Close()
	_ = w.out.Close()
	return death
}

// kill ends the process and all waits for its pipes at once.
func (w *Worker) kill() {
	_ = w.cmd.Process.Kill() // safe at any time: Go refers to the process, not to its number
	now := time.Now()
	_ = w.in.SetDeadline(now)
	_ = w.out.SetDeadline(now)
}

// await waits for the process for at most a time, and reports whether it has ended.
func (w *Worker) await(most time.Duration) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-w.done:
		return true
	case <-timer.C:
		return false
	}
}

// Close kills the worker, even during a request: it has nothing to save. An error means that the worker hangs in the
// kernel and ends later.
func (w *Worker) Close() error {
	w.kill()
	if !w.dead {
		w.await(closeLimit)
		_ = w.bury(&Death{}, true)
	}
	select {
	case <-w.done:
		return nil
	default:
		return fmt.Errorf("worker %d was killed and has not ended after %v: it waits for a read; see to the datastore",
			w.cmd.Process.Pid, closeLimit)
	}
}

// Cause is the cause of a worker's death.
type Cause string

// Causes.
const (
	Time    Cause = "time"    // no answer within Limits.Wall
	CPU     Cause = "cpu"     // more CPU time than Limits.CPU
	Memory  Cause = "memory"  // more memory than Limits.Data
	Threads Cause = "threads" // the machine has no more threads for it
	Crash   Cause = "crash"   // a panic, an exit, a signal, or an invalid answer
	Killed  Cause = "killed"  // killed by the kernel for lack of memory, or by an administrator
)

// Death is the error of a call whose worker died. The worker cannot be used again.
type Death struct { //nolint:errname // an event, not a fault of the caller
	Cause Cause
	// Text is one line of bounded length: the limit, or the first line of a panic. It may quote the request's file.
	Text string
	// Idle is set if the worker ended before it could start the request. Another worker may be able to answer it.
	Idle bool
}

func (d *Death) Error() string { return "worker died: " + d.Text }

// exitCPU is the exit status of a worker that has used up its CPU time. Go itself exits with 2.
const exitCPU = 117

// Limits of the stored standard error of a worker, and of one line of it, in bytes.
const (
	mostSaid = 4 << 10
	mostLine = 300
)

// causeOfDeath finds the cause in the exit status and the standard error of a worker.
func causeOfDeath(exit error, said string, limits Limits) *Death {
	var status *exec.ExitError
	switch ended := errors.As(exit, &status); {
	case ended && status.ExitCode() == exitCPU:
		return &Death{Cause: CPU, Text: fmt.Sprintf("computed longer than %v for one request", limits.CPU)}
	case ended && killed(status.ProcessState):
		return &Death{Cause: Killed, Text: "killed from outside (signal 9), maybe by the kernel for want of memory"}
	}
	full := status != nil && peak(status.ProcessState) > limits.Data/2 // the heap grows in large steps
	lines := strings.Split(said, "\n")
	for _, l := range lines {
		switch {
		case strings.HasPrefix(l, "runtime: failed to create new OS thread") && strings.Contains(l, "errno=11)"):
			// EAGAIN of clone(2). EAGAIN of pthread_create(3) can also result from RLIMIT_DATA: a lack of memory.
			return &Death{Cause: Threads, Text: line(l)}
		case outOfMemory(l) || full && strings.HasPrefix(l, runtimeFault):
			return &Death{
				Cause: Memory, Text: fmt.Sprintf("wanted more than %d MiB of memory: %s", limits.Data>>20, line(l)),
			}
		}
	}
	return &Death{Cause: Crash, Text: lastWords(exit, lines)}
}

// runtimeFault is the last message of Go's runtime on a fault of its own. The garbage collector causes one if the
// kernel refuses memory.
const runtimeFault = "fatal error: unexpected signal during runtime execution"

// outOfMemory reports whether Go's runtime (malloc.go, mem_linux.go, os_linux.go) or its C side prints the line before
// it ends for lack of memory.
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

// lastWords returns the line that names the fault, else the exit status of the process and the first line.
func lastWords(exit error, lines []string) string {
	fault := func(l string) bool { return strings.HasPrefix(l, "panic: ") || strings.HasPrefix(l, "fatal error: ") }
	if n := slices.IndexFunc(lines, fault); n >= 0 {
		return line(lines[n])
	}
	first := ""
	for _, l := range lines {
		first = cmp.Or(first, line(l))
	}
	switch {
	case exit == nil:
		return cmp.Or(first, "ended without an answer")
	case first == "":
		return exit.Error()
	}
	return exit.Error() + ": " + first
}

// line returns the first line of a text, with bounded length and without control characters.
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

// words stores the beginning of a worker's standard error and drops the rest.
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
