package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/unfinished"
)

// inPlace is the flag of a move inside of the disk.
const inPlace = "in-place"

// moveJobs is how many chunks are read at once to compare them.
const moveJobs = 4

// notInPlace are the flags of align that a move in place has no use for: those of a copy, and of its machine.
var notInPlace = []string{
	"to", "force", "view", "verify", "checksums", "second-opinion", "with", "flatten", bootTrial, "replace", "keep",
	"resumable", "device", "libvirt-xml", "vmx", "skip-free",
}

// still is what an interrupt does before a move.
const still = "leaving the disk as it is"

// middle is what an interrupted move does.
const middle = "stopping behind the next stretch; resume goes on, undo takes the move back"

// alignArguments returns what the command line names: one disk where that is moved in its place.
func (f *alignFlags) alignArguments(other cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if !f.inPlace {
			return other(cmd, args)
		}
		for _, name := range notInPlace {
			if cmd.Flags().Changed(name) {
				return ondisk.In(errUsage, "--%s is for a copy, and --%s makes none", name, inPlace)
			}
		}
		if len(args) > 1 {
			return ondisk.In(errUsage, "--%s moves the partitions inside of DISK, and takes no DEST; leave out %s", inPlace,
				args[1])
		}
		return arguments("DISK")(cmd, args)
	}
}

// runInPlace moves the partitions inside of a disk.
func runInPlace(ctx context.Context, out, errOut io.Writer, f *alignFlags, path string) error {
	if err := errors.Join(f.check(), f.Consistent()); err != nil {
		return err
	}
	defer f.closeAfter()
	if err := errors.Join(f.openAfter(), f.confine(errOut, f.reads(path), []string{path})); err != nil {
		return err
	}
	s, err := f.open(path, f.Reading)
	if err != nil {
		return err
	}
	defer s.Close()
	p, err := s.Plan(f.Goal)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := realign.Acceptable(p, f.Goal); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	r := report.NewAlign(head(f.command), s, p, path)
	if len(p.Moves) > 0 {
		j, end := f.job(errOut, path)
		j.Begin = func() { f.ending.hold(still) }
		j.Moves = func() { f.ending.hold(middle) }
		w, err := j.MoveInPlace(ctx, s, p)
		end()
		if err != nil {
			return inMiddle(ctx, err)
		}
		r.Wrote(w, f.verify)
	}
	err = f.emit(out, r, func(t *report.Text) { t.Align(r) })
	if err != nil || len(p.Moves) == 0 {
		return err
	}
	return f.runAfter(ctx, r, path)
}

// inMiddle returns the error of a move that was interrupted: it says how to go on, and the exit code is that of the
// signal.
func inMiddle(ctx context.Context, err error) error {
	switch {
	case !errors.Is(err, context.Canceled):
		return err
	case realign.Middle(err):
		return interrupt{interruptOf(ctx).signal, "interrupted: " + report.Message(err)}
	}
	return interrupt{interruptOf(ctx).signal, "interrupted; nothing was moved, and the disk is as it was"}
}

// goOnInPlace completes a move that was interrupted, or takes it back.
func goOnInPlace(ctx context.Context, f *openFlags, errOut io.Writer, w *unfinished.Held) (unfinished.Done, error) {
	watch, end := f.watched(errOut, f.progress, f.command, false)
	defer end()
	j := &realign.Job{Jobs: moveJobs, Watch: watch, Begin: func() { f.ending.hold(middle) }}
	d, err := j.GoOnInPlace(ctx, w, f.command == undo)
	if err != nil {
		return d, inMiddle(ctx, err)
	}
	return d, nil
}
