package copycmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/cli/command"
	"github.com/trueup/trueup/internal/cli/flags"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/unfinished"
)

// openFlags are those of the commands that go on with open work.
type openFlags struct {
	*command.Base
	flags.Shown
	command string
	force   bool
	allow   []string        // folders in which overlays of the disks of an exchange are looked for
	journal string          // of a move in place, where it does not lie beside the disk
	looped  realign.Loops   // files that loop devices show
	claimed *realign.Device // on which the disk lies; nil for files

	keepNone bool // resume an exchange of which no original is to stay
}

// NewUndo returns the command undo.
func NewUndo(c *command.Base) *cobra.Command {
	return newOpen(c, realign.Undo, "Bring the original disk back",
		`Takes back what a run has left open on the disk at PATH: an
exchange by align --replace, complete or not, or a move by align --in-place, until its tables are written. The disk is
what it was before, under the same names, and what was made beside it is removed.

What a guest has written to the disk since the exchange is lost with that. undo refuses it then, unless --force is
given. It refuses too where an overlay needs one of the two disks: in the folder of the disk and below, and in
--allow-folder and below.

A disk that was brought back from a backup in the middle of a move is left as it is: undo --force removes its journal,
and only where the first sector is not the mark of the move.`)
}

// NewResume returns the command resume.
func NewResume(c *command.Base) *cobra.Command {
	return newOpen(c, realign.Resume, "Go on with an interrupted exchange or move",
		`Goes on with what a run has left open on
the disk at PATH, from where it was ended.`)
}

// NewFinish returns the command finish.
func NewFinish(c *command.Base) *cobra.Command {
	return newOpen(c, realign.Finish, "Remove the kept original of an exchanged disk",
		`Removes the original that align --replace
has kept beside the disk at PATH, and the journal. After that nothing can bring it back. finish refuses where the disk
at PATH is another one than the copy, and where an overlay needs the original: in the folder of the disk and below, and
in --allow-folder and below.`)
}

func newOpen(c *command.Base, name, short, long string) *cobra.Command {
	f := openFlags{Base: c, command: name}
	cmd := &cobra.Command{
		Use: name + " PATH", Short: short,
		Long:    long + " trueup inspect PATH shows whether something is open, and which commands apply.",
		Example: "  trueup " + name + " winxp.vmdk",
		Args:    command.Arguments("PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runOpen(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), &f, args[0])
		},
	}
	f.AddSandbox(cmd)
	f.AddProgress(cmd)
	if name != realign.Finish {
		cmd.Flags().StringVar(&f.journal, "journal", "",
			"journal of a move in place that was begun with --journal `FILE`")
	}
	if name != realign.Resume {
		cmd.Flags().BoolVar(&f.force, "force", false, "go on although files were changed since")
		cmd.Flags().StringArrayVar(&f.allow, "allow-folder", nil,
			"look for overlays of the disks in `DIR` and below too (repeatable)")
	}
	return cmd
}

func runOpen(ctx context.Context, out, errOut io.Writer, f *openFlags, path string) (err error) {
	if err := errors.Join(f.Check(), f.CheckProgress()); err != nil {
		return err
	}
	f.Ending.Hold("")
	if f.journal, err = realign.JournalFile(f.journal, path); err != nil {
		return err
	}
	w, err := unfinished.Hold(path, f.journal)
	if errors.Is(err, fs.ErrNotExist) {
		return f.nothingOpen(ctx, errOut, path)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer w.Close() // each record of the journal is durable by itself, and so is its removal
	return f.run(ctx, out, errOut, path, w)
}

// run goes on with the open work of the disk at path.
func (f *openFlags) run(ctx context.Context, out, errOut io.Writer, path string, w *unfinished.Held) error {
	if err := f.claimMoved(path, w); err != nil {
		return err
	}
	defer f.claimed.Close()
	f.looped = realign.Looped()
	reads := slices.Concat(f.allow, []string{path})
	if err := f.Confine(ctx, errOut, reads, []string{path, f.journal}); err != nil {
		return err
	}
	done, err := f.goOn(ctx, errOut, w)
	if err != nil {
		return err
	}
	r := report.NewUnfinished(command.Head(f.command), w.Work, done)
	if err := f.Emit(out, r, func(t *report.Text) { t.Unfinished(r) }); err != nil {
		return fmt.Errorf("%w; %s itself is done", err, f.command)
	}
	return nil
}

// goOn goes on with open work.
func (f *openFlags) goOn(ctx context.Context, errOut io.Writer, w *unfinished.Held) (unfinished.Done, error) {
	watch, end := f.Watched(errOut, f.Progress, f.command, false)
	defer end()
	j := &realign.Job{
		Jobs: moveJobs, Watch: watch, Begin: func() { f.Ending.Hold(middle) }, Device: f.claimed, Force: f.force,
		Looped: f.looped, Writers: f.Writers(),
	}
	done, err := j.GoOn(ctx, w, realign.GoOn{
		Command: f.command, KeepNone: f.keepNone, Allow: f.allow,
	})
	if err != nil {
		err = fmt.Errorf("%s: %w", w.Work.Path, err)
	}
	if w.Work.Kind == unfinished.InPlace {
		err = inMiddle(ctx, err)
	}
	return done, err
}
