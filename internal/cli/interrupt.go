package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/trueup/trueup/internal/sys"
)

// InterruptError is the end of a run by a signal.
type InterruptError struct {
	signal os.Signal
	text   string
}

func (i InterruptError) Error() string { return i.text }

// Exit is the exit code of shells for a program that the signal has ended.
func (i InterruptError) Exit() int { return sys.ExitCode(i.signal) }

// Saying returns the interrupt with another text.
func (i InterruptError) Saying(text string) InterruptError {
	i.text = text
	return i
}

// InterruptOf returns the interrupt that cancelled a context.
func InterruptOf(ctx context.Context) InterruptError {
	if i, ok := errors.AsType[InterruptError](context.Cause(ctx)); ok {
		return i
	}
	return InterruptError{signal: sys.Interrupt, text: interruptedText("")}
}

// interruptedText returns what an interrupt means for the result of a command.
func interruptedText(command string) string {
	switch command {
	case "align", "convert", "replace", "view":
		return "interrupted; no copy was made, and the source is unchanged"
	case "move":
		return "interrupted; nothing was moved, and the disk is as it was"
	case "bench":
		return "interrupted; there is no result, and no scratch file is left"
	}
	return "interrupted; there is no result"
}

// endSignals are the signals that end a run, but for those that the caller has it ignore: nohup does so.
func endSignals() []os.Signal {
	return slices.DeleteFunc(sys.EndSignals(), signal.Ignored)
}

// Receive returns a context that the first signal cancels. Signals are received until the program ends: one that comes
// when DEST has its name must not turn a success into a death.
func (c *Base) Receive(command string) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	got := make(chan os.Signal, 1)
	signals := endSignals()
	signal.Notify(got, signals...)
	go func() {
		i := InterruptError{signal: <-got, text: interruptedText(command)}
		signal.Reset(signals...) // a second signal ends the program at once, which is safe at any moment
		if !c.Ending.Interrupted(os.Stderr) {
			code := Finish(i, &Base{Asked: c.Asked}, command, os.Stdout, os.Stderr)
			_ = c.Log.end(i, code, nil) // the run is over, and so is its report
			os.Exit(code)
		}
		cancel(i)
	}()
	return ctx
}

// ending decides what ends a run that a signal interrupts: the signal itself, as long as nothing was begun.
type ending struct {
	mu   sync.Mutex
	held bool
	does string    // what the run does when it is interrupted; empty: nothing worth a message
	bar  io.Writer // to a terminal that shows a bar
}

// Hold makes the run end itself from now on: it looks at its context.
func (e *ending) Hold(does string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.held, e.does = true, does
}

// Above has messages go above a bar; nil: there is none any more.
func (e *ending) Above(bar io.Writer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.bar = bar
}

// Interrupted reports whether the run ends itself, and prints what it does. Otherwise nothing else is begun or printed:
// the lock is kept.
func (e *ending) Interrupted(stderr io.Writer) bool {
	e.mu.Lock()
	if !e.held {
		return false
	}
	defer e.mu.Unlock()
	if e.does == "" {
		return true
	}
	e.print(stderr, "interrupted: "+e.does+"; once more to end at once")
	return true
}

// Say prints a message, above the bar if there is one.
func (e *ending) Say(stderr io.Writer, text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.print(stderr, text)
}

func (e *ending) print(stderr io.Writer, text string) {
	line := "trueup: " + text + "\n"
	if e.bar != nil {
		if _, err := io.WriteString(e.bar, "\r"+line); err == nil { // a ^C has shifted what follows
			return // otherwise the bar is gone
		}
	}
	_, _ = io.WriteString(stderr, line) // there is no other place to say so
}

// Interruptible reads from r until the run is interrupted. A read that waits for another program cannot be ended, so it
// is left behind.
func Interruptible(ctx context.Context, r io.Reader) (io.Reader, func() bool) {
	out, in := io.Pipe()
	go func() {
		_, err := io.Copy(in, r)
		in.CloseWithError(err) // io.EOF when it is nil
	}()
	return out, context.AfterFunc(ctx, func() { in.CloseWithError(ctx.Err()) })
}

// AbortOnCrash makes SIGABRT the end of a fatal error of Go's runtime, of a panic in a goroutine, and of SIGQUIT. Their
// usual exit status is 2, which is a verdict here. A core file would hold parts of the image, so none is left.
func AbortOnCrash() {
	debug.SetTraceback("crash")
	sys.NoCore()
}
