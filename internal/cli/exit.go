// Package cli holds the commands: the only place with flags, colours and exit codes.
package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/opinion"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan"
)

// Exit codes that are no verdict. 0, 2 and 3 are those of align.Verdict.
const (
	exitError   = 1
	exitRefused = 4
	exitUsage   = 64
)

// verdict ends a command that has printed its result with an exit code.
type verdict int

func (v verdict) Error() string { return fmt.Sprintf("exit code %d", int(v)) }

// reportedError ends a command that has printed its report.
type reportedError struct {
	error
	said bool // the report has the same words
}

func (r reportedError) Unwrap() error { return r.error }

// afterReport makes err end a command that has printed its report. said: the report has the same words.
func afterReport(err error, said bool) error { return reportedError{err, said} }

// classified is an error that another trueup, which this one has started, has classified.
type classified interface {
	error
	Reported() (code string, exit int)
}

// classify gives the JSON code and the exit code of an error.
func classify(err error) (string, int) {
	if i, ok := errors.AsType[interrupt](err); ok {
		return "interrupted", i.exit()
	}
	if c, ok := errors.AsType[classified](err); ok {
		return c.Reported()
	}
	if _, differs := errors.AsType[*opinion.DifferenceError](err); differs {
		return "verify", report.ExitDiffers
	}
	code := realign.Code(err)
	_, refused := errors.AsType[*ondisk.Refusal](err)
	switch {
	case refused || code == "busy":
		return code, exitRefused
	case code == "usage":
		return code, exitUsage
	case code == "internal" && errors.Is(err, errStdout):
		return "io", exitError
	}
	return code, exitError
}

// errStdout marks a report that could not be written: that is no success.
var errStdout = errors.New("write the report")

// failed returns the result of a command that has no other.
func failed(command string, err error) report.Failure {
	code, exit := classify(err)
	return report.Failure{
		Head: head(command), Error: report.Error{Code: code, Message: report.Message(err)},
		ExitCode: exit,
	}
}

// finish prints an error on stderr, in one line, and returns the exit code.
func finish(err error, c *common, command string, stdout, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	if v, ok := errors.AsType[verdict](err); ok {
		return int(v)
	}
	_, exit := classify(err)
	msg := report.Message(err)
	m, told := errors.AsType[reportedError](err)
	if !m.said || !c.seen {
		fmt.Fprintln(stderr, "trueup: "+msg)
	}
	if told {
		return exit
	}
	if (c.json() || c.asked) && !errors.Is(err, errStdout) {
		write := report.JSON
		if command == scan.Command {
			write = report.Line // as all that scan prints
		}
		if jsonErr := write(stdout, failed(command, err)); jsonErr != nil {
			return exitError
		}
	}
	return exit
}
