package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/progress"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/trial"
)

// trialFlags are those of a trial boot.
type trialFlags struct {
	trial.Options
	set *pflag.FlagSet
}

// add adds the flags. Those of another command than boot have its name in front.
func (f *trialFlags) add(cmd *cobra.Command, prefix string) {
	s := cmd.Flags()
	f.Prefix, f.set = prefix, s
	s.StringVar(&f.QEMU, prefix+"qemu", "", "QEMU `PROGRAM` (default: qemu-system-x86_64)")
	s.StringVar(&f.Firmware, prefix+"firmware", trial.Auto, "`KIND` of firmware: auto (what boots the disk), bios or uefi")
	s.StringVar(&f.Bus, prefix+"bus", trial.Auto, "disk `CONTROLLER`: auto, "+strings.Join(trial.Buses(), ", "))
	s.StringVar(&f.Accel, prefix+"accel", trial.Auto, "`ACCELERATOR`: auto (KVM where it works), kvm or tcg")
	s.IntVar(&f.Memory, prefix+"memory", trial.DefaultMemory, "memory of the guest in `MIB`")
	s.IntVar(&f.Seconds, prefix+"seconds", int(trial.DefaultLimit.Seconds()), "end each run after `N` seconds")
	s.IntVar(&f.Settle, prefix+"settle", int(trial.DefaultSettle.Seconds()),
		"end a run when its screen rests for `N` seconds")
	complete(cmd, prefix+"firmware", trial.Firmwares...)
	complete(cmd, prefix+"bus", trial.BusChoices()...)
	complete(cmd, prefix+"accel", trial.Accels...)
}

// given returns the flags of a trial that were given, as those of boot.
func (f *trialFlags) given() (args []string) {
	if f.set == nil {
		return nil // convert has none of them
	}
	f.set.Visit(func(x *pflag.Flag) {
		if name, ok := strings.CutPrefix(x.Name, f.Prefix); ok && x.Name != bootTrial {
			args = append(args, "--"+name+"="+x.Value.String())
		}
	})
	return args
}

type bootFlags struct {
	*common
	moveFlags
	trialFlags
	shown
	pictures string // a folder
	onCall   bool   // the trial of align, which calls for it
}

func newBoot(c *common) *cobra.Command {
	f := bootFlags{common: c}
	cmd := &cobra.Command{
		Use:   "boot SOURCE",
		Short: "Start a disk under QEMU as it is and aligned, and compare",
		Long: `Starts the disk of SOURCE under QEMU, first as it is and then as align would write it, and compares what
the screen and the serial port show. Nothing is written: both disks are served read-only, and what the guest writes goes
to a temporary file that is thrown away. The guest has no network.

A run ends when the screen rests, when the guest switches itself off, or after --seconds. The result is that
both runs came to the same end, that they differ, that neither boots, or that nothing could be judged. If nothing has to
move, the disk is started once, and the result says only whether it boots.

` + moveHelp,
		Example: `  trueup boot winxp.vmdk
  trueup boot --seconds 600 --memory 4096 server.vhdx`,
		Args: arguments("SOURCE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.onCall {
				return bootOnCall(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr(), &f, args[0])
			}
			return runBoot(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), &f, args[0])
		},
	}
	f.moveFlags.add(cmd)
	f.trialFlags.add(cmd, "")
	f.addProgress(cmd)
	f.addSandbox(cmd)
	cmd.Flags().BoolVar(&f.onCall, onCall, false, "wait for a call on standard input")
	_ = cmd.Flags().MarkHidden(onCall) // it exists
	cmd.Flags().StringVarP(&f.output, "output", "o", "text", "print the result as `FORMAT`: text, json or html")
	cmd.Flags().StringVar(&f.pictures, "pictures", "",
		"write the screens in graphics as PNG files into a new folder `DIR`")
	complete(cmd, "output", "text", "json", htmlOutput)
	return cmd
}

// onCall is the flag of a boot that another trueup runs.
const onCall = "on-call"

func (f *bootFlags) check() error {
	err := errors.Join(f.checkPage(), f.Consistent(), f.CheckTrial(), f.checkProgress())
	if err != nil || f.pictures == "" {
		return err
	}
	err = os.Mkdir(f.pictures, 0o777)
	switch {
	case errors.Is(err, fs.ErrExist):
		return ondisk.In(ondisk.ErrOutput, "--pictures: %s exists; name a folder that does not exist yet", f.pictures)
	case err != nil:
		return ondisk.In(ondisk.ErrOutput, "--pictures: %w", err)
	}
	return nil
}

// savePicture writes a picture into the folder of --pictures, if there is one.
func (f *bootFlags) savePicture(name string, png []byte) error {
	if f.pictures == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(f.pictures, name), png, reportMode)
}

func runBoot(ctx context.Context, out, errOut io.Writer, f *bootFlags, src string) error {
	if err := f.check(); err != nil {
		return err
	}
	f.ending.hold("ending the guest")
	t := f.Pair(src, time.Now(), f.sandboxed(f.Arguments()), f.choices())
	t.Say = func(text string) {
		if !f.quiet {
			f.ending.say(errOut, report.SafeMessage(text))
		}
	}
	bar := progress.NewTrial(f.progressTo(errOut, f.progress), "boot")
	defer bar.Stop()
	t.Begin = bar.Begin
	if err := t.Run(ctx, errOut); err != nil {
		_ = os.Remove(f.pictures) // which is empty, or was not asked for
		if _, named := errors.AsType[*trial.ChildError](err); named {
			return err // by the command that ran for the trial
		}
		return fmt.Errorf("%s: %w", src, err)
	}
	bar.Stop()
	r := t.Result(head("boot"))
	if f.pictures == "" {
		r.Unnamed()
	}
	if err := r.Pictures(f.savePicture); err != nil {
		return ondisk.In(ondisk.ErrOutput, "--pictures: %w", err)
	}
	if err := f.emitPage(out, r, r.Text, func(w io.Writer) error { return r.HTML(w, f.version) }); err != nil {
		return err
	}
	return exitWith(r.ExitCode)
}

// bootOnCall is runBoot for another trueup, which prints the error.
func bootOnCall(ctx context.Context, in io.Reader, out, errOut io.Writer, f *bootFlags, src string) error {
	ctx, err := trial.Called(ctx, in)
	if err == nil {
		err = runBoot(ctx, out, errOut, f, src)
	}
	if _, judged := errors.AsType[verdict](err); err == nil || judged {
		return err
	}
	return cmp.Or(report.JSON(out, failed("boot", err)), error(verdict(exitError)))
}

const bootTrial = "boot-trial"

// startTrial starts what makes the trial of align, before this process confines itself.
func (f *alignFlags) startTrial(errOut io.Writer, src, dest string) (err error) {
	args := f.given()
	switch {
	case !f.bootTrial && len(args) > 0:
		name, _, _ := strings.Cut(args[0], "=")
		return ondisk.In(ondisk.ErrUsage, "--%s%s is for a trial boot; add --%s", f.Prefix, name[2:], bootTrial)
	case !f.bootTrial:
		return nil
	case realign.IsPackage(dest):
		return ondisk.In(ondisk.ErrUsage, "--boot-trial starts one disk, and DEST is a package; try its disks with trueup boot")
	}
	if err := f.CheckTrial(); err != nil {
		return err
	}
	if err := (&trial.Machine{QEMU: f.QEMU}).Ready(); err != nil {
		return fmt.Errorf("--boot-trial: %w", err)
	}
	args = slices.Concat(args, f.sandboxed(f.Arguments()), f.choices(), []string{"--" + onCall, "--progress", f.progress})
	if f.quiet {
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
		b, err := f.delegate.Call(ctx)
		if err != nil {
			return err
		}
		r.BootTrial = &report.BootTrial{Verdict: string(b.Verdict), Reason: b.Reason}
		said, err := b.Accept(f.Prefix, f.AllowUnbootable)
		if err == nil && !f.quiet {
			f.ending.say(errOut, report.SafeMessage(said))
		}
		return err
	}
}
