package copycmd

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/cli/command"
	"github.com/trueup/trueup/internal/cli/flags"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/trial"
)

// startTrial starts what makes the trial of align, before this process confines itself.
func (f *alignFlags) startTrial(errOut io.Writer, src, dest string) (err error) {
	args := f.Given()
	switch {
	case !f.bootTrial && len(args) > 0:
		name, _, _ := strings.Cut(args[0], "=")
		return command.Usage("--%s%s is for a trial boot; add --%s", f.Prefix, name[2:], flags.BootTrial)
	case !f.bootTrial:
		return nil
	case realign.IsPackage(dest):
		return command.Usage("--boot-trial starts one disk, and DEST is a package; try its disks with trueup boot")
	}
	if err := f.CheckTrial(); err != nil {
		return err
	}
	if err := (&trial.Machine{QEMU: f.QEMU}).Ready(); err != nil {
		return fmt.Errorf("--boot-trial: %w", err)
	}
	args = slices.Concat(args, f.Sandboxed(f.Arguments()), f.Choices(),
		[]string{"--" + flags.OnCall, "--progress", f.Progress})
	if f.Quiet {
		args = append(args, "--quiet")
	}
	f.delegate, err = trial.Delegates(errOut, append(args, "--", src)...)
	return err
}

// tried makes the trial when all is ready for the copy, and has the report say what it showed.
func (f *alignFlags) tried(errOut io.Writer, j *realign.Job, r *report.Align) {
	if f.delegate == nil {
		return
	}
	j.Try = func(ctx context.Context) error {
		f.Ending.Above(f.delegate) // which has the bar now
		b, err := f.delegate.Call(ctx)
		f.Ending.Above(nil)
		if err != nil {
			return err
		}
		r.BootTrial = &report.BootTrial{Verdict: string(b.Verdict), Reason: b.Reason}
		said, err := b.Accept(f.Prefix, f.AllowUnbootable)
		if err == nil && !f.Quiet {
			f.Ending.Say(errOut, report.SafeMessage(said))
		}
		return err
	}
}
