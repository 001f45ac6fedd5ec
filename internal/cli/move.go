package cli

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
)

// moveFlags holds the flags of move.
type moveFlags struct {
	*Base
	Move
	jobs    int
	journal string // "" means beside the disk
}

// moveJobs is the number of chunks read at once for comparison.
const moveJobs = 4

// leavingDisk is the message of an interrupt before a move or an exchange, see ending.Hold.
const leavingDisk = "leaving the disk unchanged"

// stoppingMove is the message of an interrupted move, see ending.Hold.
const stoppingMove = "stopping after the current step; trueup resume continues, trueup undo reverts"

// newMove returns the command move.
func newMove(c *Base) *cobra.Command {
	f := moveFlags{Base: c, jobs: defaultJobs}
	cmd := &cobra.Command{
		Use:   "move DISK",
		Short: "Move partitions inside a disk, with a journal",
		Args:  Arguments("DISK"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0])
		},
	}
	addFlags(cmd, "require-sandbox", &f.RequireSandbox)
	f.AddPlaces(cmd)
	f.addWork(cmd, &f.jobs)
	addFlags(cmd, "journal", &f.journal)
	return cmd
}

// claim opens a device exclusively for this run, before the process confines itself. It returns nil for a file.
func (f *moveFlags) claim(path string) (*store.Device, error) {
	switch {
	case !realign.IsDevice(path):
		return nil, nil //nolint:nilnil // it is a file
	case f.journal == "":
		return nil, Usage("%s is a block device and needs --journal FILE, on another storage", path)
	}
	f.Claimed = true
	return store.OpenDisk(path)
}

// run moves the partitions inside a disk.
func (f *moveFlags) run(ctx context.Context, out, errOut io.Writer, path string) (err error) {
	if err := f.Check(); err != nil {
		return err
	}
	if f.journal, err = realign.JournalFile(f.journal, path); err != nil {
		return err
	}
	device, err := f.claim(path)
	if err != nil {
		return err
	}
	defer device.Close()
	looped := realign.Looped()
	f.Changed = true
	if err := f.Confine(ctx, errOut, f.Reads(path), []string{path, f.journal}); err != nil {
		return err
	}
	s, err := f.Open(path, f.Reading)
	if err != nil {
		return err
	}
	defer s.Close()
	if name, ok := s.Image.Uses(f.journal); ok {
		return Usage("--journal %s is %s, a file of the disk itself; name another file", f.journal, name)
	}
	p, err := f.accepted(f.Base, s, "", making{})
	if err != nil {
		return err
	}
	r := report.NewAlign(Head("move"), s, p, path)
	if len(p.Moves) > 0 || p.Mends {
		f.Ending.Hold(leavingDisk)
		watched, end := f.Watched(errOut, "move", true)
		j := &realign.Job{Full: true, Jobs: f.jobs, Progress: watched}
		w, err := j.MoveInPlace(ctx, s, p, realign.Move{
			Device: device, Journal: f.journal, Looped: looped, Moves: func() { f.Ending.Hold(stoppingMove) },
		})
		end()
		if err != nil {
			return moveError(ctx, err)
		}
		r.Wrote(w, full)
	}
	return f.Emit(out, r, func(t *report.Text) { t.Align(r) })
}

// moveError returns the error of an interrupted move. Its message names the commands to continue or undo the move, and
// its exit code is the signal's.
func moveError(ctx context.Context, err error) error {
	switch {
	case !errors.Is(err, context.Canceled):
		return err
	case realign.Middle(err):
		return InterruptOf(ctx).Saying("interrupted: " + report.Message(err))
	}
	return InterruptOf(ctx).Saying("interrupted; nothing was moved, and the disk is unchanged")
}
