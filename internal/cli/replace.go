package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
)

// replaceFlags holds the flags of replace.
type replaceFlags struct {
	copyFlags
	keep   string
	by     string        // finished copy; "" means writing one
	looped realign.Loops // backing files of loop devices
}

// Arguments of --keep: the original stays, or is removed at once.
const (
	keepOriginal = "original"
	keepNone     = "none"
)

// newReplace returns the command replace.
func newReplace(c *Base) *cobra.Command {
	f := &replaceFlags{copyFlags: copyFlags{Base: c, command: "replace", skipAligned: true}}
	cmd := newCommand("replace DISK...", "Replace a disk by its aligned copy", f.run)
	f.add(cmd)
	f.AddPlaces(cmd)
	f.keep = keepOriginal
	addFlags(cmd, "skip-free", &f.SkipFree, "with", &f.With, "keep", &f.keep, "by", &f.by)
	return cmd
}

// run replaces disks.
func (f *replaceFlags) run(ctx context.Context, out, errOut io.Writer, disks []string) error {
	err := f.checkFlags()
	if f.by != "" && (realign.IsPackage(disks[0]) || realign.IsPackage(f.by)) {
		err = Usage("--by cannot be used for packages; run trueup replace without it")
	}
	if err == nil {
		err = f.Apart("DISK", disks)
	}
	for _, disk := range disks { // before the first replacement: the second argument may be a mistaken DEST
		if _, bad := os.Stat(disk); errors.Is(bad, fs.ErrNotExist) && len(disks) > 1 {
			err = errors.Join(err, Usage("%s: no such file; name existing disks", disk))
		}
	}
	reads := f.Reads(disks...)
	if f.by != "" {
		reads = append(reads, f.by)
	}
	for _, other := range reads[len(disks):] {
		err = errors.Join(err, realign.Local(other, "trueup replace"))
	}
	if err != nil {
		return err
	}
	f.looped, f.Changed = realign.Looped(), true
	if err := f.Confine(ctx, errOut, reads, append(disks, f.sums)); err != nil {
		return err
	}
	if len(disks) == 1 {
		return f.one(ctx, out, errOut, disks[0])
	}
	return f.Each(ctx, f.command, disks, out, errOut, func(out io.Writer, disk string) error {
		return f.one(ctx, out, errOut, disk)
	})
}

// one replaces a disk or a package.
func (f *replaceFlags) one(ctx context.Context, out, errOut io.Writer, disk string) error {
	if goes, err := f.resumeExchange(ctx, out, errOut, disk); goes {
		return err
	}
	m := f.making(ctx, errOut, disk)
	if realign.IsPackage(disk) {
		return f.copyPackage(ctx, out, errOut, disk, disk, m)
	}
	return f.copyDisk(ctx, out, errOut, disk, disk, m)
}

// making returns the options of the copy that replaces a disk.
func (f *replaceFlags) making(ctx context.Context, errOut io.Writer, disk string) *making {
	m := &making{
		to: realign.Replace{Looped: f.looped},
		after: func(w realign.Written) (*report.Replaced, error) {
			return report.NewReplaced(w.Replaced, f.keep != keepNone), f.finish(ctx, errOut, disk)
		},
	}
	if f.by != "" {
		m.to, m.hold = realign.By{Copy: f.by, Looped: f.looped, Writers: f.writers}, leavingDisk
	}
	return m
}

// resumeExchange completes an exchange left by an earlier run, or refuses it with --by. It reports whether there was
// one.
func (f *replaceFlags) resumeExchange(ctx context.Context, out, errOut io.Writer, disk string) (bool, error) {
	w, err := journal.At(disk)
	if err != nil || w == nil || w.Kind != journal.Exchange {
		return false, nil //nolint:nilerr // opening the disk returns the same error
	}
	if f.by != "" { // its copy may differ from the copy of that exchange
		i := w.Issue()
		return true, &ondisk.Refusal{Code: "unfinished", Reason: disk + ": " + i.Text, Remedy: i.Remedy}
	}
	on := f.goingOn(realign.Resume)
	switch {
	case on.KeepNone && (w.Phase == journal.Finishing || w.Phase == journal.Kept):
		on.Command = realign.Finish
	case w.Resume != "":
		return false, nil
	}
	return true, on.goOnAt(ctx, out, errOut, on.hold(disk))
}

// goingOn returns the flags of a command that continues the exchange of a disk.
func (f *replaceFlags) goingOn(command string) *openFlags {
	return &openFlags{Base: f.Base, GoOn: realign.GoOn{
		Command: command, KeepNone: f.keep == keepNone, Allow: f.Allow, Looped: f.looped,
	}}
}

// finish removes the original of a replaced disk with --keep none.
func (f *replaceFlags) finish(ctx context.Context, errOut io.Writer, disk string) error {
	if f.keep != keepNone {
		return nil
	}
	on := f.goingOn(realign.Finish)
	h := on.hold(disk)
	defer h.close()
	err := h.err
	if err == nil {
		_, err = on.goOn(ctx, errOut, h, false)
	}
	if err != nil {
		err = fmt.Errorf("%s is aligned and complete, but its original was not removed: %w", disk, err)
	}
	return err
}

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
	f := &moveFlags{Base: c, jobs: defaultJobs}
	cmd := newCommand("move DISK", "Move partitions inside a disk, with a journal", f.run)
	f.AddPlaces(cmd)
	addFlags(cmd,
		"require-sandbox", &f.RequireSandbox, "jobs", &f.jobs, "progress", &f.progress, "journal", &f.journal,
	)
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
func (f *moveFlags) run(ctx context.Context, out, errOut io.Writer, args []string) (err error) {
	path := args[0]
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
	err = f.Emit(out, r, func(t *report.Text) { t.Align(r) })
	if err != nil && r.Written {
		return fmt.Errorf("%w; the move itself is done", err)
	}
	return err
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
