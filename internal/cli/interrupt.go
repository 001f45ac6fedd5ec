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

// interrupt is the end of a run by a signal.
type interrupt struct {
	signal os.Signal
	text   string
}

func (i interrupt) Error() string { return i.text }

// exit is the exit code of shells for a program that the signal has ended.
func (i interrupt) exit() int { return sys.ExitCode(i.signal) }

// saying returns the interrupt with another text.
func (i interrupt) saying(text string) interrupt {
	i.text = text
	return i
}

// interruptOf returns the interrupt that cancelled a context.
func interruptOf(ctx context.Context) interrupt {
	if i, ok := errors.AsType[interrupt](context.Cause(ctx)); ok {
		return i
	}
	return interrupt{signal: sys.Interrupt, text: interruptedText("")}
}

// interruptedText returns what an interrupt means for the result of a command.
func interruptedText(command string) string {
	switch command {
	case "align", "convert":
		return "interrupted; no copy was made, and the source is unchanged"
	case "bench":
		return "interrupted; there is no result, and no scratch file is left"
	}
	return "interrupted; there is no result"
}

// removing is what an interrupted copy does.
const removing = "removing the unfinished copy"

// endSignals are the signals that end a run, but for those that the caller has it ignore: nohup does so.
func endSignals() []os.Signal {
	return slices.DeleteFunc(sys.EndSignals(), signal.Ignored)
}

// receive returns a context that the first signal cancels. Signals are received until the program ends: one that comes
// when DEST has its name must not turn a success into a death.
func (c *common) receive(command string) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	got := make(chan os.Signal, 1)
	signals := endSignals()
	signal.Notify(got, signals...)
	go func() {
		i := interrupt{signal: <-got, text: interruptedText(command)}
		signal.Reset(signals...) // a second signal ends the program at once, which is safe at any moment
		if !c.ending.interrupted(os.Stderr) {
			os.Exit(finish(i, &common{asked: c.asked}, command, os.Stdout, os.Stderr))
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

// hold makes the run end itself from now on: it looks at its context.
func (e *ending) hold(does string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.held, e.does = true, does
}

// shows has messages go above a bar.
func (e *ending) shows(bar io.Writer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.bar = bar
}

// interrupted reports whether the run ends itself, and prints what it does. Otherwise nothing else is begun or printed:
// the lock is kept.
func (e *ending) interrupted(stderr io.Writer) bool {
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

// say prints a message, above the bar if there is one.
func (e *ending) say(stderr io.Writer, text string) {
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

// abortOnCrash makes SIGABRT the end of a fatal error of Go's runtime, of a panic in a goroutine, and of SIGQUIT. Their
// usual exit status is 2, which is a verdict here. A core file would hold parts of the image, so none is left.
func abortOnCrash() {
	debug.SetTraceback("crash")
	sys.NoCore()
}
