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

	"github.com/trueup/trueup/internal/bench"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/opinion"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/self"
	"github.com/trueup/trueup/internal/trial"
)

type benchFlags struct {
	*Base
	bench.Options
}

// newBench returns the command bench.
func newBench(c *Base) *cobra.Command {
	f := &benchFlags{Base: c, Options: bench.Options{
		Size: bench.DefaultSize, Starts: bench.DefaultStarts, Runtime: bench.DefaultRuntime,
		Rounds: bench.DefaultRounds, Now: time.Now,
	}}
	cmd := newCommand("bench DIR", "Measure what misalignment costs on a storage", f.run)
	addFlags(cmd,
		"size", (*bench.Size)(&f.Size), "runtime", &f.Runtime,
		"rounds", &f.Rounds, "buffered", &f.Buffered,
	)
	return cmd
}

func (f *benchFlags) run(ctx context.Context, out, errOut io.Writer, args []string) error {
	f.Folder = args[0]
	if err := f.Check(); err != nil {
		return err
	}
	f.Ending.Hold("ending fio; the scratch file goes with it")
	f.Say = func(text string) { f.say(errOut, "bench "+text) }
	r, err := bench.Run(ctx, &f.Options)
	if err != nil {
		return err
	}
	b := &bench.Bench{Head: Head("bench"), Result: *r}
	return f.Emit(out, b, b.Text)
}

type bootFlags struct {
	*Base
	Move
	trial    trial.Pair
	pictures string // folder for images
}

// newBoot returns the command boot.
func newBoot(c *Base) *cobra.Command {
	f := &bootFlags{Base: c}
	cmd := newCommand("boot SOURCE", "Boot a disk in QEMU, unchanged and aligned, and compare", f.run)
	f.Add(cmd)
	t, m := &f.trial, &f.trial.Machine
	m.Firmware, m.Bus, m.Accel, m.Memory = trial.Auto, trial.Auto, trial.Auto, trial.DefaultMemory
	t.Seconds, t.Settle = int(trial.DefaultLimit.Seconds()), int(trial.DefaultSettle.Seconds())
	addFlags(cmd,
		"offset", realign.Offset(&f.Offset), "qemu", &m.QEMU, "firmware", &m.Firmware, "bus", &m.Bus, "accel", &m.Accel,
		"memory", &m.Memory, "seconds", &t.Seconds, "settle", &t.Settle,
		"require-sandbox", &f.RequireSandbox, "pictures", &f.pictures, "as-is", &t.AsIs,
	)
	return cmd
}

func (f *bootFlags) checkFlags() error {
	_, err := f.Options()
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

func (f *bootFlags) run(ctx context.Context, out, errOut io.Writer, args []string) error {
	src := args[0]
	if err := f.checkFlags(); err != nil {
		return err
	}
	f.Ending.Hold("ending the guest")
	t := &f.trial
	t.Source, t.Machine.Clock = src, time.Now()
	t.Reading = f.repeated("serve", append(asRead, "format", "require-sandbox")...)
	t.Moving = f.repeated("serve", asMoved...)
	t.Say = func(text string) { f.say(errOut, text) }
	if err := t.Run(ctx, errOut); err != nil {
		_ = os.Remove(f.pictures) // empty or not requested
		if _, named := errors.AsType[*self.Error](err); named {
			return err // with the name, by the command run for the trial
		}
		return fmt.Errorf("%s: %w", src, err)
	}
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

type judgeFlags struct {
	*Base
	Move  // reading SOURCE, and flags of verify
	judge string
}

// newJudge returns the command judge.
func newJudge(c *Base) *cobra.Command {
	f := &judgeFlags{Base: c}
	cmd := newCommand("judge SOURCE DEST", "Check a finished copy with qemu-img and libguestfs", f.run)
	f.judge = opinion.All
	addReading(cmd, &f.Reading)
	addFlags(cmd,
		"with", &f.With, "boundary", &f.Boundary, "data-only", &f.DataOnly, "allow-unbootable", &f.AllowUnbootable,
		"skip-free", &f.SkipFree, "flatten", &f.Flatten, "require-sandbox", &f.RequireSandbox, "by", &f.judge,
	)
	return cmd
}

func (f *judgeFlags) run(ctx context.Context, out, errOut io.Writer, args []string) error {
	src, dest := args[0], args[1]
	if _, err := f.Options(); err != nil {
		return err
	}
	if realign.IsPackage(src) || realign.IsPackage(dest) {
		return Usage("judge compares single disks, not packages: extract them, and name a disk of SOURCE and of DEST")
	}
	f.Ending.Hold("ending the judges")
	if f.judge != opinion.QemuImg {
		f.say(errOut, "running the judges; libguestfs needs some minutes without KVM")
	}
	rows, err := opinion.Ask(ctx, errOut, opinion.Case{
		Source: src, Dest: dest, Judge: f.judge, Reading: f.repeated("serve", append(asRead, "format")...),
		Proof: f.repeated("verify", asMoved...), Sandbox: f.repeated("serve", "require-sandbox"),
	})
	if err == nil {
		err = rows.Err()
	}
	if err != nil {
		if len(rows) > 0 {
			err = fmt.Errorf("%s: %w", dest, err)
		}
		return err
	}
	r := opinion.NewJudge(Head("judge"), src, dest, rows)
	if err := f.Emit(out, r, r.Text); err != nil {
		return err
	}
	return ExitWith(r.ExitCode)
}
