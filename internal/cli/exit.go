package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/progress"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/self"
	"github.com/trueup/trueup/internal/sys"
)

// InterruptError ends a run after a signal.
type InterruptError struct {
	signal os.Signal
	text   string
}

func (i InterruptError) Error() string { return i.text }

// Exit returns the shell's exit code for a program ended by the signal.
func (i InterruptError) Exit() int { return sys.ExitCode(i.signal) }

// Saying returns the interrupt with another message.
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

// interruptedText returns the effect of an interrupt on the result of a command.
func interruptedText(command string) string {
	switch command {
	case "align", "convert", "replace", "view", "offset":
		return "interrupted; no copy was made, and the source is unchanged"
	case "move":
		return "interrupted; nothing was moved, and the disk is unchanged"
	case "bench":
		return "interrupted; no result, and the scratch file is removed"
	}
	return "interrupted; no result"
}

// Receive returns a context that the first signal cancels. Signals are received until the program ends: a signal after
// DEST has its name must not turn success into failure.
func (c *Base) Receive(command string) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	got := make(chan os.Signal, 1)
	signals := slices.DeleteFunc(sys.EndSignals(), signal.Ignored) // such as under nohup
	signal.Notify(got, signals...)
	go func() {
		i := InterruptError{signal: <-got, text: interruptedText(command)}
		signal.Reset(signals...) // a second signal ends the program at once, which is safe at any time
		if !c.Ending.Interrupted(os.Stderr) {
			code := Finish(i, &Base{Asked: c.Asked}, command, os.Stdout, os.Stderr)
			_ = c.Log.end(i, code, nil) // the run has ended without a report
			os.Exit(code)
		}
		cancel(i)
	}()
	return ctx
}

// ending decides whether an interrupt ends the program at once, or the run ends itself.
type ending struct {
	mu   sync.Mutex
	held bool
	does string // action on interrupt; "" prints no message
}

// Hold makes the run end itself from now on: it watches its context. does is its action on an interrupt, for a message.
func (e *ending) Hold(does string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.held, e.does = true, does
}

// Interrupted reports whether the run ends itself, and prints its action. If it returns false, it keeps the lock, so
// that nothing else begins or prints.
func (e *ending) Interrupted(stderr io.Writer) bool {
	e.mu.Lock()
	if !e.held {
		return false
	}
	defer e.mu.Unlock()
	if e.does == "" {
		return true
	}
	printAbove(stderr, "interrupted: "+e.does+"; interrupt again to end at once")
	return true
}

// say prints a message about the progress of the run, above a progress bar if there is one.
func (c *Base) say(stderr io.Writer, text string) {
	if !c.Quiet {
		printAbove(stderr, report.SafeMessage(text))
	}
}

// printAbove prints a message. On a terminal it replaces the line of a progress bar, which then shows itself again.
func printAbove(stderr io.Writer, text string) {
	line := "trueup: " + text + "\n"
	if progress.Terminal(stderr) {
		line = progress.Above + line
	}
	_, _ = io.WriteString(stderr, line) // nowhere else to report an error
}

// AbortOnCrash makes fatal runtime errors, panics in goroutines and SIGQUIT end with SIGABRT. Their usual exit status 2
// is a verdict here. It disables core files, because they would contain parts of the image.
func AbortOnCrash() {
	debug.SetTraceback("crash")
	sys.NoCore()
}

// textWidth is the maximum width of text, and its width without a terminal, in characters.
const textWidth = 100

// Width returns the width of the terminal, limited to a readable range.
func Width(w io.Writer) int {
	if n := columns(w); n > 0 {
		return min(max(n, 40), textWidth)
	}
	return textWidth
}

// columns returns the width of the terminal, or 0 for other writers.
func columns(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	n, _ := sys.Columns(f)
	return n
}

// Layout returns the text layout for the terminal, or for the file of --out.
func (c *Base) Layout(stdout io.Writer) *report.Text {
	if c.Out != "" {
		return &report.Text{Verbose: c.Verbose, Width: textWidth}
	}
	return &report.Text{
		Verbose: c.Verbose, Width: Width(stdout), Color: c.color(stdout), Columns: columns(stdout),
	}
}

// color reports whether output to w is coloured: by the flags, otherwise on a terminal without NO_COLOR. Spec:
// no-color.org.
func (c *Base) color(w io.Writer) bool {
	if c.NoColor || c.Color != "auto" {
		return !c.NoColor && c.Color == "always"
	}
	return os.Getenv("NO_COLOR") == "" && progress.Terminal(w)
}

// Exit codes besides align.Verdict, which defines 0, 2 and 3.
const (
	ExitError   = 1
	ExitRefused = 4
	exitUsage   = 64
)

// Usage returns the error of an invalid command line.
func Usage(format string, args ...any) error { return ondisk.In(ondisk.ErrUsage, format, args...) }

// VerdictError ends a command with an exit code after it printed its result.
type VerdictError int

func (v VerdictError) Error() string { return fmt.Sprintf("exit code %d", int(v)) }

// reportedError ends a command after it printed its report.
type reportedError struct {
	error
	said bool // the report contains the message
}

func (r reportedError) Unwrap() error { return r.error }

// AfterReport makes err end a command after it printed its report. said means that the report contains the message.
func AfterReport(err error, said bool) error { return reportedError{err, said} }

// Classify returns the JSON code and the exit code of an error.
func Classify(err error) (string, int) {
	if i, ok := errors.AsType[InterruptError](err); ok {
		return "interrupted", i.Exit()
	}
	if e, ok := errors.AsType[*self.Error](err); ok { // from a child trueup process
		return e.Code, e.Exit
	}
	code := realign.Code(err)
	_, refused := errors.AsType[*ondisk.Refusal](err)
	switch {
	case refused || code == "busy":
		return code, ExitRefused
	case code == "usage":
		return code, exitUsage
	case code == "internal" && errors.Is(err, errStdout):
		return "io", ExitError
	}
	return code, ExitError
}

// errStdout marks an unwritten report, which is a failure.
var errStdout = errors.New("write the report")

// Finish prints an error on stderr in one line, ends the log and server connections, and returns the exit code.
func Finish(err error, c *Base, command string, stdout, stderr io.Writer) int {
	defer c.remotes.Close()
	code, failed := printed(err, c, command, stdout, stderr)
	if failed != nil {
		code = ExitError
	}
	if err := c.Log.end(err, code, c.Result); err != nil {
		fmt.Fprintln(stderr, "trueup: "+report.Message(err))
		return max(code, ExitError)
	}
	return code
}

// printed prints an error and returns the exit code. failed is the error of writing its JSON object.
func printed(err error, c *Base, command string, stdout, stderr io.Writer) (code int, failed error) {
	if err == nil {
		return 0, nil
	}
	if v, ok := errors.AsType[VerdictError](err); ok {
		return int(v), nil
	}
	class, exit := Classify(err)
	msg := report.Message(err)
	m, told := errors.AsType[reportedError](err)
	if !m.said || !c.seen {
		fmt.Fprintln(stderr, "trueup: "+msg)
	}
	if !told && (c.JSON() || c.Asked) && !errors.Is(err, errStdout) {
		failed = c.writeJSON(command)(stdout, report.Failure{
			Head: Head(command), Error: report.Error{Code: class, Message: msg}, ExitCode: exit,
		})
	}
	return exit, failed
}

// inLines lists the commands that print one object per line, because more objects follow or the command keeps running.
var inLines = []string{results.Command, "report", "serve"}

// writeJSON returns the function to write a JSON object of a command.
func (c *Base) writeJSON(command string) func(io.Writer, any) error {
	if c.several || c.Stays || slices.Contains(inLines, command) {
		return report.Line
	}
	return report.JSON
}

// ExitWith converts an exit code to the error of a command.
func ExitWith(code int) error {
	if code == 0 {
		return nil
	}
	return VerdictError(code)
}
