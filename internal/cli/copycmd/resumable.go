package copycmd

import (
	"context"
	"io"

	"github.com/trueup/trueup/internal/cli/command"
	"github.com/trueup/trueup/internal/cli/flags"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/unfinished"
)

// keeping is what an interrupted copy does that can go on.
const keeping = "keeping the unfinished copy"

// resumableHelp explains --resumable.
const resumableHelp = `With --resumable, a run that is interrupted, killed or ends with an error leaves what it has ` +
	`written, and a journal DEST.trueup. trueup resume DEST goes on, and trueup undo DEST removes both.`

// checkResumable refuses copies that cannot go on.
func (f *alignFlags) checkResumable(src, dest string) error {
	var not string
	switch {
	case !f.resumable:
		return nil
	case f.view:
		not = "--view writes little; leave out one of them"
	case f.dev.device:
		not = "a copy onto a device cannot go on; leave out one of them"
	case f.sums != "":
		not = "--checksums is written at the end of this run only; use sha256sum when DEST is there"
	case src == "-":
		not = "what came through a pipe is gone; store it in a file first"
	case realign.IsPackage(dest):
		not = "DEST is a package, and only the copy of one disk can go on; leave it out"
	default:
		return nil
	}
	return command.Usage("--resumable: %s", not)
}

// orders records in the job what a copy that can go on was asked for.
func (f *alignFlags) orders(j *realign.Job, src string) (err error) {
	if !f.resumable {
		return nil
	}
	j.Going = f.going
	j.Begin = func() { f.Ending.Hold(keeping) }
	j.Order, err = realign.NewOrder(f.Version, f.command, src, f.With, f.Reading, f.Goal, f.to, f.force)
	return err
}

// copyAgain writes what a copy that was ended lacks.
func (f *openFlags) copyAgain(
	errOut io.Writer, w *unfinished.Held,
) func(context.Context, *realign.Order) (realign.Written, error) {
	return func(ctx context.Context, o *realign.Order) (realign.Written, error) {
		c := alignFlags{
			copyFlags: copyFlags{
				Base: f.Base, Work: flags.Work{Shown: f.Shown, Jobs: defaultJobs}, to: o.Target, force: o.Force,
				verify: full, command: o.Command, resumable: true, going: w,
			},
			caller: f.caller,
			Move:   flags.Move{Reading: o.Reading, Goal: o.Goal, With: o.With},
		}
		_, written, err := c.copyDisk(ctx, errOut, o.Source, w.Work.Path)
		return written, err
	}
}
