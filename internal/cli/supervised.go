package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
)

// supervised is --supervised, which users do not give: a program that runs many copies is asked before DEST gets its
// name.
type supervised struct {
	on  bool
	ask io.Writer
	in  io.Reader
}

// Lines between a supervised run, which prints the first, and its caller, which answers with the second.
const (
	proved  = `{"event":"proved"}`
	publish = "publish\n"
)

func (s *supervised) add(cmd *cobra.Command) {
	const name = "supervised"
	cmd.Flags().BoolVar(&s.on, name, false, "ask the calling program before DEST gets its name")
	if err := cmd.Flags().MarkHidden(name); err != nil {
		panic(err) // the flag does not exist: our own bug
	}
}

// checkSupervised refuses copies that would get their names without a question.
func (f *alignFlags) checkSupervised(src, dest string) error {
	if f.caller.on && realign.IsPackage(dest) {
		return Usage("--supervised is for the copy of one disk, and %s becomes something else", src)
	}
	return nil
}

// judgeCopy has the caller decide whether a copy that is proved gets its name.
func (s *supervised) judgeCopy(j *realign.Job, end func()) {
	if !s.on {
		return
	}
	j.Ask = func(ctx context.Context) error {
		end()
		in, stop := Interruptible(ctx, s.in)
		defer stop()
		_, err := fmt.Fprintln(s.ask, proved)
		var answer string
		if err == nil {
			answer, err = bufio.NewReader(in).ReadString('\n')
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case answer != publish:
			return ondisk.In(ondisk.ErrBusy, "nothing was published: the program that supervises the copy did not "+
				"agree (%v)", err)
		}
		return nil
	}
}
