package copycmd

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/cli/command"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/unfinished"
)

// replaceFlags are those of an align that gives the copy the names of SOURCE.
type replaceFlags struct {
	replace bool
	keep    string
	looped  realign.Loops // files that loop devices show
}

// keepNone is the argument of --keep by which no original stays.
const keepNone = "none"

func (r *replaceFlags) addReplace(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&r.replace, "replace", false, "give the copy the names of SOURCE, and keep that beside it")
	cmd.Flags().StringVar(&r.keep, "keep", "original", "with --replace, keep the `WHAT`: original or none")
	command.Complete(cmd, "keep", "original", keepNone)
}

// copyArguments demands SOURCE and DEST, or SOURCE alone where it is replaced.
func (r *replaceFlags) copyArguments() cobra.PositionalArgs {
	two, one := command.Arguments("SOURCE", "DEST"), command.Arguments("SOURCE")
	return func(cmd *cobra.Command, args []string) error {
		if !r.replace {
			return two(cmd, args)
		}
		if len(args) == 2 {
			return command.Usage("--replace gives the copy the name of SOURCE, and DEST %s is another; leave out one "+
				"of them", args[1])
		}
		return one(cmd, args)
	}
}

// checkReplace refuses flags that contradict each other.
func (f *alignFlags) checkReplace() error {
	switch {
	case f.command == convert:
		return nil
	case f.keep != "original" && f.keep != keepNone:
		return ondisk.NoChoice("--keep", f.keep, "original", keepNone)
	case !f.replace && f.keep == keepNone:
		return command.Usage("--keep none is for --replace: SOURCE stays where DEST is another file")
	case !f.replace:
		return nil
	case f.view:
		return command.Usage("--view shows SOURCE, which --replace would move away; leave out one of them")
	case f.force:
		return command.Usage("--force replaces a DEST, and --replace SOURCE; leave out one of them")
	}
	f.looped = realign.Looped()
	f.skipAligned = true // the disk at the path is what it should be
	return nil
}

// keepsFormat refuses another format than that of SOURCE, whose name the copy gets.
func (f *alignFlags) keepsFormat(s *realign.Source) error {
	t, img := f.to, s.Image
	if !f.replace || (t.Format == "" || t.Format == img.Format) && (t.Subformat == "" || t.Subformat == img.Subformat) {
		return nil
	}
	return command.Usage("--replace keeps the format of SOURCE (%s %s), and --to %s asks for another; leave out one "+
		"of them", img.Format, img.Subformat, t)
}

// goesOnFirst completes the exchange that an earlier run has left open. It reports whether there was one.
func (f *alignFlags) goesOnFirst(ctx context.Context, out, errOut io.Writer, path string) (bool, error) {
	if !f.replace {
		return false, nil
	}
	w, err := unfinished.At(path)
	if err != nil || w == nil || w.Kind != unfinished.Exchange {
		return false, nil //nolint:nilerr // opening SOURCE says the same
	}
	on := &openFlags{
		Base: f.Base, Shown: f.Shown, command: realign.Resume, keepNone: f.keep == keepNone,
		allow: f.Allow,
	}
	switch {
	case on.keepNone && (w.Phase == unfinished.Finishing || w.Phase == unfinished.Kept):
		on.command = realign.Finish
	case w.Resume != "":
		return false, nil
	}
	return true, runOpen(ctx, out, errOut, on, path)
}

// finishReplace removes the original of a disk that was replaced, where none is to be kept.
func (f *alignFlags) finishReplace(ctx context.Context, path string) error {
	if f.keep != keepNone {
		return nil
	}
	if err := realign.FinishExchange(ctx, path, f.Allow); err != nil {
		return fmt.Errorf("%s is aligned and complete, but its original was not removed: %w", path, err)
	}
	return nil
}

// replaced ends an exchange, and reports it. w.Replaced is nil where there was none.
func (f *alignFlags) replaced(ctx context.Context, dest string, w realign.Written) (*report.Replaced, error) {
	if w.Replaced == nil {
		return nil, nil //nolint:nilnil // nothing was exchanged
	}
	return report.NewReplaced(w.Replaced, f.keep != keepNone), f.finishReplace(ctx, dest)
}
