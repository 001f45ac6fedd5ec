package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/after"
	"github.com/trueup/trueup/internal/report"
)

// afterFlags is --after, and what runs its command.
type afterFlags struct {
	next  string
	clerk *after.Clerk
}

func (a *afterFlags) addAfter(cmd *cobra.Command) {
	cmd.Flags().Var((*given)(&a.next), "after",
		"run `COMMAND` when DEST is complete, with the JSON of the result as its input")
}

// afterHelp explains --after.
const afterHelp = `--after runs a program when DEST has its name. COMMAND is split at blanks, and no shell reads it. ` +
	`The program gets the result as --json prints it on its standard input, and what it prints goes to standard error. ` +
	`If it fails, DEST stays, and the exit code is 1. It does not run where nothing was written, nor for trueup resume.`

// afterClerk is the argument that makes the program run a command for one that is confined.
const afterClerk = "after-clerk"

// newAfterClerk returns the command of a clerk, which users do not run.
func newAfterClerk() *cobra.Command {
	return &cobra.Command{
		Use:    afterClerk,
		Short:  "Run the command of --after",
		Hidden: true,
		Args:   arguments(),
		RunE:   func(*cobra.Command, []string) error { return after.Serve(os.Stdin, os.Stdout) },
	}
}

// openAfter starts what runs the command, before the process confines itself.
func (a *afterFlags) openAfter() error {
	if a.next == "" {
		return nil
	}
	words, err := after.Words(a.next)
	if err == nil {
		a.clerk, err = after.Open(words, afterClerk)
	}
	return err
}

// closeAfter ends what runs the command.
func (a *afterFlags) closeAfter() {
	if a.clerk != nil {
		_ = a.clerk.Close() // what it had to say, it has said
	}
}

// runAfter runs the command behind a report that was printed.
func (a *afterFlags) runAfter(ctx context.Context, r any, dest string) error {
	if a.clerk == nil {
		return nil
	}
	var b bytes.Buffer
	err := report.JSON(&b, r)
	if err == nil {
		err = a.clerk.Run(ctx, b.Bytes())
	}
	if err != nil {
		return afterReport(fmt.Errorf("--after %s: %w; %s itself is complete", a.next, err, dest), false)
	}
	return nil
}
