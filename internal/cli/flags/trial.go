package flags

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trueup/trueup/internal/cli/command"
	"github.com/trueup/trueup/internal/trial"
)

// Trial has the flags of a trial boot.
type Trial struct {
	trial.Options
	set *pflag.FlagSet
}

// Add adds the flags. Those of another command than boot have its name in front.
func (f *Trial) Add(cmd *cobra.Command, prefix string) {
	s := cmd.Flags()
	f.Prefix, f.set = prefix, s
	s.StringVar(&f.QEMU, prefix+"qemu", "", "QEMU `PROGRAM` (default: qemu-system-x86_64)")
	s.StringVar(&f.Firmware, prefix+"firmware", trial.Auto,
		"`KIND` of firmware: auto (what boots the disk), bios or uefi")
	s.StringVar(&f.Bus, prefix+"bus", trial.Auto, "disk `CONTROLLER`: auto, "+strings.Join(trial.Buses(), ", "))
	s.StringVar(&f.Accel, prefix+"accel", trial.Auto, "`ACCELERATOR`: auto (KVM where it works), kvm or tcg")
	s.IntVar(&f.Memory, prefix+"memory", trial.DefaultMemory, "memory of the guest in `MIB`")
	s.IntVar(&f.Seconds, prefix+"seconds", int(trial.DefaultLimit.Seconds()), "end each run after `N` seconds")
	s.IntVar(&f.Settle, prefix+"settle", int(trial.DefaultSettle.Seconds()),
		"end a run when its screen rests for `N` seconds")
	command.Complete(cmd, prefix+"firmware", trial.Firmwares...)
	command.Complete(cmd, prefix+"bus", trial.BusChoices()...)
	command.Complete(cmd, prefix+"accel", trial.Accels...)
}

// Given returns the flags of a trial that were given, as those of boot.
func (f *Trial) Given() (args []string) {
	if f.set == nil {
		return nil // convert has none of them
	}
	f.set.Visit(func(x *pflag.Flag) {
		if name, ok := strings.CutPrefix(x.Name, f.Prefix); ok && x.Name != BootTrial {
			args = append(args, "--"+name+"="+x.Value.String())
		}
	})
	return args
}

// OnCall is the flag of a boot that another trueup runs.
const OnCall = "on-call"

// BootTrial is the flag of an align that makes a trial first.
const BootTrial = "boot-trial"
