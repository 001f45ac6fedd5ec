package trial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/self"
	"github.com/trueup/trueup/internal/units"
)

// Types of partitions. Spec: UEFI 2.10, 5.3.3 and 5.2.2; GRUB manual, "BIOS installation".
const (
	typeESP      = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"
	typeESPofMBR = "0xef"
	typeBIOSBoot = "21686148-6449-6e6f-744e-656564454649"
)

// fit completes a machine for its disk. It keeps values that are set.
func (m *Machine) fit(d *report.Disk) {
	t := d.Table
	m.Heads, m.Sectors, m.Size, m.SectorSize = t.Heads, t.Sectors, d.Size, t.SectorSize
	if cmp.Or(m.Firmware, Auto) == Auto {
		m.Firmware = firmwareOf(d)
	}
	if cmp.Or(m.Bus, Auto) != Auto {
		return
	}
	// Every guest has a driver for IDE, because its CD drive was on it. QEMU has no LSI53C1030, the lsilogic of VMware.
	switch {
	case t.SectorSize > units.SectorSize:
		m.Bus = "lsisas" // IDE has sectors of 512 bytes
	case m.Firmware == UEFI:
		m.Bus = "sata"
	default:
		m.Bus = "ide"
	}
}

// with returns the machine with the geometry of a container, or with its own if g is nil.
func (m Machine) with(g *report.Geometry) Machine {
	if g != nil {
		m.Heads, m.Sectors = int(g.Heads), int(g.Sectors)
	}
	return m
}

// firmwareOf returns the firmware that starts a disk. Code in sector 0 of a GPT starts nothing without a BIOS boot
// partition, but some tools write it to every disk.
func firmwareOf(d *report.Disk) string {
	var esp, biosBoot, active bool
	for _, part := range d.Partitions {
		esp = esp || part.Type == typeESP || part.Type == typeESPofMBR
		biosBoot = biosBoot || part.Type == typeBIOSBoot
		active = active || part.Active
	}
	code := d.Boot.Name != "" && d.Boot.Name != "empty"
	switch {
	case !esp, code && biosBoot, code && active && d.Table.Scheme == "mbr":
		return BIOS
	}
	return UEFI
}

// Pair is a trial: a machine that starts the disk as it is and then the aligned disk.
type Pair struct {
	Machine Machine
	Watch   Watch
	Seconds int      // of a run
	Settle  int      // time without changes that ends a run, in seconds
	Reading []string // flags for reading SOURCE
	Moving  []string // flags for the move
	Source  string
	Say     func(text string)                        // receives messages about the progress of runs
	Begin   func(disk string, longest time.Duration) // called at the start of a run; disk is one of Disks

	plan   report.Plan
	Before Film
	After  *Film // nil without a change, or if the machine of the first run failed
}

// Disks of a trial: SOURCE itself and the planned disk.
const (
	Source  = "source"
	Aligned = "aligned"
)

// changes reports whether the aligned disk differs from the source.
func (t *Pair) changes() bool { return t.plan.Moved > 0 || len(t.plan.Patches) > 0 }

// moves returns the moved partitions with their places in guest output.
func (t *Pair) moves() (out []Move) {
	before, after := t.Machine.with(t.plan.BIOS.Source), t.Machine.with(t.plan.BIOS.Result)
	for _, x := range t.plan.Moves {
		out = append(out, Move{
			Before: Start{x.From / units.SectorSize, int64(before.Heads), int64(before.Sectors)},
			After:  Start{x.To / units.SectorSize, int64(after.Heads), int64(after.Sectors)},
		})
	}
	return out
}

// Run computes the plan and starts both disks one after the other. A failing source invalidates both runs. Its server
// outlives the second run, to detect a change in between.
func (t *Pair) Run(ctx context.Context, stderr io.Writer) (err error) {
	of := []string{"--", t.Source}
	t.plan = report.Plan{BIOS: &report.Geometries{}, Result: &report.Disk{}}
	exit, err := self.Run(ctx, stderr, &t.plan, "plan", slices.Concat(t.Reading, t.Moving, of)...)
	if err != nil {
		return err
	}
	if exit != 0 {
		return &self.Error{Exit: exit, Code: "internal", Message: "trueup plan gave no reason"}
	}
	t.Machine.fit(t.plan.Result)
	t.Machine.Limit, t.Watch.Settle = time.Duration(t.Seconds)*time.Second, time.Duration(t.Settle)*time.Second
	if err := t.Machine.Ready(); err != nil {
		return err
	}
	source, err := self.Serve(ctx, &struct{}{}, slices.Concat([]string{"--as-is"}, t.Reading, of)...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	hung, err := t.runs(ctx, source)
	if hung && err == nil {
		t.Say("the accelerator does not work here; starting again with emulation")
		t.Machine.Accel = emulation
		_, err = t.runs(ctx, source)
	}
	return err
}

// runs starts both disks with one accelerator. hung reports whether emulation may do better.
func (t *Pair) runs(ctx context.Context, source *self.Server) (hung bool, err error) {
	t.After = nil
	t.Before, hung, err = t.film(ctx, t.Machine.with(t.plan.BIOS.Source), Source, source)
	if err != nil || hung || !t.changes() {
		return hung, err
	}
	if moot(&t.Before) {
		t.Say("the aligned disk: skipped, because there is nothing to compare it with")
		return false, nil
	}
	view, err := self.Serve(ctx, &struct{}{}, slices.Concat(t.Reading, t.Moving, []string{"--", t.Source})...)
	if err != nil {
		return false, err
	}
	after, hung, err := t.film(ctx, t.Machine.with(t.plan.BIOS.Result), Aligned, view)
	t.After = &after
	hung = hung || after.Accel != t.Before.Accel // both runs must use the same accelerator
	return hung, errors.Join(err, view.Close())
}

// film runs a served disk. hung reports that an accelerator chosen by trueup could not start, failed while the guest
// ran, or showed nothing: if KVM opens and hangs, not even the firmware appears.
func (t *Pair) film(ctx context.Context, m Machine, disk string, s *self.Server) (f Film, hung bool, err error) {
	m.Disk = s.URI
	name := "the disk " + map[string]string{Source: "as it is", Aligned: "aligned"}[disk]
	t.Say(fmt.Sprintf("boots %s: %s, %s, limit %d s", name, m.Firmware, m.Bus, t.Seconds))
	t.Begin(disk, m.Limit)
	f, err = m.Run(ctx, t.Watch)
	if own(m.Accel) && ctx.Err() == nil {
		failed := errors.Is(err, errNoQMP)
		if failed || err == nil && f.Accel != emulation && (f.Ended == Broken || running(&f) && mute(&f)) {
			return f, true, nil
		}
	}
	if err == nil {
		t.Say(fmt.Sprintf("%s: %s after %.0f s (%s)", name, f.Ended.words(), f.Took.Seconds(), f.Accel))
	}
	return f, false, err
}
