package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/progress"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/self"
	"github.com/trueup/trueup/internal/trial"
)

type bootFlags struct {
	*Base
	Move
	trial    trial.Pair
	pictures string // folder for images
}

// newBoot returns the command boot.
func newBoot(c *Base) *cobra.Command {
	f := bootFlags{Base: c}
	cmd := &cobra.Command{
		Use:   "boot SOURCE",
		Short: "Boot a disk in QEMU, unchanged and aligned, and compare",
		Args:  Arguments("SOURCE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runBoot(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), &f, args[0])
		},
	}
	f.Add(cmd)
	addFlags(cmd, "offset", realign.Offset(&f.Offset))
	f.addMachine(cmd)
	f.addProgress(cmd)
	addFlags(cmd, "require-sandbox", &f.RequireSandbox, "pictures", &f.pictures)
	return cmd
}

// addMachine adds the flags of the machine and its runs.
func (f *bootFlags) addMachine(cmd *cobra.Command) {
	t, m := &f.trial, &f.trial.Machine
	m.Firmware, m.Bus, m.Accel, m.Memory = trial.Auto, trial.Auto, trial.Auto, trial.DefaultMemory
	t.Seconds, t.Settle = int(trial.DefaultLimit.Seconds()), int(trial.DefaultSettle.Seconds())
	addFlags(cmd,
		"qemu", &m.QEMU, "firmware", &m.Firmware, "bus", &m.Bus, "accel", &m.Accel, "memory", &m.Memory,
		"seconds", &t.Seconds, "settle", &t.Settle,
	)
}

func (f *bootFlags) checkFlags() error {
	_, err := f.Options()
	err = errors.Join(err, f.Check())
	if err != nil || f.pictures == "" {
		return err
	}
	err = os.Mkdir(f.pictures, 0o777)
	switch {
	case errors.Is(err, fs.ErrExist):
		return ondisk.In(ondisk.ErrOutput, "--pictures: %s exists; name a new folder", f.pictures)
	case err != nil:
		return ondisk.In(ondisk.ErrOutput, "--pictures: %w", err)
	}
	return nil
}

func runBoot(ctx context.Context, out, errOut io.Writer, f *bootFlags, src string) error {
	if err := f.checkFlags(); err != nil {
		return err
	}
	f.Ending.Hold("ending the guest")
	t := &f.trial
	t.Source, t.Machine.Clock = src, time.Now()
	t.Reading = f.repeated("serve", append(asRead, "format", "require-sandbox")...)
	t.Moving = f.repeated("serve", asMoved...)
	t.Say = func(text string) {
		if !f.Quiet {
			f.Ending.Say(errOut, report.SafeMessage(text))
		}
	}
	bar := progress.NewTrial(f.progressTo(errOut), "boot")
	defer bar.Stop()
	t.Begin = bar.Begin
	if err := t.Run(ctx, errOut); err != nil {
		_ = os.Remove(f.pictures) // empty or not requested
		if _, named := errors.AsType[*self.Error](err); named {
			return err // with the name, by the command run for the trial
		}
		return fmt.Errorf("%s: %w", src, err)
	}
	bar.Stop()
	r := t.Result(Head("boot"))
	if f.pictures != "" {
		err := r.Pictures(func(name string, png []byte) error {
			return os.WriteFile(filepath.Join(f.pictures, name), png, ReportMode)
		})
		if err != nil {
			return ondisk.In(ondisk.ErrOutput, "--pictures: %w", err)
		}
	}
	if err := f.Emit(out, r, r.Text); err != nil {
		return err
	}
	return ExitWith(r.ExitCode)
}
