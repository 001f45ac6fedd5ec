package trial

import (
	"slices"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
)

// Options are the choices of a user for a trial.
type Options struct {
	QEMU     string
	Firmware string // one of Firmwares
	Bus      string // one of BusChoices
	Accel    string // one of Accels
	Memory   int    // of the guest, MiB
	Seconds  int    // of a run
	Settle   int    // seconds for which the screen rests at the end
}

// Auto leaves a choice to the disk.
const Auto = "auto"

// Firmwares are the choices of a firmware.
var Firmwares = []string{Auto, BIOS, UEFI}

// BusChoices are the choices of a controller.
func BusChoices() []string { return append([]string{Auto}, Buses()...) }

// Bounds of the options.
const (
	minMemory, maxMemory = 16, 64 << 10 // MiB
	maxSeconds           = 24 * 60 * 60
)

// CheckTrial refuses options that cannot be right.
func (o *Options) CheckTrial() error {
	for _, c := range []struct {
		name, value string
		allowed     []string
	}{
		{"firmware", o.Firmware, Firmwares},
		{"bus", o.Bus, BusChoices()},
		{"accel", o.Accel, Accels},
	} {
		if !slices.Contains(c.allowed, c.value) {
			return ondisk.NoChoice("--"+c.name, c.value, c.allowed...)
		}
	}
	for _, c := range []struct {
		name             string
		value, low, high int
	}{
		{"memory", o.Memory, minMemory, maxMemory},
		{"seconds", o.Seconds, 1, maxSeconds},
		{"settle", o.Settle, 1, maxSeconds},
	} {
		if c.value < c.low || c.value > c.high {
			return ondisk.In(ondisk.ErrUsage, "--%s %d, want %d to %d", c.name, c.value, c.low, c.high)
		}
	}
	return nil
}

// Pair returns the trial of a source at a time. Reading and moving are the flags of trueup plan.
func (o *Options) Pair(source string, now time.Time, reading, moving []string) *Pair {
	chosen := func(s string) string { return strings.TrimPrefix(s, Auto) }
	return &Pair{
		Machine: Machine{
			QEMU: o.QEMU, Firmware: chosen(o.Firmware), Bus: chosen(o.Bus), Accel: o.Accel, Memory: o.Memory,
			Clock: now, Limit: time.Duration(o.Seconds) * time.Second,
		},
		Watch:   Watch{Settle: time.Duration(o.Settle) * time.Second},
		Reading: reading, Moving: moving, Source: source,
	}
}

// Result compares the runs. Without a move there is only the first.
func (t *Pair) Result(h report.Head) *Boot {
	after := &t.After
	if !t.Plan.Moves() {
		after = nil
	}
	return New(h, t.Source, MachineReport{
		Firmware: t.Machine.Firmware, Bus: t.Machine.Bus, Memory: int64(t.Machine.Memory) << 20,
		Seconds: int(t.Machine.Limit.Seconds()),
	}, t.Plan.Moved, &t.Before, after, t.moves()...)
}
