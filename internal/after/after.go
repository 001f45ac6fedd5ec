// Package after runs a command of the user behind a finished copy or row, for a process that confines itself before it
// reads an image and can start no program then.
package after

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// maxAnswer bounds what is read of a clerk, in bytes.
const maxAnswer = 64 << 10

// endLimit bounds the time in which a terminated command has to end.
const endLimit = 5 * time.Second

// Words splits a command at its blanks. There is no shell, so what only a shell understands is refused.
func Words(command string) ([]string, error) {
	words := strings.Fields(command)
	switch {
	case len(words) == 0:
		return nil, ondisk.In(ondisk.ErrUsage, "--after %q names no program", command)
	case strings.ContainsAny(command, "'\"`$|&;<>*?"):
		return nil, ondisk.In(ondisk.ErrUsage, "--after %q: no shell reads it, so it may have none of '\"`$|&;<>*?; "+
			"write a script, and name that", command)
	}
	if _, err := exec.LookPath(words[0]); err != nil {
		return nil, ondisk.In(ondisk.ErrUsage, "--after %s: %w", words[0], sys.Cause(err))
	}
	return words, nil
}

// question is what a clerk is asked.
type question struct {
	Words  []string
	Report []byte // for the command
}

// answer is how a command ended.
type answer struct{ Error string }

// Clerk is a process that runs a command, each time it is asked to.
type Clerk struct {
	*sys.Clerk
	words []string
}

// Open starts a clerk: this program, with args. What the command prints goes to the standard error of this process.
func Open(words []string, args ...string) (*Clerk, error) {
	c, err := sys.StartClerk(os.Stderr, args...)
	return &Clerk{c, words}, err
}

// Run runs the command, with a report as JSON on its standard input. The error of an interrupted command does not wrap
// that of the context, since the copy is complete.
func (c *Clerk) Run(ctx context.Context, report []byte) error {
	stop := context.AfterFunc(ctx, func() { _ = c.In.Close() })
	defer stop()
	var a answer
	err := json.NewEncoder(c.In).Encode(question{c.words, report})
	if err == nil {
		err = json.NewDecoder(io.LimitReader(c.Out, maxAnswer)).Decode(&a)
	}
	switch {
	case ctx.Err() != nil:
		return errors.New("the command was interrupted")
	case err != nil:
		return fmt.Errorf("what runs the command ended: %w", err)
	case a.Error != "":
		return errors.New(a.Error)
	}
	return nil
}

// Serve is the clerk: it waits for a report, runs the command, answers how that ended, and waits for the next. The end
// of the input ends the command, too.
func Serve(in io.Reader, out io.Writer) error {
	// Only the end of the input ends this process. Signals are caught, since the command would inherit ignored ones.
	signal.Notify(make(chan os.Signal, 1), append(sys.EndSignals(), sys.BrokenPipe)...)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	questions := make(chan question)
	go func() {
		defer cancel()
		for d := json.NewDecoder(in); ; {
			var q question
			if err := d.Decode(&q); err != nil || len(q.Words) == 0 {
				return // nothing is finished any more
			}
			select {
			case questions <- q:
			case <-ctx.Done():
			}
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case q := <-questions:
			var a answer
			if err := run(ctx, q); err != nil {
				a.Error = err.Error()
			}
			if err := json.NewEncoder(out).Encode(a); err != nil {
				return err
			}
		}
	}
}

// run runs a command to its end. Its input may stay unread.
func run(ctx context.Context, q question) error {
	cmd := exec.CommandContext(ctx, q.Words[0], q.Words[1:]...)
	sys.Apart(cmd)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(q.Report), os.Stderr, os.Stderr
	cmd.Cancel, cmd.WaitDelay = func() error { return sys.TerminateGroup(cmd) }, endLimit
	return cmd.Run()
}
