package cli

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/unfinished"
	"github.com/trueup/trueup/internal/units"
)

// keeping is what an interrupted copy does that can go on.
const keeping = "keeping the unfinished copy"

// resumableHelp explains --resumable.
const resumableHelp = `With --resumable, a run that is interrupted, killed or ends with an error leaves what it has written, ` +
	`and a journal DEST.trueup. trueup resume DEST goes on, and trueup undo DEST removes both.`

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
	case f.second.judge != "":
		not = "--second-opinion judges at the end of this run only; judge DEST later: trueup verify --second-opinion"
	case f.sums != "":
		not = "--checksums is written at the end of this run only; use sha256sum when DEST is there"
	case src == "-":
		not = "what came through a pipe is gone; store it in a file first"
	case realign.IsPackage(dest):
		not = "DEST is a package, and only the copy of one disk can go on; leave it out"
	default:
		return nil
	}
	return ondisk.In(errUsage, "--resumable: %s", not)
}

// orders records in the job what a copy that can go on was asked for.
func (f *alignFlags) orders(j *realign.Job, src string) (err error) {
	if !f.resumable {
		return nil
	}
	j.Going = f.going
	j.Begin = func() { f.ending.hold(keeping) }
	j.Order, err = realign.NewOrder(f.version, f.command, src, f.with, f.Reading, f.Goal, f.to, f.force)
	return err
}

// readsOfCopy lists the images of a copy that was ended. One that is not understood is refused later.
func readsOfCopy(w *unfinished.Held) ([]string, error) {
	o, err := realign.OrderOf(w)
	if err != nil {
		return nil, nil //nolint:nilerr // it can be undone
	}
	return slices.Concat([]string{o.Source}, o.With, o.Reading.Allow), nil
}

// undoCopy removes what an ended copy has written.
func undoCopy(_ context.Context, _ *openFlags, _ io.Writer, w *unfinished.Held) (d unfinished.Done, err error) {
	complete, err := store.Settle(w, true)
	d.Text = "the unfinished copy is removed"
	if complete {
		d.Text = "the copy was complete, and stays; its journal is removed"
	}
	return d, err
}

// resumeCopy goes on with a copy, and compares every byte at its end.
func resumeCopy(
	ctx context.Context, f *openFlags, errOut io.Writer, w *unfinished.Held,
) (d unfinished.Done, err error) {
	if complete, err := store.Settle(w, false); complete || err != nil {
		return unfinished.Done{Text: "the copy was complete already; its journal is removed"}, err
	}
	o, err := realign.OrderOf(w)
	if err != nil {
		return d, err
	}
	c := alignFlags{
		copyFlags: copyFlags{
			common: f.common, work: work{shown: f.shown, jobs: defaultJobs}, to: o.Target, force: o.Force, verify: full,
			command: o.Command, resumable: true, going: w, rate: f.rate,
		},
		moveFlags: moveFlags{Reading: o.Reading, Goal: o.Goal, with: o.With},
	}
	_, written, err := c.copyDisk(ctx, errOut, o.Source, w.Work.Path)
	if err != nil {
		return d, err
	}
	d.Files, d.Notes, d.Kept, d.Written = written.Files, written.Notes, written.Kept, written.Wrote
	d.Text = fmt.Sprintf("the copy of %s is complete, and every byte was compared; %s of its files stood there already, "+
		"and %s were written", o.Source, units.Format(written.Kept), units.Format(written.Wrote))
	return d, nil
}
