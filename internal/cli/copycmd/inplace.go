package copycmd

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/cli/command"
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
	"to", "force", "view", "verify", "checksums", "flatten", "replace", "keep",
	"overwrite-content", "discard", "skip-free",
}

// noOthers is why a move in place knows no other disks of the machine.
const noOthers = "--with plans from the original state of all disks, and a move in place leaves none: " +
	"align the disks of this machine as copies"

// still is what an interrupt does before a move.
const still = "leaving the disk as it is"

// middle is what an interrupted move does.
const middle = "stopping behind the next stretch; resume goes on, undo takes the move back"

// alignArguments returns what the command line names: one disk where that is moved in its place.
func (f *alignFlags) alignArguments(other cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case !f.inPlace && f.journal != "":
			return command.Usage("--journal is for a move inside of the disk; add --%s", inPlace)
		case !f.inPlace:
			return other(cmd, args)
		case len(f.With) > 0:
			return command.Usage("%s", noOthers)
		case f.dev.device && f.journal == "":
			return command.Usage("--device needs --journal FILE, on another storage: nothing can lie beside " +
				"a device")
		}
		for _, name := range notInPlace {
			if cmd.Flags().Changed(name) {
				return command.Usage("--%s is for a copy, and --%s makes none", name, inPlace)
			}
		}
		if len(args) > 1 {
			return command.Usage("--%s moves the partitions inside of DISK, and takes no DEST; leave out %s", inPlace,
				args[1])
		}
		return command.Arguments("DISK")(cmd, args)
	}
}

// planInPlace plans the move inside of a disk.
func (f *alignFlags) planInPlace(s *realign.Source) (*realign.Plan, error) {
	if name, ok := s.Image.Uses(f.journal); ok {
		return nil, command.Usage("--journal %s is %s, a file of the disk; name another file", f.journal, name)
	}
	p, err := s.Plan(f.Goal)
	if err == nil {
		err = realign.Acceptable(p, f.Goal)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path(), err)
	}
	return p, nil
}

// runInPlace moves the partitions inside of a disk.
func runInPlace(ctx context.Context, out, errOut io.Writer, f *alignFlags, path string) error {
	err := errors.Join(f.checkFlags(), f.Consistent(), realign.Local(path, "--"+inPlace))
	if err != nil {
		return err
	}
	if f.journal, err = realign.JournalFile(f.journal, path); err != nil {
		return err
	}
	if f.dev.device {
		if f.dev.claimed, err = realign.OpenDisk(path); err != nil {
			return err
		}
		defer f.dev.claimed.Close()
		f.Claimed = true
	}
	looped := realign.Looped()
	if err := f.Confine(ctx, errOut, f.Reads(path), []string{path, f.journal}); err != nil {
		return err
	}
	s, err := f.OpenFile(path, "--"+inPlace, f.Reading)
	if err != nil {
		return err
	}
	defer s.Close()
	p, err := f.planInPlace(s)
	if err != nil {
		return err
	}
	r := report.NewAlign(command.Head(f.command), s, p, path)
	if len(p.Moves) > 0 || p.Mends {
		j, end := f.job(errOut, path)
		j.Begin, j.Moves = func() { f.Ending.Hold(still) }, func() { f.Ending.Hold(middle) }
		j.Journal, j.Looped = f.journal, looped
		w, err := j.MoveInPlace(ctx, s, p)
		end()
		if err != nil {
			return inMiddle(ctx, err)
		}
		r.Wrote(w, f.verify)
	}
	return f.Emit(out, r, func(t *report.Text) { t.Align(r) })
}

// inMiddle returns the error of a move that was interrupted: it says how to go on, and the exit code is that of the
// signal.
func inMiddle(ctx context.Context, err error) error {
	switch {
	case !errors.Is(err, context.Canceled):
		return err
	case realign.Middle(err):
		return command.InterruptOf(ctx).Saying("interrupted: " + report.Message(err))
	}
	return command.InterruptOf(ctx).Saying("interrupted; nothing was moved, and the disk is as it was")
}

// claimMoved claims the device whose disk was moved, before the process confines itself.
func (f *openFlags) claimMoved(path string, w *unfinished.Held) (err error) {
	switch {
	case f.journal != "" && w.Work.Kind != "" && w.Work.Kind != unfinished.InPlace:
		return command.Usage("--journal %s is not the journal of a move in place", f.journal)
	case w.Work.Kind == unfinished.InPlace && realign.IsDevice(path):
		f.claimed, err = realign.OpenDisk(path)
	}
	return err
}

// nothingOpen returns the error of a path without a journal: the disk can name one, or be the kept original of an
// exchanged disk.
func (f *openFlags) nothingOpen(ctx context.Context, errOut io.Writer, path string) error {
	if f.journal != "" {
		return command.Usage("there is no journal %s", f.journal)
	}
	if err := f.Confine(ctx, errOut, []string{path}, nil); err != nil {
		return err
	}
	if err := realign.Claimed(path); err != nil {
		return err
	}
	s, err := command.OpenSource(path, realign.Reading{})
	if err == nil {
		s.Close()
	}
	if realign.Code(err) == "unfinished" {
		return err
	}
	text := fmt.Sprintf("%s: nothing is open here: there is no journal %s", path, unfinished.JournalOf(path))
	if left := realign.LeftBehind(path); left != "" {
		text += "; " + left
	}
	return command.Usage("%s", text)
}
