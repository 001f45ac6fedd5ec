package cli

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/trueup/trueup/internal/report"
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

// AbortOnCrash makes SIGABRT the end of a fatal error of Go's runtime, of a panic in a goroutine, and of SIGQUIT. Their
// usual exit status is 2, which is a verdict here. A core file would hold parts of the image, so none is left.
func AbortOnCrash() {
	debug.SetTraceback("crash")
	sys.NoCore()
}

// textWidth is the width of text without a terminal, and its maximum, in characters.
const textWidth = 100

// Width returns that of the terminal, within bounds that can be read.
func Width(w io.Writer) int {
	if n := columns(w); n > 0 {
		return min(max(n, 40), textWidth)
	}
	return textWidth
}

// columns returns the width of the terminal, 0 if w is not one.
func columns(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	n, _ := sys.Columns(f)
	return n
}

// blockCharacters reports whether w is a terminal that shows them: one whose locale is UTF-8. Spec: POSIX, "Environment
// Variables", 8.2: LC_ALL before LC_CTYPE before LANG.
func blockCharacters(w io.Writer) bool {
	if !Terminal(w) {
		return false
	}
	locale := strings.ToLower(cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG")))
	return strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
}

// Layout returns how text is printed: for the terminal, or for the file of --out.
func (c *Base) Layout(stdout io.Writer) *report.Text {
	if c.Out != "" {
		return &report.Text{Verbose: c.Verbose, Width: textWidth}
	}
	return &report.Text{
		Verbose: c.Verbose, Width: Width(stdout), Color: c.color(stdout), Columns: columns(stdout),
		Unicode: blockCharacters(stdout),
	}
}

// color reports whether w gets colours: as the user says, or where it is a terminal whose user wants them. Spec:
// no-color.org.
func (c *Base) color(w io.Writer) bool {
	if c.NoColor || c.Color != "auto" {
		return !c.NoColor && c.Color == "always"
	}
	return os.Getenv("NO_COLOR") == "" && Terminal(w)
}

// Terminal reports whether w is one that can do more than print lines.
func Terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	_, terminal := sys.Columns(f)
	return terminal
}
