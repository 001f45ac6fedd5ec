package command

import (
	"bytes"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/after"
	"github.com/trueup/trueup/internal/report"
)

// After is --after, and what runs its command.
type After struct {
	Next  string
	Clerk *after.Clerk
}

// AddAfter adds --after.
func (a *After) AddAfter(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.Next, "after", "",
		"run `COMMAND` when DEST is complete, with the JSON of the result as its input")
}

// AfterHelp explains --after.
const AfterHelp = `--after runs a program when DEST has its name. COMMAND is split at blanks, and no shell reads it. ` +
	`The program gets the result as --json prints it on its standard input, and what it prints goes to standard ` +
	`error. If it fails, DEST stays, and the exit code is 1. It does not run where nothing was written.`

// AfterClerk is the argument that makes the program run a command for one that is confined.
const AfterClerk = "after-clerk"

// NewAfterClerk returns the command of a clerk, which users do not run.
func NewAfterClerk() *cobra.Command {
	return Hidden(AfterClerk, "Run the command of --after", after.Serve)
}

// OpenAfter starts what runs the command, before the process confines itself.
func (a *After) OpenAfter() error {
	if a.Next == "" {
		return nil
	}
	words, err := after.Words(a.Next)
	if err == nil {
		a.Clerk, err = after.Open(words, AfterClerk)
	}
	return err
}

// CloseAfter ends what runs the command.
func (a *After) CloseAfter() {
	if a.Clerk != nil {
		_ = a.Clerk.Close() // what it had to say, it has said
	}
}

// RunAfter runs the command behind a report that was printed.
func (a *After) RunAfter(ctx context.Context, r any, dest string) error {
	if a.Clerk == nil {
		return nil
	}
	var b bytes.Buffer
	err := report.JSON(&b, r)
	if err == nil {
		err = a.Clerk.Run(ctx, b.Bytes())
	}
	if err != nil {
		return AfterReport(fmt.Errorf("--after %s: %w; %s itself is complete", a.Next, err, dest), false)
	}
	return nil
}
