package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/trial"
	"github.com/trueup/trueup/internal/trial/judge"
	"github.com/trueup/trueup/internal/trial/results"
)

// trialFlags are those of a trial boot.
type trialFlags struct {
	qemu     string
	firmware string
	bus      string
	accel    string
	memory   int // MiB
	seconds  int
	settle   int
	prefix   string // of their names
	set      *pflag.FlagSet
}

// Bounds of a machine.
const (
	minMemory, maxMemory = 16, 64 << 10 // MiB
	maxSeconds           = 24 * 60 * 60
)

// add adds the flags. Those of another command than boot have its name in front.
func (f *trialFlags) add(cmd *cobra.Command, prefix string) {
	s := cmd.Flags()
	f.prefix, f.set = prefix, s
	s.StringVar(&f.qemu, prefix+"qemu", "", "QEMU `PROGRAM` (default: qemu-system-x86_64)")
	s.StringVar(&f.firmware, prefix+"firmware", auto, "`KIND` of firmware: auto (what boots the disk), bios or uefi")
	s.StringVar(&f.bus, prefix+"bus", auto, "disk `CONTROLLER`: auto, "+strings.Join(trial.Buses(), ", "))
	s.StringVar(&f.accel, prefix+"accel", auto, "`ACCELERATOR`: auto (KVM where it works), kvm or tcg")
	s.IntVar(&f.memory, prefix+"memory", trial.DefaultMemory, "memory of the guest in `MIB`")
	s.IntVar(&f.seconds, prefix+"seconds", int(trial.DefaultLimit.Seconds()), "end each run after `N` seconds")
	s.IntVar(&f.settle, prefix+"settle", int(trial.DefaultSettle.Seconds()), "end a run when its screen rests for `N` seconds")
	complete(cmd, prefix+"firmware", firmwares...)
	complete(cmd, prefix+"bus", append([]string{auto}, trial.Buses()...)...)
	complete(cmd, prefix+"accel", trial.Accels...)
}

const auto = "auto"

var firmwares = []string{auto, trial.BIOS, trial.UEFI}

// unused returns the error of flags of a trial that is not asked for.
func (f *trialFlags) unused() (err error) {
	if f.set == nil {
		return nil // convert has none of them
	}
	f.set.Visit(func(x *pflag.Flag) {
		if x.Name != "boot-trial" && strings.HasPrefix(x.Name, f.prefix) {
			err = ondisk.In(errUsage, "--%s is for a trial boot; add --boot-trial", x.Name)
		}
	})
	return err
}

func (f *trialFlags) checkTrial() error {
	for _, c := range []struct {
		name, value string
		allowed     []string
	}{
		{"firmware", f.firmware, firmwares},
		{"bus", f.bus, append([]string{auto}, trial.Buses()...)},
		{"accel", f.accel, trial.Accels},
	} {
		if !slices.Contains(c.allowed, c.value) {
			return ondisk.In(errUsage, "--%s%s %q, want %s", f.prefix, c.name, c.value, strings.Join(c.allowed, ", "))
		}
	}
	for _, c := range []struct {
		name             string
		value, low, high int
	}{
		{"memory", f.memory, minMemory, maxMemory}, {"seconds", f.seconds, 1, maxSeconds}, {"settle", f.settle, 1, maxSeconds},
	} {
		if c.value < c.low || c.value > c.high {
			return ondisk.In(errUsage, "--%s%s %d, want %d to %d", f.prefix, c.name, c.value, c.low, c.high)
		}
	}
	return nil
}

// pair returns the trial of SOURCE.
func (f *trialFlags) pair(c *common, errOut io.Writer, m *moveFlags, source string) *trial.Pair {
	chosen := func(s string) string { return strings.TrimPrefix(s, auto) }
	reading := m.flags()
	if m.format != "" {
		reading = append(reading, "--format", m.format)
	}
	if c.requireSandbox {
		reading = append(reading, "--require-sandbox")
	}
	moving := slices.Concat(m.arguments(), reading[len(m.flags()):])
	return &trial.Pair{
		Machine: trial.Machine{
			QEMU: f.qemu, Firmware: chosen(f.firmware), Bus: chosen(f.bus), Accel: f.accel, Memory: f.memory,
			Clock: time.Now(), Limit: time.Duration(f.seconds) * time.Second,
		},
		Watch:   trial.Watch{Settle: time.Duration(f.settle) * time.Second},
		Reading: reading, Moving: moving, Source: source,
		Say: func(text string) {
			if !c.quiet {
				fmt.Fprintf(errOut, "trueup: %s\n", report.SafeMessage(text))
			}
		},
	}
}

type bootFlags struct {
	*common
	moveFlags
	trialFlags
	pictures string // a folder
	version  string // of this program
}

func newBoot(version string, c *common) *cobra.Command {
	f := bootFlags{common: c, version: version}
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
			return runBoot(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), &f, args[0])
		},
	}
	f.moveFlags.add(cmd)
	f.trialFlags.add(cmd, "")
	f.addSandbox(cmd)
	cmd.Flags().StringVarP(&f.output, "output", "o", "text", "print the result as `FORMAT`: text, json or html")
	cmd.Flags().StringVar(&f.pictures, "pictures", "", "write the screens in graphics as PNG files into a new folder `DIR`")
	complete(cmd, "output", "text", "json", htmlOutput)
	return cmd
}

// htmlOutput is the format that boot and scan have beside those of all commands.
const htmlOutput = "html"

func (f *bootFlags) check() error {
	output := f.output
	if output == htmlOutput && !f.asJSON {
		f.output = "text" // which the check of all commands knows
	}
	err := errors.Join(f.common.check(), f.checkChoice(), f.checkTrial())
	f.output = output
	if err != nil || f.pictures == "" {
		return err
	}
	if err := os.Mkdir(f.pictures, 0o777); err != nil {
		return ondisk.In(ondisk.ErrOutput, "--pictures: %w; name a folder that does not exist yet", err)
	}
	return nil
}

// print prints the result and writes the pictures.
func (f *bootFlags) print(out io.Writer, r *results.Boot) error {
	if f.pictures == "" {
		r.Unnamed()
	}
	err := r.Pictures(func(name string, png []byte) error {
		if f.pictures == "" {
			return nil
		}
		return os.WriteFile(filepath.Join(f.pictures, name), png, reportMode)
	})
	switch {
	case err != nil:
		return ondisk.In(ondisk.ErrOutput, "--pictures: %w", err)
	case f.output != htmlOutput || f.json():
		return f.emit(out, r, r.Text)
	}
	var page bytes.Buffer
	if err := r.HTML(&page, f.version); err != nil {
		return err
	}
	if f.out != "" {
		return wrapStdout(writeFile(f.out, page.Bytes()))
	}
	_, err = page.WriteTo(out)
	return wrapStdout(err)
}

func runBoot(ctx context.Context, out, errOut io.Writer, f *bootFlags, src string) error {
	if err := f.check(); err != nil {
		return err
	}
	f.ending.hold("ending the guest")
	t := f.pair(f.common, errOut, &f.moveFlags, src)
	if err := t.Run(ctx, errOut); err != nil {
		return ofSource(src, err)
	}
	r := trialResult(t)
	if err := f.print(out, r); err != nil {
		return err
	}
	return exitWith(r.ExitCode)
}

// ofSource names SOURCE in the error of a trial. A command that ran for the trial has named it already.
func ofSource(src string, err error) error {
	if _, named := errors.AsType[*trial.ChildError](err); named {
		return err
	}
	return fmt.Errorf("%s: %w", src, err)
}

// trialResult compares the runs of a trial.
func trialResult(t *trial.Pair) *results.Boot {
	after := &t.After
	if !t.Plan.Moves() {
		after = nil
	}
	return results.New(head("boot"), t.Source, results.Machine{
		Firmware: t.Machine.Firmware, Bus: t.Machine.Bus, Memory: int64(t.Machine.Memory) << 20,
		Seconds: int(t.Machine.Limit.Seconds()),
	}, t.Plan.Moved, &t.Before, after)
}

// tryBoot does the trial of align --boot-trial. It comes before this process confines itself, since it starts QEMU.
func (f *alignFlags) tryBoot(ctx context.Context, errOut io.Writer, src, dest string) error {
	switch {
	case !f.bootTrial:
		return f.unused()
	case realign.IsPackage(dest):
		return ondisk.In(errUsage, "--boot-trial starts one disk, and DEST is a package; try its disks with trueup boot")
	}
	if err := f.checkTrial(); err != nil {
		return err
	}
	f.ending.hold("ending the guest")
	t := f.pair(f.common, errOut, &f.moveFlags, src)
	if err := t.Run(ctx, errOut); err != nil {
		return ofSource(src, err)
	}
	return f.acceptTrial(t, trialResult(t), src)
}

// acceptTrial decides whether align goes on after a trial. If nothing has to move there is nothing to compare.
func (f *alignFlags) acceptTrial(t *trial.Pair, r *results.Boot, src string) error {
	refused := r.Verdict == judge.Differs || r.Verdict == judge.Unclear
	switch {
	case refused && t.Plan.Moves() && !f.allowUnbootable:
		remedy := "trueup boot " + report.ShellQuote(src) + " shows both runs; --allow-unbootable writes the copy anyway"
		if more := r.Remedy(f.prefix); more != "" {
			remedy = more + "; --allow-unbootable writes the copy anyway"
		}
		return &ondisk.Refusal{Code: "verify", Reason: "trial boot: " + r.Reason, Remedy: remedy}
	case refused && t.Plan.Moves():
		t.Say("warning: trial boot: " + r.Reason + "; --allow-unbootable writes the copy anyway")
	case r.Verdict == judge.Neither:
		t.Say("warning: trial boot: " + r.Reason + "; it says nothing on whether the copy boots")
	default:
		t.Say("trial boot: " + string(r.Verdict) + ": " + r.Reason)
	}
	return nil
}
