package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/self"
)

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

// Failed returns the result of a command without another result.
func Failed(command string, err error) report.Failure {
	code, exit := Classify(err)
	return report.Failure{
		Head: Head(command), Error: report.Error{Code: code, Message: report.Message(err)}, ExitCode: exit,
	}
}

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
	_, exit := Classify(err)
	msg := report.Message(err)
	m, told := errors.AsType[reportedError](err)
	if !m.said || !c.seen {
		fmt.Fprintln(stderr, "trueup: "+msg)
	}
	if !told && (c.JSON() || c.Asked) && !errors.Is(err, errStdout) {
		failed = c.writeJSON(command)(stdout, Failed(command, err))
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
